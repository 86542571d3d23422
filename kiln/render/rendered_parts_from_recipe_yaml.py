"""The parts of a rendered recipe.yaml: scripts, tests, sources, settings, and shared staging outputs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from kiln.errors import RecipeFault
from kiln.lazy_pattern import lazy_pattern
from kiln.model.output_build_settings import BuildSettings, LinkingSettings, PrefixSettings, PythonSettings
from kiln.model.rendered import TEST_MODULES, OutputTest, Pin, Requirements, Script, Source, Staging
from kiln.model.source_position import Place
from kiln.name_rules import MAX_LENGTH, invalid_name_reason
from kiln.recipe_v1.node_evaluation import RECIPE
from kiln.recipe_v1.recipe import PackageAtVariant, StagingAtVariant, requirement_versions_from_variant

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kiln.recipe_v1.requirement import Requirement

DEFAULT, SUFFIX = "build.sh", ".sh"
_UNSAFE = lazy_pattern(r"[^A-Za-z0-9._]+")
_OF_SOURCES = ("filter", "lfs", "submodules", "expected_commit")  # which the engine knows by the same names
_BEHAVIORS = {"error": True, "ignore": False, None: None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeScriptReader:
    """The scripts of a recipe in a folder; ``several`` is set when it has a list of outputs."""

    recipe_folder: Path
    several: bool

    def script_from_section(self, given: Mapping[str, Any] | None, *, default: bool) -> Script:
        """Return a script; with ``default``, the file ``build.sh`` where nothing is given."""
        given = given or {}
        lines, file = tuple(given.get("content", ())), given.get("file")
        if file is not None:
            file = self._recipe_file(file) or file
        elif len(lines) == 1 and given.get("bare"):
            file = self._recipe_file(lines[0])
        elif not lines and default:
            file = self._recipe_file(DEFAULT)
        return Script(
            file=file,
            lines=() if file else lines,
            interpreter=given.get("interpreter"),
            environment=given.get("env", {}),
            folder=given.get("cwd"),
            names=given.get("names", {}) if lines and not file else {},
        )

    def _recipe_file(self, name: str) -> str | None:
        """Return the recipe's file of a name, which may lack its suffix; None if it does not exist."""
        if "\n" in name or len(name) > 255:
            return None
        whole = name if PurePosixPath(name).suffix else f"{name}{SUFFIX}"
        return whole if (self.recipe_folder / whole).is_file() else None


def staging_outputs(
    packages: Iterable[PackageAtVariant], recipe_folder: Path, loops: Sequence[str]
) -> tuple[tuple[Staging, ...], dict[int, str]]:
    """Return the staging outputs that packages inherit, and the name of each package's by the package's ``id``.

    There is one for all packages for which it is the same, whatever else varies; several of one name are distinguished
    by the values that they use.
    """
    scripts = RecipeScriptReader(recipe_folder=recipe_folder, several=True)
    given = [
        (package, _staging_output(package, package.staging, scripts, loops)) for package in packages if package.staging
    ]
    distinct: list[Staging] = []
    for _, staging in given:
        distinct += [] if staging in distinct else [staging]
    named = [replace(item, name=_distinct_staging_name(item, distinct)) for item in distinct]
    return tuple(named), {id(package): named[distinct.index(staging)].name for package, staging in given}


def _distinct_staging_name(staging: Staging, others: Sequence[Staging]) -> str:
    """Return the name of a staging output with the values that it uses: ``bindings-python3.11``."""
    if sum(other.name == staging.name for other in others) < 2:
        return staging.name
    clear = {_staging_name_with_values(other) for other in others}
    digest = hashlib.sha256(json.dumps(staging.variant, sort_keys=True).encode()).hexdigest()
    return _staging_name_with_values(staging) if len(clear) == len(others) else f"{staging.name}-{digest[:7]}"


def _staging_name_with_values(staging: Staging) -> str:
    first = {key: [*value.split(), ""][0].rstrip(".*") for key, value in staging.variant.items()}
    values = (f"{key}{_UNSAFE.sub('_', value)}" for key, value in sorted(first.items()))
    return "-".join((staging.name, *values))[:MAX_LENGTH]


def _staging_output(
    package: PackageAtVariant, given: StagingAtVariant, scripts: RecipeScriptReader, loops: Sequence[str]
) -> Staging:
    if why := invalid_name_reason(given.name, "package name"):
        raise package.placed_error(f"the name {given.name[:80]!r} of the staging output is invalid", why)
    sections, scope = given.sections, package.scope
    needs, build = sections["requirements"], sections["build"]
    return Staging(
        name=given.name,
        script=scripts.script_from_section(build.get("script"), default=True),
        script_env=script_secret_names(build.get("script")),
        requirements=Requirements(
            build=spec_texts(needs.get("build", ())),
            host=spec_texts(needs.get("host", ())),
            versions=requirement_versions_from_variant(needs, scope),
        ),
        sources=tuple(source_from_entry(entry) for entry in sections["source"]),
        variant={key: str(scope.variant[key]) for key in loops if key in given.own},
        settings=build_settings({}, needs),
        copied=True,
    )


