"""Render a config whose recipe is recipe.yaml, as rattler-build does, into the types of any other."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from kiln.base.patterns import MAX_LENGTH, lazy_pattern
from kiln.base.system.files import file_content_stamp
from kiln.recipe.rendered import (
    TEST_MODULES,
    BuildSettings,
    LinkingSettings,
    Output,
    OutputTest,
    Pin,
    PrefixSettings,
    PythonSettings,
    RenderedConfig,
    Requirements,
    Script,
    Source,
    Staging,
)
from kiln.recipe.v0.rendering import about_field_value, compile_plan_command, steps_with_network
from kiln.recipe.v1.nodes import RECIPE
from kiln.recipe.v1.recipe import (
    PackageAtVariant,
    RecipeV1,
    StagingAtVariant,
    requirement_versions_from_variant,
    skip_warnings,
)
from kiln.recipe.v1.variants import BuildIdentities, BuildIdentity, RecipePackages, VariantFileV1, require_valid_names
from kiln.recipe.variants.files import Platform, VariantSource, load_variant_file
from kiln.recipe.variants.space import Space

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kiln.recipe.feedstock import BuildConfig, Feedstock
    from kiln.recipe.v1.sections import Requirement


DEFAULT, SUFFIX = "build.sh", ".sh"
_UNSAFE = lazy_pattern(r"[^A-Za-z0-9._]+")
_OF_SOURCES = ("filter", "lfs", "submodules", "expected_commit")  # which the engine knows by the same names
_IS_ERROR = {"error": True, "ignore": False}


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
    """Return how an output is built and packed; what is not given is the engine's to decide."""
    linking, detection, python = (build.get(key, {}) for key in ("dynamic_linking", "prefix_detection", "python"))
    forced, ignored = detection.get("force_file_type", {}), requirements.get("ignore_run_exports", {})
    files, binaries = build.get("files"), detection.get("ignore_binary_files")
    return BuildSettings(
        linking=LinkingSettings(
            rpaths=tuple(linking.get("rpaths", ())),
            missing_dso_allowlist=tuple(linking.get("missing_dso_allowlist", ())),
            rpath_allowlist=tuple(linking.get("rpath_allowlist", ())),
            error_overlinking=_IS_ERROR.get(linking.get("overlinking_behavior")),
            error_overdepending=_IS_ERROR.get(linking.get("overdepending_behavior")),
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


# The keys of ``about`` and of ``run_exports``, and what conda-build calls them.
_ABOUT = {"homepage": "home", "repository": "dev_url", "documentation": "doc_url"}
_EXPORTS = {"weak_constraints": "weak_constrains", "strong_constraints": "strong_constrains"}
_SHARED: dict[tuple[object, ...], RecipeV1] = {}


def render_v1(feedstock: Feedstock, config: BuildConfig, build_platform: str) -> RenderedConfig:
    """Return every output of a config, in the order in which they can be built."""
    recipe = cached_recipe_v1(feedstock)
    space = variant_space_of_config(feedstock, config)
    rendering = RecipePackages(recipe, space, config.platform, build_platform)
    identities = BuildIdentities(rendering.pinned_package)
    loops = sorted(space.varying_keys)
    packages = tuple(rendering.packages())
    stagings, staging_names = staging_outputs(packages, feedstock.recipe, loops)
    scripts = RecipeScriptReader(recipe_folder=feedstock.recipe, several=recipe.has_outputs)
    outputs: dict[tuple[str, ...], Output] = {}
    for package in packages:
        identity = identities.identity_of(package)
        require_valid_names(package, identity)
        output = replace(
            _output_from_package(package, identity, loops, scripts), staging=staging_names.get(id(package))
        )
        outputs.setdefault((output.name, output.version, output.build_string, output.subdir), output)
    return RenderedConfig(
        config=config,
        name=recipe.recipe_name_at(packages[0]) if packages else "",
        stagings=stagings,
        outputs=tuple(outputs.values()),
        network=steps_with_network(packages[0].sections.get("extra")) if packages else (),
        plan_command=compile_plan_command(packages[0].sections.get("extra")) if packages else "",
        warnings=tuple(skip_warnings(recipe, config.variant).values()),
        file=RECIPE,
    )


def cached_recipe_v1(feedstock: Feedstock) -> RecipeV1:
    """Return the recipe, shared between the configs of one process while it does not change."""
    key = (feedstock.recipe_v1, file_content_stamp(feedstock.recipe_v1))
    if key not in _SHARED:
        _SHARED.clear()
        _SHARED[key] = RecipeV1.read(feedstock.recipe_v1)
    return _SHARED[key]


def variant_space_of_config(feedstock: Feedstock, config: BuildConfig) -> Space:
    """Return the variants of a config: its file's, and what a variant file of the recipe gives besides.

    Raises:
        KilnError: a variant file is at fault.
    """
    spec: dict[str, Any] = {key: list(values) for key, values in config.variant.items()}
    groups = [list(group) for group in config.zip_keys]
    variant_source = _recipe_variant_source(feedstock, config.platform)
    if variant_source is not None:
        more = {
            key: value for key, value in variant_source.values.items() if key not in spec and isinstance(value, list)
        }
        groups += [group for group in more.pop("zip_keys", []) if more.keys() >= set(group)]
        spec = {**more, **spec}
    spec.setdefault("target_platform", [config.platform])
    return Space.from_spec({**spec, **({"zip_keys": groups} if groups else {})})


def _recipe_variant_source(feedstock: Feedstock, subdir: str) -> VariantSource | None:
    """Return the one variant file next to the recipe that rattler-build takes."""
    system, _, arch = subdir.partition("-")
    platform = Platform(system=system, arch=arch)
    new, old = feedstock.recipe / "variants.yaml", feedstock.recipe / "conda_build_config.yaml"
    if new.is_file():
        own = VariantFileV1(new, "recipe/variants.yaml")
        return own.source_for_platform(platform, own.keys)
    if old.is_file():
        file = load_variant_file(old, "recipe/conda_build_config.yaml")
        return file.source_for_platform(platform, file.keys)
    return None


def _output_from_package(
    package: PackageAtVariant, identity: BuildIdentity, loops: Sequence[str], scripts: RecipeScriptReader
) -> Output:
    sections, build = package.sections, package.sections["build"]
    needs, exports = sections["requirements"], _run_exports_by_kind(sections["requirements"].get("run_exports", {}))
    linking, detection = build.get("dynamic_linking", {}), build.get("prefix_detection", {})
    relocation, extra, files = linking.get("binary_relocation"), sections.get("extra"), build.get("files")
    down = build.get("variant", {}).get("down_prioritize_variant") or 0
    return Output(
        name=package.name.lower(),
        version=package.version,
        build_number=build.get("number", 0),
        build_string=identity.build_string,
        subdir="noarch" if package.noarch else package.scope.target,
        noarch=package.noarch,
        requirements=Requirements(
            build=spec_texts(needs.get("build", ())),
            host=spec_texts(needs.get("host", ())),
            run=spec_texts(needs.get("run", ())),
            run_constrained=spec_texts(needs.get("run_constraints", ())),
            versions=requirement_versions_from_variant(needs, package.scope),
        ),
        # A solver avoids a package with features, one for each step down.
        track_features=tuple(f"{package.name.lower()}-p-{step}" for step in range(abs(down))),
        run_exports={kind: spec_texts(given) for kind, given in exports.items()},
        run_exports_bare=isinstance(needs.get("run_exports"), list),
        tests=tuple(output_tests(sections["tests"], scripts)),
        script=scripts.script_from_section(build.get("script"), default=not scripts.several),
        script_env=script_secret_names(build.get("script")),
        entry_points=tuple(build.get("python", {}).get("entry_points", ())),
        files=tuple(files.get("include", ()) if isinstance(files, dict) else files or ()),
        about={_ABOUT.get(key, key): about_field_value(value) for key, value in sections["about"].items()},
        used=identity.hash_input,
        platform=package.scope.target,
        pins=tuple(_open_pins(needs, exports, sections["tests"])),
        variant={key: str(package.scope.variant[key]) for key in loops},
        binary_relocation=tuple(relocation) if isinstance(relocation, list) else relocation is not False,
        detect_binary_files_with_prefix=detection.get("ignore_binary_files") is not True,
        sources=tuple(source_from_entry(entry) for entry in sections["source"]),
        staged_exports=package.staging is None or package.staging.run_exports,
        settings=build_settings(build, needs),
        extra=dict(extra or {}),
    )


def _run_exports_by_kind(given: Mapping[str, Any] | Sequence[Requirement]) -> dict[str, Sequence[Requirement]]:
    if isinstance(given, dict):
        return {_EXPORTS.get(str(kind), str(kind)): specs for kind, specs in given.items()}
    return {"weak": list(given)} if given else {}


def _open_pins(
    needs: Mapping[str, Any], exports: Mapping[str, Sequence[Requirement]], given: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, int, Pin]]:
    fields = {
        **{section: needs.get(section, ()) for section in ("build", "host", "run")},
        "run_constrained": needs.get("run_constraints", ()),
        **{f"run_exports/{kind}": specs for kind, specs in exports.items()},
        **{f"tests/{number}": test.get("requirements", {}).get("run", ()) for number, test in enumerate(given)},
    }
    for field, entries in fields.items():
        yield from ((field, index, item) for index, item in enumerate(entries) if isinstance(item, Pin))
