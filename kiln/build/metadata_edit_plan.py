"""The changes to the metadata of a package that conda-build would have written: plain values of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.build import recipe_files_in_info, test_files_in_info

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.rendered import Output

# The keys of ``about`` that are lists in about.json, whatever the recipe has, by FIELDS in conda_build/metadata.py.
LISTS = ("identifiers", "keywords", "tags")
# Facts about a build, which a recipe cannot state: its commit, its repository and the run of its CI.
_OF_THE_BUILD = frozenset({"flow_run_id", "remote_url", "sha"})
_NOT_METADATA = ("recipe_log_file",)  # conda-build has no such field, and reads it nevertheless


def about_and_hash_edits(output: Output) -> dict[str, Any]:
    """Return what a package's metadata needs besides the engine's.

    ``about`` and ``extra`` are added to about.json, without what a recipe says of its own build; ``hash_input`` are the
    values whose hash the build string has,
    ``no_link`` are globs of files that are never linked, and
    ``without_recipe`` is true when the package must not contain its recipe.
    """
    setting = {} if output.settings.by_engine else output.about
    about = {key: value for key, value in setting.items() if value and key not in _NOT_METADATA}
    edits = {
        "about": {key: _about_json_value(key, value) for key, value in about.items()},
        "extra": {key: value for key, value in output.extra.items() if key not in _OF_THE_BUILD},
        "no_link": list(output.settings.no_link),
        "without_recipe": not output.settings.include_recipe,
    }
    return {"hash_input": dict(output.used), **{key: value for key, value in edits.items() if value}}


def recipe_and_test_edits(output: Output, recipe_folder: Path, *, sources: Path, about: Path) -> dict[str, Any]:
    """Return the changes that give a package its recipe and its tests, in conda-build's layout.

    ``files`` are the planned files of ``info``, ``sections`` those of the rendered recipe; ``link`` is the content of
    link.json, and ``prefix_files`` the globs of the only files in which the prefix is replaced. ``sources`` is the
    folder of the source files that tests use, ``about`` that of the files that ``about`` names. Packages of a
    recipe.yaml keep the engine's layout, with the recipe as it is in the feedstock.
    """
    if output.settings.by_engine:
        return {"files": recipe_files_in_info.recipe_yaml_file_entries(output, recipe_folder)}
    recipe = recipe_files_in_info.recipe_file_entries(output, recipe_folder) if output.settings.include_recipe else []
    edits = {
        "files": [
            *recipe,
            {"to": ".", "tree": str(about), "patterns": ["*"]},  # see `readme_and_messages_in_info`
            *test_files_in_info.test_file_entries(output, recipe_folder, sources),
        ],
        "link": {"noarch": {"type": output.noarch}, "package_metadata_version": 1}
        if output.noarch == "generic"
        else {},
        "prefix_files": _prefix_replacement_globs(output),
    }
    return {
        "sections": recipe_files_in_info.evaluated_recipe_sections(output),
        **{key: value for key, value in edits.items() if value},
    }


def _prefix_replacement_globs(output: Output) -> dict[str, list[str]]:
    """Return the globs of the only text files, and of the only binaries, in which the prefix is replaced.

    As in conda-build, a list of binaries ends the detection of others, unless the recipe asks for it.
    """
    prefix = output.settings.prefix
    detected = output.sections.get("build", {}).get("detect_binary_files_with_prefix") is not None
    binary = () if detected and output.detect_binary_files_with_prefix else prefix.binary
    lists = {"text": prefix.text, "binary": binary}
    return {mode: list(globs) for mode, globs in lists.items() if globs}


def _about_json_value(key: str, value: str | tuple[str, ...]) -> str | list[str]:
    if isinstance(value, str):
        return [value] if key in LISTS else value
    return list(value)
