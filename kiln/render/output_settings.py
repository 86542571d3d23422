"""The build settings, tests and metadata of an output, from a package's metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.errors import RecipeFault
from kiln.lazy_pattern import lazy_pattern
from kiln.model.output_build_settings import BuildSettings, LinkingSettings, PrefixSettings, PythonSettings
from kiln.variants.files import as_list

if TYPE_CHECKING:
    from kiln.recipe.metadata import Metadata

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

    Raises:
        RecipeFault: when the file that ``test/script`` names is not there, or is of no known kind.
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
    """Return the link scripts of a package by kind: those that ``build`` names, else those of the usual names.

    Raises:
        RecipeFault: when a named script is not there.
    """
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
