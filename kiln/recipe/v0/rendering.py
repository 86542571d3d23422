"""The parts of a rendered config, from a package's metadata."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kiln.base.errors import RecipeFault
from kiln.base.patterns import file_name_of_url, is_archive, is_channel_subdir, is_wheel, lazy_pattern
from kiln.recipe.rendered import (
    BuildSettings,
    Checkout,
    LinkingSettings,
    Output,
    OutputTest,
    Pin,
    PrefixSettings,
    PythonSettings,
    Requirements,
    Script,
    Source,
    Staging,
)
from kiln.recipe.v0.used_keys import (
    CONTENT_HASHES,
    FURTHER_HASHES,
    SECTIONS,
    requirements_by_section,
    with_variant_versions,
)
from kiln.recipe.variants.files import as_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kiln.recipe.v0.metadata import Metadata


LINK_SCRIPTS = ("pre-link", "post-link", "pre-unlink")
_COMPILER = lazy_pattern(r"\{\{\s*compiler\(.*\)\s*\}\}")
# The endings of scripts that test a package, in the order in which conda-build runs them.
TEST_SCRIPTS = (".py", ".pl", ".r", ".lua", ".sh")


def item_texts(value: Any) -> tuple[str, ...]:
    """Return a value's items as texts, without empty ones."""
    return tuple(str(item) for item in as_list(value) if item is not None)


def build_settings(package: Metadata) -> BuildSettings:
    """Return the settings of a package."""

    def texts_of_first_set_key(*keys: str) -> tuple[str, ...]:
        """Return the first of the keys that has a value, as conda-build takes the newer name before the older."""
        values = (package.section_value("build", key) for key in keys)
        return item_texts(next((value for value in values if value is not None), None))

    files = package.output_entry.get("files")
    return BuildSettings(
        linking=LinkingSettings(
            rpaths=texts_of_first_set_key("rpaths"),
            missing_dso_allowlist=texts_of_first_set_key("missing_dso_allowlist", "missing_dso_whitelist"),
            rpath_allowlist=texts_of_first_set_key("runpath_allowlist", "runpath_whitelist"),
            overlinking_ignored=texts_of_first_set_key("overlinking_ignore_patterns"),
            error_overlinking=truth_value_or_none(package.section_value("build", "error_overlinking")),
            error_overdepending=truth_value_or_none(package.section_value("build", "error_overdepending")),
        ),
        prefix=PrefixSettings(
            text=texts_of_first_set_key("has_prefix_files"),
            binary=texts_of_first_set_key("binary_has_prefix_files"),
            ignore=_ignored_prefix_files(package),
        ),
        python=PythonSettings(
            skip_pyc=texts_of_first_set_key("skip_compile_pyc"),
            version_independent=_is_version_independent(package),
            site_packages_path=text_or_none(package.section_value("build", "python_site_packages_path")),
            app_entry_points=bool(truth_value_or_none(package.section_value("build", "osx_is_app"))),
            keep_eggs=bool(truth_value_or_none(package.section_value("build", "preserve_egg_dir"))),
        ),
        always_include_files=texts_of_first_set_key("always_include_files"),
        merge_build_host=merges_build_and_host(package),
        ignore_run_exports=texts_of_first_set_key("ignore_run_exports"),
        ignore_run_exports_from=texts_of_first_set_key("ignore_run_exports_from"),
        link_scripts=_link_script_files(package),
        excluded_files=item_texts(files.get("exclude")) if isinstance(files, dict) else (),
        no_link=texts_of_first_set_key("no_link"),
        features=texts_of_first_set_key("features"),
        feature_values=_provided_and_required_features(package),
        include_recipe=truth_value_or_none(package.section_value("build", "include_recipe")) is not False,
    )


def merges_build_and_host(package: Metadata) -> bool:
    """Return whether the build requirements are installed into the host prefix.

    Without ``merge_build_host``, those of a recipe that has neither ``host`` nor a compiler (``build_is_host`` in
    conda_build/metadata.py).
    """
    merged = truth_value_or_none(package.section_value("build", "merge_build_host"))
    if merged is not None:
        return merged
    platform = package.recipe.platform
    native = platform.build in {"", platform.subdir}
    old = "host" not in package.requirements and not _COMPILER.search(package.package_text().first_requirements_section)
    return native and old and bool(package.requirements.get("build"))


def included_files(package: Metadata) -> tuple[str, ...]:
    """Return the globs of an output's ``files``: a list, or a mapping with ``include`` and ``exclude``."""
    files = package.output_entry.get("files")
    return item_texts(files.get("include") if isinstance(files, dict) else files)


