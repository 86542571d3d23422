"""From the recipe's values to each output's own: what it says itself, and what it takes over from the recipe's top.

The rules of inheritance are conda-build's (conda_build/metadata.py); they have grown, and each is kept as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import RecipeFault
from kiln.recipe.regions import region
from kiln.recipe.specs import sections, with_versions, without

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kiln.recipe.metadata import Metadata

Values = dict[str, "Any"]


def outputs_of(top: Metadata) -> list[tuple[Values, Values]]:
    """Every output entry with the values of its package, in the recipe's order.

    Raises:
        RecipeFault: an entry is malformed.
    """
    values: Values = dict(top.values)
    entries = [dict(entry) for entry in top.recipe.outputs_of(top.values)]
    if not entries:
        entries = [{"name": top.name}]
    elif not any(entry.get("name", "") == top.name for entry in entries) and _needs_metapackage(top, entries):
        entries.append({"name": top.name})
    for entry in entries:
        if entry.get("name") == top.name and top.text().is_top:
            _merge_with_top(values, entry)
    found = []
    for entry in entries:
        _insert_versions(top, values, entry)
        found.append((entry, _values(top, values, entry)))
    return found


def listed(top: Metadata, entries: list[Values]) -> list[tuple[str, str | None]]:
    """Each entry's name and type, by which its block of text is found."""
    return [(str(entry.get("name", top.name)), kind_of(entry)) for entry in entries]


def kind_of(entry: Mapping[str, Any]) -> str | None:
    """What kind of package an output is, such as ``wheel``; None where it says nothing."""
    given = entry.get("type")
    return None if given is None else str(given)


def _needs_metapackage(top: Metadata, entries: list[Values]) -> bool:
    """Whether the recipe's top is a package itself, because its requirements name an output."""
    names = {str(entry["name"]) for entry in entries if entry.get("name")}
    if any(spec.strip() and spec.split()[0] in names for spec in top.depends("run")):
        return True
    return region(top.recipe.text(top.names)).pins_subpackage


def _merge_with_top(values: Values, entry: Values) -> None:
    """Join the recipe's top and the output of its name; where both say something, the output wins, in both."""
    for section in ("requirements", "build", "about"):
        own = _section(entry, section)
        inherited = _mapping(values.get(section))
        merged = {**own, **{key: value for key, value in inherited.items() if key not in own}}
        entry[section] = values[section] = merged


def _section(entry: Values, section: str) -> Values:
    given = entry.get(section)
    return dict(sections(given)) if section == "requirements" else dict(_mapping(given))


def _mapping(value: Any) -> Mapping[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    raise RecipeFault(f"a section is {str(value)[:40]!r}, which is no mapping", hint="write keys below it, one a line")


def _insert_versions(top: Metadata, values: Values, entry: Values) -> None:
    if not entry.get("requirements"):
        return
    shared = values.get("requirements") is entry["requirements"]
    entry["requirements"] = with_versions(sections(entry["requirements"]), top.variant)
    if shared:
        values["requirements"] = entry["requirements"]


def _values(top: Metadata, values: Values, entry: Values) -> Values:
    """The values of an output's package."""
    if entry.get("name") == top.name:
        return dict(values)
    found = dict(values)
    found["package"] = {
        **_mapping(values.get("package")),
        "name": entry.get("name", top.name),
        "version": entry.get("version") or top.version,
    }
    found["requirements"] = _requirements(entry)
    found["build"] = _build(top, values, entry)
    found["test"] = _test(values, entry)
    if "about" in entry:
        found["about"] = entry["about"]
    return found


def _requirements(entry: Values) -> dict[str, list[str]]:
    """An output's own requirements, without itself."""
    found = {}
    for section, specs in sections(entry.get("requirements") or {}).items():
        own = section in {"build", "host", "run"} and "name" in entry
        kept = without(specs, str(entry["name"])) if own else specs
        if kept or section not in {"build", "host", "run", "run_constrained"}:
            found[section] = kept
    return found


def _build(top: Metadata, values: Values, entry: Values) -> Values:
    """An output's ``build`` section; without one it has the recipe's, less what belongs to a single package."""
    inherited = dict(_mapping(values.get("build")))
    if "build" in entry:
        own = dict(_mapping(entry["build"]))
        own.setdefault("number", entry.get("number", inherited.get("number") or top.build_number))
        return own
    for key in ("entry_points", "run_exports", "script"):
        inherited.pop(key, None)
        if key in entry:
            inherited[key] = entry[key]
    inherited["noarch"] = entry.get("noarch", False)
    inherited["noarch_python"] = entry.get("noarch_python", False)
    for key in ("number", "string"):
        if key in entry:
            inherited[key] = entry[key]
    for key in ("run_exports", "track_features", "features"):
        if entry.get(key):
            inherited[key] = entry[key]
    return inherited


def _test(values: Values, entry: Values) -> Any:
    """An output's ``test`` section; without one it has the recipe's, less its commands and imports."""
    if "test" in entry:
        return entry["test"]
    return {key: value for key, value in _mapping(values.get("test")).items() if key not in {"commands", "imports"}}
