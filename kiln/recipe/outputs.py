"""The values of each output: its own, and those that it inherits from the recipe's top.

The rules of inheritance are conda-build's (conda_build/metadata.py), irregularities included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.errors import RecipeFault
from kiln.recipe.requirement_texts import requirements_by_section, specs_without_package, with_variant_versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.recipe.metadata import Metadata

Values = dict[str, "Any"]


def output_entries_with_values(top: Metadata) -> list[tuple[Values, Values]]:
    """Return every output entry with the values of its package, in the recipe's order.

    Raises:
        RecipeFault: an entry is malformed.
    """
    values: Values = dict(top.values)
    entries = [dict(entry) for entry in top.recipe.output_entries(top.values)]
    if not entries:
        entries = [{"name": top.name}]
    elif not any(entry.get("name", "") == top.name for entry in entries) and _needs_metapackage(top, entries):
        entries.append({"name": top.name})
    for entry in entries:
        _require_mapping(
            entry.get("test")
        )  # conda-build takes that of its own name from the recipe's top, whatever this is
        if entry.get("name") == top.name and top.package_text().has_package_section:
            _merge_with_top(values, entry)
    pairs = []
    for entry in entries:
        _insert_variant_versions(top, values, entry)
        pairs.append((entry, _output_values(top, values, entry)))
    return pairs


def output_names_and_types(top: Metadata, entries: list[Values]) -> list[tuple[str, str | None]]:
    """Return each entry's name and type, which identify its block of text."""
    return [(str(entry.get("name", top.name)), output_type(entry)) for entry in entries]


def output_type(entry: Mapping[str, Any]) -> str | None:
    """Return an output's package type, such as ``wheel``; None without ``type``."""
    value = entry.get("type")
    return None if value is None else str(value)


def _needs_metapackage(top: Metadata, entries: list[Values]) -> bool:
    """Return whether the recipe's top is itself a package, because its requirements name an output."""
    names = {str(entry["name"]) for entry in entries if entry.get("name")}
    if any(spec.strip() and spec.split()[0] in names for spec in top.requirements_of_section("run")):
        return True
    return top.selected_text.pins_subpackage


def _merge_with_top(values: Values, entry: Values) -> None:
    """Merge the recipe's top and the output of its name; the output's values take precedence, in both."""
    for section in ("requirements", "build", "about"):
        value = entry.get(section)
        section_values = requirements_by_section(value) if section == "requirements" else _require_mapping(value)
        inherited = _require_mapping(values.get(section))
        merged = {**section_values, **{key: value for key, value in inherited.items() if key not in section_values}}
        entry[section] = values[section] = merged


def _require_mapping(value: Any) -> Mapping[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    raise RecipeFault(
        f"a section is {str(value)[:40]!r}, which is not a mapping", hint="write keys below it, one a line"
    )


def _insert_variant_versions(top: Metadata, values: Values, entry: Values) -> None:
    if not entry.get("requirements"):
        return
    shared = values.get("requirements") is entry["requirements"]
    entry["requirements"] = with_variant_versions(requirements_by_section(entry["requirements"]), top.variant)
    if shared:
        values["requirements"] = entry["requirements"]


def _output_values(top: Metadata, values: Values, entry: Values) -> Values:
    """Return the values of an output's package."""
    if entry.get("name") == top.name:
        return dict(values)
    output_values = dict(values)
    output_values["package"] = {
        **_require_mapping(values.get("package")),
        "name": entry.get("name", top.name),
        "version": entry.get("version") or top.version,
    }
    output_values["requirements"] = _output_requirements(entry)
    output_values["build"] = _output_build_section(top, values, entry)
    output_values["test"] = _output_test_section(values, entry)
    if "about" in entry:
        output_values["about"] = entry["about"]
    return output_values


def _output_requirements(entry: Values) -> dict[str, list[str]]:
    """Return an output's own requirements, without the output itself."""
    specs_by_section = {}
    for section, specs in requirements_by_section(entry.get("requirements") or {}).items():
        may_contain_itself = section in {"build", "host", "run"} and "name" in entry
        remaining = specs_without_package(specs, str(entry["name"])) if may_contain_itself else specs
        if remaining or section not in {"build", "host", "run", "run_constrained"}:
            specs_by_section[section] = remaining
    return specs_by_section


def _output_build_section(top: Metadata, values: Values, entry: Values) -> Values:
    """Return an output's ``build`` section; without one, the recipe's minus the keys of a single package."""
    inherited = dict(_require_mapping(values.get("build")))
    if "build" in entry:
        section = dict(_require_mapping(entry["build"]))
        section.setdefault("number", entry.get("number", inherited.get("number") or top.build_number))
        return section
    for key in ("entry_points", "run_exports", "script"):
        inherited.pop(key, None)
        if key in entry:
            inherited[key] = entry[key]
    inherited["noarch"] = entry.get("noarch", False)
    inherited["noarch_python"] = entry.get("noarch_python", False)
    given = {key: entry[key] for key in ("number", "string") if key in entry}
    kept = ("run_exports", "track_features", "features", "python_version_independent")
    inherited.update(given | {key: entry[key] for key in kept if entry.get(key)})
    return inherited


def _output_test_section(values: Values, entry: Values) -> Any:
    """Return an output's ``test`` section; without one, the recipe's minus its commands and imports."""
    if "test" in entry:
        return entry["test"]
    return {
        key: value for key, value in _require_mapping(values.get("test")).items() if key not in {"commands", "imports"}
    }