def test_script_files(package: Metadata) -> dict[str, str]:
    """Return the files of the recipe that test a package, by the names that they have in its test.

    A recipe's own package takes ``run_test.*``, another output what its ``test/script`` names (conda-build's
    create_test.py).
    """
    folder = package.recipe.source.path.parent
    if not package.is_output:
        return {name: name for ending in TEST_SCRIPTS if (folder / (name := f"run_test{ending}")).is_file()}
    test = package.output_entry.get("test")
    script = test.get("script") if isinstance(test, dict) else None
    if not script:
        return {}
    ending = next((ending for ending in TEST_SCRIPTS if str(script).endswith(ending)), None)
    if ending is None or not _exists_in_recipe_folder(package, str(script)):
        raise RecipeFault(
            f"{package.name}: test/script is {str(script)[:80]!r}",
            at=package.recipe.place_of_section("outputs"),
            why="it is not a file of the recipe that ends in " + ", ".join(TEST_SCRIPTS),
        )
    return {f"run_test{ending}": str(script)}


def _link_script_files(package: Metadata) -> dict[str, str]:
    """Return the link scripts of a package by kind: those that ``build`` names, else those of the usual names."""
    scripts = {}
    for kind in LINK_SCRIPTS:
        named = package.section_value("build", kind)
        usual = f"{package.name}-{kind}" if package.is_output else kind
        file = f"{named or usual}.sh"
        if _exists_in_recipe_folder(package, file):
            scripts[kind] = file
        elif named and not _exists_in_recipe_folder(package, f"{named or usual}.bat"):
            raise RecipeFault(
                f"{package.name}: build/{kind} names {file}, which is not in the recipe",
                at=package.place_of_section("build"),
                hint="give the file's name without its ending",
            )
    return scripts


def _exists_in_recipe_folder(package: Metadata, name: str) -> bool:
    source = package.recipe.source
    path = source.path.parent / name
    return path.is_file() and path.resolve().is_relative_to(source.folder)


def _is_version_independent(package: Metadata) -> bool:
    """Return whether a package with binaries is for all versions of Python."""
    if package.noarch or package.sets_build_noarch_python:
        return False
    return bool(truth_value_or_none(package.section_value("build", "python_version_independent")))


def _ignored_prefix_files(package: Metadata) -> bool | tuple[str, ...]:
    value = package.section_value("build", "ignore_prefix_files")
    return item_texts(value) if isinstance(value, list) else bool(truth_value_or_none(value))


def _provided_and_required_features(package: Metadata) -> dict[str, dict[str, str]]:
    """Return the features with values that a package requires or provides, by their keys in index.json."""
    values = {key: package.section_value("build", key) for key in ("provides_features", "requires_features")}
    return {key: {str(k): str(v) for k, v in value.items()} for key, value in values.items() if isinstance(value, dict)}


def truth_value_or_none(value: Any) -> bool | None:
    """Return whether a value of a recipe means yes; None without a value."""
    return None if value is None else str(value).lower() not in {"false", "no", "off", "0", ""}


def text_or_none(value: Any) -> str | None:
    """Return a value of a recipe as text; None without a value."""
    return None if value is None else str(value)


_TESTED = ("commands", "requires", "files", "source_files")
TRUE = frozenset({"yes", "true", "1", "on"})
_LANGUAGES = {"r": "r", "perl": "perl", "lua": "lua"}


def mapping_section(package: Metadata, section: str) -> Mapping[str, Any]:
    """Return a section that must be a mapping."""
    value = package.values.get(section) or {}
    if not isinstance(value, dict):
        what = f"{package.name}: the section {section!r} is not a mapping"
        raise RecipeFault(what, at=package.place_of_section(section))
    return value


def requirements_from_sections(value: Mapping[str, list[str]]) -> Requirements:
    """Return the requirements by the four sections of packages."""
    sections: dict[str, Any] = {section: tuple(value.get(section, ())) for section in SECTIONS}
    return Requirements(**sections)


def output_from_package(
    package: Metadata, *, variant: Mapping[str, str], pins: tuple[tuple[str, int, Pin], ...]
) -> Output:
    """Return the output of a package."""
    exports = package.section_value("build", "run_exports")
    return Output(
        name=package.name,
        version=package.version,
        build_number=package.build_number,
        build_string=package.build_string,
        subdir=_package_subdir(package),
        noarch=_noarch_kind(package),
        requirements=requirements_from_sections(package.requirements),
        track_features=item_texts(package.section_value("build", "track_features")),
        run_exports=run_exports(exports),
        run_exports_bare=not isinstance(exports, dict),
        tests=output_tests(package),
        script=package_script(package),
        entry_points=item_texts(package.section_value("build", "entry_points")),
        files=included_files(package),
        about={
            str(key): about_field_value(value)
            for key, value in mapping_section(package, "about").items()
            if value is not None
        },
        used={key: str(value) for key, value in package.hash_input.items()},
        skip=package.skip,
        platform=package.host_subdir,
        pins=pins,
        variant=variant,
        script_env=item_texts(package.section_value("build", "script_env")),
        binary_relocation=binary_relocation(package.section_value("build", "binary_relocation")),
        detect_binary_files_with_prefix=_is_true_or_missing(
            package.section_value("build", "detect_binary_files_with_prefix")
        ),
        settings=build_settings(package),
        extra=dict(mapping_section(package, "extra")),
        single=frozenset(_fields_with_single_value(package)),
        is_output=package.is_output,
        sections=package.values,
        all_keys=dict(package.variant),
    )