def spec_texts(given: Sequence[Requirement]) -> tuple[str, ...]:
    """Return requirements as text; an open pin is the bare name, as it is in a recipe of conda-build."""
    return tuple(item.name if isinstance(item, Pin) else item for item in given)


def script_secret_names(script: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names of the caller's variables that a script gets."""
    return tuple((script or {}).get("secrets", ()))


def output_tests(given: Sequence[Mapping[str, Any]], scripts: RecipeScriptReader) -> Iterator[OutputTest]:
    """Yield the tests of an output, each of which runs in an environment of its own."""
    for test in given:
        needs, files = test.get("requirements", {}), test.get("files", {})
        python = test.get("python")
        yield OutputTest(
            imports=tuple((python or {}).get("imports", ())),
            pip_check=python is not None and python.get("pip_check") is not False,
            pythons=tuple((python or {}).get("python_version", ())),
            modules={name: tuple(test[name].get(key, ())) for name, key in TEST_MODULES.items() if name in test},
            script=scripts.script_from_section(test["script"], default=False) if "script" in test else Script(),
            requires=spec_texts(needs.get("run", ())),
            requires_build=spec_texts(needs.get("build", ())),
            files=tuple(files.get("recipe", ())),
            source_files=tuple(files.get("source", ())),
            contents=test.get("package_contents", {}),
            downstreams=(test["downstream"],) if "downstream" in test else (),
            by_engine=True,
        )


def source_from_entry(given: Mapping[str, Any]) -> Source:
    """Return an entry of the source section."""
    more = {key: given[key] for key in _OF_SOURCES if given.get(key) not in (None, [], {})}
    if given.get("path") is not None:
        more["use_gitignore"] = given.get("use_gitignore") is not False
    return Source(
        url=tuple(given.get("url", ())),
        sha256=given.get("sha256"),
        md5=given.get("md5"),
        file_name=given.get("file_name"),
        git_depth=given.get("depth"),
        git_url=given.get("git"),
        git_rev=given.get("rev") or given.get("tag") or given.get("branch"),
        path=given.get("path"),
        folder=given.get("target_directory"),
        patches=tuple(given.get("patches", ())),
        by_engine=True,
        settings=more,
    )


def build_settings(build: Mapping[str, Any], requirements: Mapping[str, Any]) -> BuildSettings:
    """Return how an output is built and packed; what is not given is the engine's to decide.

    Raises:
        RecipeFault: a value is not one of the engine's.
    """
    linking, detection, python = (build.get(key, {}) for key in ("dynamic_linking", "prefix_detection", "python"))
    forced, ignored = detection.get("force_file_type", {}), requirements.get("ignore_run_exports", {})
    files, binaries = build.get("files"), detection.get("ignore_binary_files")
    return BuildSettings(
        linking=LinkingSettings(
            rpaths=tuple(linking.get("rpaths", ())),
            missing_dso_allowlist=tuple(linking.get("missing_dso_allowlist", ())),
            rpath_allowlist=tuple(linking.get("rpath_allowlist", ())),
            error_overlinking=_is_error_behavior(linking, "overlinking_behavior"),
            error_overdepending=_is_error_behavior(linking, "overdepending_behavior"),
        ),
        prefix=PrefixSettings(
            text=tuple(forced.get("text", ())),
            binary=tuple(forced.get("binary", ())),
            ignore=_flag_or_globs(detection.get("ignore")),
            ignore_binary=tuple(binaries) if isinstance(binaries, list) else (),
        ),
        python=PythonSettings(
            skip_pyc=tuple(python.get("skip_pyc_compilation", ())),
            version_independent=bool(python.get("version_independent")),
            site_packages_path=python.get("site_packages_path"),
            app_entry_points=bool(python.get("use_python_app_entrypoint")),
        ),
        always_include_files=tuple(build.get("always_include_files", ())),
        always_copy_files=tuple(build.get("always_copy_files", ())),
        merge_build_host=bool(build.get("merge_build_and_host_envs")),
        ignore_run_exports=tuple(ignored.get("by_name", ())),
        ignore_run_exports_from=tuple(ignored.get("from_package", ())),
        excluded_files=tuple(files.get("exclude", ())) if isinstance(files, dict) else (),
        post_process=tuple(build.get("post_process", ())),
        by_engine=True,
    )


def _flag_or_globs(value: Any) -> bool | tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else bool(value)


def _is_error_behavior(linking: Mapping[str, Any], key: str) -> bool | None:
    value = linking.get(key)
    if value not in _BEHAVIORS:
        raise RecipeFault(
            f"dynamic_linking/{key} is {str(value)[:40]!r}", at=Place(file=RECIPE), hint="'error' or 'ignore'"
        )
    return _BEHAVIORS[value]
