"""Requirement texts: their names, and the versions that variants give them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln.errors import RecipeFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_STAR = re.compile(r"([\w\d\.\-\_]+)\s+((?<![><=])[\w\d\.\-\_]+?(?!\*))(\s+[\w\d\.\_]+)?$")
_XX = re.compile(r"([0-9a-zA-Z\.\-\_]+)\s+x\.x")
_NAME = re.compile(r"[^\s=<>!~\[(]+")
_KNOWN = ("build", "host", "run", "run_constrained")


def with_star(spec: str) -> str:
    """A spec whose plain version may go on: ``gcc 12`` becomes ``gcc 12.*``; others stay as they are."""
    found = _STAR.match(spec)
    if not found or found[3] or "*" in spec:
        return spec
    if found[1] in {"python", "numpy"} and found[2] == "x.x":
        return f"{found[1]} {found[2]}"
    return _STAR.sub(r"\1 \2.*", spec)


def name_of(spec: str) -> str:
    """The package name of a spec, without its channel."""
    text = spec.strip().rpartition("::")[2]
    found = _NAME.match(text)
    return found.group().lower() if found else ""


def texts(value: Any, where: str) -> list[str]:
    """A section's requirements as texts.

    Raises:
        RecipeFault: an entry is no text.
    """
    items = value if isinstance(value, list) else [] if value is None else [value]
    for item in items:
        if isinstance(item, (dict, list)):
            what = f"{where} holds a {'mapping' if isinstance(item, dict) else 'list'} where text should stand"
            raise RecipeFault(what, why=f"it is {str(item)[:80]}", hint="quote it if it is meant as text")
    return [str(item) for item in items if item is not None]


def sections(value: Any) -> dict[str, list[str]]:
    """The requirements by section; a bare list stands for both ``host`` and ``run``."""
    if isinstance(value, dict):
        return {str(section): _section(str(section), specs) for section, specs in value.items()}
    specs = texts(value, "requirements")
    return {"host": list(specs), "run": list(specs)} if specs else {}


def _section(section: str, value: Any) -> list[str]:
    # conda-build does not look at sections that it does not know, whatever they hold.
    if section in _KNOWN:
        return texts(value, f"requirements/{section}")
    return [str(item) for item in (value if isinstance(value, list) else [value]) if item is not None]


def with_versions(requirements: Mapping[str, list[str]], variant: Mapping[str, Any]) -> dict[str, list[str]]:
    """The requirements with the variant's versions put beside bare names.

    In ``run``, only a name that ``build`` or ``host`` holds bare gets one. ``name x.x`` takes the variant's version.
    """
    found = {section: list(specs) for section, specs in requirements.items()}
    for section in ("build", "host", "run"):
        bare = {*found.get("build", ()), *found.get("host", ())}
        specs = [_versioned(spec, variant, section, bare) for spec in found.get(section, ())]
        if specs:
            found[section] = specs
    return found


def _versioned(spec: str, variant: Mapping[str, Any], section: str, bare: set[str]) -> str:
    name = spec.strip()
    key = name.replace("-", "_")
    if key in variant and spec.startswith(name) and (section != "run" or name in bare):
        value = variant[key]
        if not isinstance(value, dict):
            return with_star(f"{name} {value if isinstance(value, str) else next(iter(value), '')}")
    if xx := _XX.match(spec):
        version = variant.get(xx[1])
        if version is None:
            raise RecipeFault(f"{spec!r} takes its version from the variant, which has none", hint=f"give {xx[1]}")
        return with_star(f"{xx[1]} {version}")
    return spec


def without(specs: Iterable[str], name: str) -> list[str]:
    """The specs that are not of a package."""
    return [spec for spec in specs if not (spec.startswith(name) and spec[len(name) : len(name) + 1].strip() == "")]
