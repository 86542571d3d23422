"""Requirement texts: their package names, and the versions from the variant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.errors import RecipeFault
from kiln.lazy_pattern import lazy_pattern
from kiln.matchspec_notation import with_version_wildcard

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_XX = lazy_pattern(r"([0-9a-zA-Z\.\-\_]+)\s+x\.x")
_NAME = lazy_pattern(r"[^\s=<>!~\[(]+")
SECTIONS = ("build", "host", "run", "run_constrained")


def spec_package_name(spec: str) -> str:
    """Return the package name of a spec, without its channel."""
    text = spec.strip().rpartition("::")[2]
    match = _NAME.match(text)
    return match.group().lower() if match else ""


def requirement_texts(value: Any, where: str) -> list[str]:
    """Return a section's requirements as texts.

    Raises:
        RecipeFault: an entry is not text.
    """
    items = value if isinstance(value, list) else [] if value is None else [value]
    for item in items:
        if isinstance(item, (dict, list)):
            what = f"{where} holds a {'mapping' if isinstance(item, dict) else 'list'} instead of text"
            raise RecipeFault(what, why=f"it is {str(item)[:80]}", hint="quote it if it is text")
    return [str(item) for item in items if item is not None]


def requirements_by_section(value: Any) -> dict[str, list[str]]:
    """Return the requirements by section; a bare list counts as both ``host`` and ``run``."""
    if isinstance(value, dict):
        return {str(section): _specs_of_section(str(section), specs) for section, specs in value.items()}
    specs = requirement_texts(value, "requirements")
    return {"host": list(specs), "run": list(specs)} if specs else {}


def _specs_of_section(section: str, value: Any) -> list[str]:
    # conda-build ignores unknown sections, whatever their values.
    if section in SECTIONS:
        return requirement_texts(value, f"requirements/{section}")
    return [str(item) for item in (value if isinstance(value, list) else [value]) if item is not None]


def with_variant_versions(requirements: Mapping[str, list[str]], variant: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the requirements with the variant's versions after bare names.

    In ``run``, only a name that is bare in ``build`` or ``host`` gets one. ``name x.x`` takes the variant's version.
    """
    sections_by_name = {section: list(specs) for section, specs in requirements.items()}
    for section in ("build", "host", "run"):
        bare = {*sections_by_name.get("build", ()), *sections_by_name.get("host", ())}
        specs = [_spec_with_variant_version(spec, variant, section, bare) for spec in sections_by_name.get(section, ())]
        if specs:
            sections_by_name[section] = specs
    return sections_by_name


def _spec_with_variant_version(spec: str, variant: Mapping[str, Any], section: str, bare: set[str]) -> str:
    name = spec.strip()
    key = name.replace("-", "_")
    if key in variant and spec.startswith(name) and (section != "run" or name in bare):
        value = variant[key]
        if not isinstance(value, dict):
            return with_version_wildcard(f"{name} {value if isinstance(value, str) else next(iter(value), '')}")
    if xx := _XX.match(spec):
        version = variant.get(xx[1])
        if version is None:
            raise RecipeFault(f"{spec!r} needs a version from the variant, which has none", hint=f"give {xx[1]}")
        return with_version_wildcard(f"{xx[1]} {version}")
    return spec


def specs_without_package(specs: Iterable[str], name: str) -> list[str]:
    """Return the specs that are not of a package."""
    return [spec for spec in specs if not (spec.startswith(name) and spec[len(name) : len(name) + 1].strip() == "")]