def about_field_value(value: Any) -> str | tuple[str, ...]:
    """Return a value of the ``about`` section."""
    return item_texts(value) if isinstance(value, list) else str(value)


def _package_subdir(package: Metadata) -> str:
    """Return the channel folder of a package: its ``target``, if any."""
    target = package.output_entry.get("target")
    if target and not is_channel_subdir(str(target)):
        what = f"{package.name}: target is {str(target)[:40]!r}, which is not a subdir of conda's"
        raise RecipeFault(what, at=package.recipe.place_of_section("outputs"))
    return str(target or ("noarch" if package.noarch or package.sets_build_noarch_python else package.host_subdir))


def _noarch_kind(package: Metadata) -> str | None:
    """Return the kind of a package without an architecture; ``noarch: true`` is a generic one."""
    if package.noarch is True:
        return "generic"
    return str(package.noarch) if package.noarch else "python" if package.sets_build_noarch_python else None


def _fields_with_single_value(package: Metadata) -> Iterator[str]:
    """Yield the fields whose values conda-build leaves as text or as true, and the legacy ``noarch_python``."""
    exports = package.section_value("build", "run_exports")
    kinds = exports.items() if isinstance(exports, dict) else ()
    yield from (f"run_exports/{kind}" for kind, specs in kinds if isinstance(specs, str))
    if isinstance(exports, str):
        yield "run_exports"
    section = mapping_section(package, "test")
    yield from (f"test/{key}" for key in ("imports", *_TESTED) if isinstance(section.get(key), str))
    if package.noarch is True:
        yield "noarch"
    if package.sets_build_noarch_python and not package.noarch:
        yield "noarch_python"


def binary_relocation(value: Any) -> bool | tuple[str, ...]:
    """Return ``binary_relocation``: true for all binaries (the default), false for none, or globs."""
    return item_texts(value) if isinstance(value, list) else _is_true_or_missing(value)


def _is_true_or_missing(value: Any) -> bool:
    return value is None or str(value).lower() not in {"false", "no", "off", "0"}


def run_exports(value: Any) -> dict[str, tuple[str, ...]]:
    """Return run exports by kind; a bare list is ``weak``. A kind without any line stays, as an empty tuple."""
    if isinstance(value, dict):
        return {str(kind): item_texts(specs) for kind, specs in value.items()}
    return {"weak": item_texts(value)} if item_texts(value) else {}


def output_tests(package: Metadata) -> tuple[OutputTest, ...]:
    """Return the ``test`` section, which is one test; its imports are in the language of the package's name."""
    section = mapping_section(package, "test")
    commands, requires, files, source_files = (item_texts(section.get(key)) for key in _TESTED)
    imports = as_list(section.get("imports"))
    downstreams = section.get("downstreams")
    test = OutputTest(
        imports=item_texts([item for item in imports if not isinstance(item, dict)]),
        modules=_modules_by_language(imports),
        scripts=test_script_files(package),
        script=Script(lines=commands),
        requires=requires,
        files=files,
        source_files=source_files,
        downstreams=item_texts(list(downstreams) if isinstance(downstreams, dict) else downstreams),
    )
    return () if test == OutputTest() else (replace(test, language=_import_language(package.name)),)


def _import_language(package: str) -> str:
    return _LANGUAGES.get(package.partition("-")[0], "python") if "-" in package else "python"


def _modules_by_language(imports: Sequence[Any]) -> dict[str, tuple[str, ...]]:
    modules: dict[str, tuple[str, ...]] = {}
    for item in imports:
        if isinstance(item, dict):
            language = str(item.get("lang", ""))
            modules[language] = (*modules.get(language, ()), *item_texts(item.get("imports")))
    return {language: names for language, names in modules.items() if names}


def package_script(package: Metadata) -> Script:
    """Return the script that makes a package's files after the recipe's build step; a single package has only that."""
    script_name, program = package.output_entry.get("script"), package.output_entry.get("script_interpreter")
    if isinstance(script_name, str) and script_name:
        return Script(file=script_name, program=str(program) if program else None)
    lines = item_texts(script_name) or item_texts(package.section_value("build", "script"))
    if lines:
        return Script(lines=lines)
    return (
        Script() if package.recipe.output_entries(package.values)[1:] or package.is_output else _default_script(package)
    )


