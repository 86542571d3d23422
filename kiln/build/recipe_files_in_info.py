"""The recipe that a package carries in ``info/recipe``, in conda-build's layout.

Source: copy_recipe in conda_build/build.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from kiln import __version__, channel_url_credentials
from kiln.yamltext.text_with_typed_value import typed_variant_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kiln.model.rendered import Output

META, TEMPLATE, VARIANT = "meta.yaml", "meta.yaml.template", "conda_build_config.yaml"
VARIANT_V1 = "variant_config.yaml"
# The order of the sections of a rendered recipe, by FIELDS in conda_build/metadata.py; outputs are not shown in it.
SECTIONS = ("package", "source", "build", "requirements", "app", "test", "about", "extra")
# Marks that have conda-build test the package as it is, with the files in info/test.
FINAL = {"final": True, "copy_test_source_files": True}
LOCAL = "file:"
_HEADER = f"""# This file created by kiln {__version__}
# The recipe before rendering: {TEMPLATE}, or parent/{META}
# ------------------------------------------------

"""


def recipe_file_entries(output: Output, recipe_folder: Path) -> list[dict[str, Any]]:
    """Return the entries of the files in ``info/recipe``, but for the rendered recipe, which needs the solved packages.

    They are the variant and the recipe's own files: in its folder, or in ``parent`` for an output of another name, with
    the output's script in the folder of the rendered recipe.
    """
    variant = {
        "to": f"recipe/{VARIANT}",
        "parts": [_yaml_text(variant_without_credentials(output.all_keys), in_order=False)],
    }
    if not output.is_output:
        files = {"to": "recipe", "tree": str(recipe_folder), "patterns": ["*"], "without": [META, VARIANT]}
        template = {"to": f"recipe/{TEMPLATE}", "parts": [file_part_within_folder(recipe_folder / META, recipe_folder)]}
        return [files, template, variant]
    files = {"to": "recipe/parent", "tree": str(recipe_folder), "patterns": ["*"]}
    scripts = [
        {"to": f"recipe/{script}", "parts": [file_part_within_folder(recipe_folder / script, recipe_folder)]}
        for script in filter(None, [output.script.file])
    ]
    return [files, *scripts, variant]


def file_part_within_folder(file: Path, folder: Path) -> dict[str, str]:
    """Return the part of an entry that is a file in a folder, out of which no link may lead."""
    return {"file": str(file), "within": str(folder)}


def recipe_yaml_file_entries(output: Output, recipe_folder: Path) -> list[dict[str, Any]]:
    """Return the entries of the files in ``info/recipe`` of a recipe.yaml, in rattler-build's layout.

    Its own record is of the recipe that kiln gives it; it keeps its rendered recipe, with the solved packages.
    """
    variant = {"to": f"recipe/{VARIANT_V1}", "parts": [_yaml_text(to_builtin_types(output.used), in_order=False)]}
    return [{"to": "recipe", "tree": str(recipe_folder), "patterns": ["*"]}, variant]


def variant_without_credentials(variant: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all variant keys, without credentials and without channels on the building machine."""
    values: dict[str, Any] = to_builtin_types(dict(variant))
    channels = values.get("channel_sources")
    if isinstance(channels, str):
        others = (channel for channel in channels.split(",") if not channel.startswith(LOCAL))
        values["channel_sources"] = ",".join(map(channel_url_credentials.url_without_credentials, others))
    return {key: value for key, value in values.items() if key != "channel_sources" or value}


def evaluated_recipe_sections(output: Output) -> dict[str, Any]:
    """Return the evaluated sections of a recipe for its rendered form, before anything is solved."""
    given = {key: output.sections[key] for key in SECTIONS if key in output.sections}
    if "source" in given:
        given["source"] = _sources_without_passwords(given["source"])
    build = {**(given.get("build") or {}), "number": output.build_number, "string": output.build_string}
    package = {"name": output.name, "version": output.version}
    extra = {**(given.get("extra") or {}), **FINAL}
    values: dict[str, Any] = to_builtin_types({**given, "package": package, "build": build, "extra": extra})
    return values


def _sources_without_passwords(sources: Any) -> Any:
    """Return the source section without the passwords of Subversion, which may come from the environment."""
    if isinstance(sources, list):
        return [_sources_without_passwords(entry) for entry in sources]
    return {k: v for k, v in sources.items() if k != "svn_password"} if isinstance(sources, dict) else sources


def to_builtin_types(value: Any) -> Any:
    """Return a value of a recipe with built-in types, for JSON and YAML."""
    value = typed_variant_value(value)
    if isinstance(value, dict):
        return {str(key): to_builtin_types(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_builtin_types(item) for item in value]
    return value if isinstance(value, bool | int | float) or value is None else str(value)


def rendered_meta_yaml(
    sections: Mapping[str, Any],
    *,
    resolved: Mapping[str, Iterable[tuple[str, str, str]]],
    index: Mapping[str, Any],
    run_exports: Mapping[str, Any],
) -> str:
    """Return the rendered meta.yaml of a finished package.

    ``resolved`` are names, versions and build strings of the packages in ``build`` and ``host``; ``index`` and
    ``run_exports`` are the package's metadata.
    """
    given = sections.get("requirements")
    names = set(given) if isinstance(given, dict) else set()
    merged = "build" in names and "host" not in names and not resolved.get("build")
    solved = {"build": resolved.get("host", ())} if merged else resolved
    requirements = {
        **{name: sorted(map(" ".join, solved.get(name, ()))) for name in ("build", "host")},
        "run": list(index.get("depends", ())),
        "run_constrained": list(index.get("constrains", ())),
    }
    needs = {name: specs for name, specs in requirements.items() if specs or name in names or name == "run"}
    build = {**sections["build"], **_run_exports_with_bounds(sections["build"], run_exports)}
    values = {**sections, "build": build, "requirements": needs}
    ordered = {key: values[key] for key in SECTIONS if values.get(key)}
    return _HEADER + _yaml_text(ordered, in_order=True)


def _run_exports_with_bounds(build: Mapping[str, Any], run_exports: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run exports with their bounds, as a list where the recipe has one."""
    if not run_exports:
        return {}
    by_kind = isinstance(build.get("run_exports"), dict)
    return {"run_exports": dict(run_exports) if by_kind else list(run_exports.get("weak", ()))}


def _yaml_text(value: Mapping[str, Any], *, in_order: bool) -> str:
    return str(yaml.safe_dump(dict(value), sort_keys=not in_order, default_flow_style=False, allow_unicode=True))