def _default_script(package: Metadata) -> Script:
    name = "bld.bat" if package.recipe.platform.system == "win" else "build.sh"
    return Script(file=name) if (package.recipe.source.path.parent / name).is_file() else Script()


def top_level_build_step(top: Metadata, *, several: bool) -> Staging | None:
    """Return the recipe's own build step; None for a single package, and for ``several`` that share nothing."""
    if not top.recipe.output_entries(top.values):
        return None
    lines = item_texts(top.section_value("build", "script"))
    script = Script(lines=lines) if lines else _default_script(top)
    if script == Script() and not (several and recipe_sources(top)):
        return None
    return Staging(
        script=script,
        script_env=item_texts(top.section_value("build", "script_env")),
        requirements=requirements_from_sections(
            with_variant_versions(requirements_by_section(top.values.get("requirements") or {}), top.variant)
        ),
        sources=recipe_sources(top),
        package=(top.name, top.version, top.build_number),
        settings=BuildSettings(merge_build_host=merges_build_and_host(top)),
    )


def steps_with_network(extra: Any) -> tuple[str, ...]:
    """Return the steps whose scripts may reach the network: ``extra: network:``, a name or a list of names."""
    steps = extra.get("network") if isinstance(extra, dict) else None
    return tuple(str(step) for step in as_list(steps) if step)


def compile_plan_command(extra: Any) -> str:
    """Return the command that shows how a config is compiled: ``extra: plan:``; empty without one."""
    command = extra.get("plan") if isinstance(extra, dict) else None
    return " ".join(command.split()) if isinstance(command, str) else ""


def recipe_sources(top: Metadata) -> tuple[Source, ...]:
    """Return the entries of the ``source`` section."""
    return tuple(_source_from_entry(entry) for entry in as_list(top.values.get("source")) if entry)


def _source_from_entry(entry: Mapping[str, Any]) -> Source:
    revision = next((entry[key] for key in ("git_rev", "git_tag", "git_branch") if entry.get(key)), None)
    name = str(entry.get("fn") or "") if entry.get("url") else ""
    archive = is_archive(name) and not is_wheel(name)  # its name decides how it is unpacked, and not that of a copy
    addresses = [file_name_of_url(url) for url in item_texts(entry.get("url"))]
    if set(addresses) == {name} if archive else addresses == [name]:
        name = ""
    return Source(
        url=item_texts(entry.get("url")),
        sha256=_nonempty_text_or_none(entry.get("sha256")),
        md5=_nonempty_text_or_none(entry.get("md5")),
        hashes={key: str(entry[key]) for key in FURTHER_HASHES if entry.get(key)},
        content_hashes={key.removeprefix("content_"): str(entry[key]) for key in CONTENT_HASHES if entry.get(key)},
        content_hash_skip=item_texts(entry.get("content_hash_skip")),
        file_name=name if name and not archive else None,
        archive_name=name if name and archive else None,
        no_hoist="no_hoist" in entry,
        checkout=_hg_or_svn_checkout(entry),
        linked="path_via_symlink" in entry and entry.get("path") is not None,
        git_depth=_git_depth(entry),
        git_url=text_or_none(entry.get("git_url")),
        git_rev=None if revision is None else str(revision),
        path=text_or_none(entry.get("path")),
        folder=text_or_none(entry.get("folder")),
        patches=item_texts(entry.get("patches")),
    )


def _hg_or_svn_checkout(entry: Mapping[str, Any]) -> Checkout | None:
    """Return the Mercurial or Subversion repository of an entry; a file's address or a git repository comes first."""
    if entry.get("url") or entry.get("git_url"):
        return None
    if entry.get("hg_url"):
        return Checkout(program="hg", url=str(entry["hg_url"]), revision=_nonempty_text_or_none(entry.get("hg_tag")))
    if entry.get("svn_url"):
        has_user = "svn_username" in entry and "svn_password" in entry
        return Checkout(
            program="svn",
            url=str(entry["svn_url"]),
            revision=_nonempty_text_or_none(entry.get("svn_rev")),
            externals=str(entry.get("svn_ignore_externals")).lower().strip() not in TRUE,
            user=_nonempty_text_or_none(entry.get("svn_username")) if has_user else None,
            password=_nonempty_text_or_none(entry.get("svn_password")) if has_user else None,
        )
    return None


def _nonempty_text_or_none(value: Any) -> str | None:
    return None if value in (None, "") else str(value)


def _git_depth(entry: Mapping[str, Any]) -> int | None:
    """Return the number of commits to fetch; None for all of them, as conda-build's -1."""
    try:
        depth = int(entry.get("git_depth") or 0)
    except (TypeError, ValueError) as error:
        raise RecipeFault(f"source/git_depth is {str(entry['git_depth'])[:40]!r}", hint="a whole number") from error
    return depth if depth > 0 else None
