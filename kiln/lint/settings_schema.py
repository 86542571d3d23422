"""The types of the settings in conda-forge.yml, and the check of values against them.

``settings.csv`` holds facts of conda-smithy's schema (conda_smithy/data/conda-forge.json, August 2026). Alternatives
stand between ``|``; ``closed`` is a mapping of listed keys only, ``open`` one with any other keys, and ``values of`` a
list of values for systems, platforms or CI services.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kiln.errors import nearest
from kiln.names import CONDA_PLATFORMS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

TABLE = Path(__file__).with_name("settings.csv")
_SETS = {
    "PLATFORM": frozenset(platform.replace("-", "_") for platform in CONDA_PLATFORMS),
    "SYSTEM": frozenset({"linux", "win", "osx"}),
    "SERVICE": frozenset(
        [
            "azure",
            "github_actions",
            "default",
            "emulated",
            "native",
            "None",
            "circle",
            "travis",
            "appveyor",
            "drone",
            "woodpecker",
        ]
    ),
    "DISK": frozenset({"apt", "cache", "docker"}),
    "LINT": frozenset(
        ["lint_noarch_selectors", "lint_stdlib", "hint_os_version", "hint_pip_no_build_backend", "hint_python_min"]
    ),
}
# The conditions of one value in a list of values.
_CONDITIONS = {
    "os": "SYSTEM | list of SYSTEM | null",
    "platform": "PLATFORM | list of PLATFORM | null",
    "provider": "SERVICE | list of SERVICE | null",
}


class SettingType(NamedTuple):
    """The types of a setting, and what replaces a deprecated one."""

    types: str
    replacement: str


class SettingFault(NamedTuple):
    """An invalid setting: the keys that lead to it, the text that stands there, the description, the cure."""

    path: tuple[str, ...]
    node: Any
    text: str
    cure: str


@cache
def table() -> dict[str, SettingType]:
    """Return the type of each setting by its dotted name; the empty name is the whole file."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [(row["setting"], SettingType(row["types"], row["replacement"])) for row in csv.DictReader(file)]
    types: dict[str, SettingType] = {}
    for name, setting in rows:
        stem, _, last = name.rpartition(".")
        types |= {f"{stem}.{item}": setting for item in _SETS[last]} if last in _SETS else {name: setting}
    return types


def faults(settings: Any) -> Iterator[SettingFault]:
    """Yield the invalid settings of a file."""
    yield from _faults(settings, ())


def deprecated(settings: Any, path: tuple[str, ...] = ()) -> Iterator[SettingFault]:
    """Yield the deprecated settings of a file that have a value."""
    for key, value in settings.items() if isinstance(settings, dict) else ():
        here = (*path, str(key))
        setting = table().get(".".join(here))
        if setting and setting.replacement and value is not None:
            yield SettingFault(here, key, f"{'.'.join(here)} is deprecated", f"use {setting.replacement}")
        yield from deprecated(value, here)


def _faults(value: Any, path: tuple[str, ...]) -> Iterator[SettingFault]:
    setting = table().get(".".join(path))
    if setting is None:
        return
    alternatives = setting.types.split(" | ")
    name = ".".join(path)
    if not any(_matches(value, alternative) for alternative in alternatives):
        expected = " or ".join(_words(alternative) for alternative in alternatives if alternative != "null")
        shown = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)
        yield SettingFault(path, value, f"{name} is {shown}, expected {expected}", _near(value, alternatives))
    if not isinstance(value, dict):
        return
    known = [other.rpartition(".")[2] for other in table() if other and other.rpartition(".")[0] == name]
    for key, item in value.items():
        if str(key) in known:
            yield from _faults(item, (*path, str(key)))
        elif "closed" in alternatives:
            text = f"unknown setting {'.'.join((*path, str(key)))!r}"
            yield SettingFault((*path, str(key)), key, text, nearest(str(key), known))


def _near(value: Any, alternatives: list[str]) -> str:
    names = [name for alternative in alternatives for name in sorted(_names(alternative))]
    return nearest(value, names) if isinstance(value, str) else ""


def _names(alternative: str) -> frozenset[str]:
    if alternative.startswith("one of "):
        return frozenset(alternative.split()[2:])
    return _SETS.get(alternative.removeprefix("list of "), frozenset())


def _words(alternative: str) -> str:
    if alternative in {"open", "closed"}:
        return "a mapping"
    if alternative.startswith("values of "):
        return "a list of mappings with value:, os:, platform: and provider:"
    names = ", ".join(sorted(_names(alternative)))
    if alternative.startswith("list of "):
        return f"a list of {names or alternative.removeprefix('list of ')}"
    return f"one of {names}" if names else {"truth": "true or false", "integer": "an integer"}.get(alternative, "text")


def _matches(value: Any, alternative: str) -> bool:
    if alternative in {"open", "closed"}:
        return isinstance(value, dict)
    if alternative.startswith("values of "):
        item = alternative.removeprefix("values of ")
        return isinstance(value, list) and all(_is_conditional_value(entry, item) for entry in value)
    if alternative.startswith("list of "):
        item = alternative.removeprefix("list of ")
        return isinstance(value, list) and all(_matches(entry, item) for entry in value)
    if alternative.startswith("mapping of "):
        item = alternative.removeprefix("mapping of ")
        return isinstance(value, dict) and all(_matches(entry, item) for entry in value.values())
    if alternative.startswith("one of ") or alternative in _SETS:
        # The package formats are numbers or text; no other set has numbers.
        return not isinstance(value, bool) and isinstance(value, (str, int)) and str(value) in _names(alternative)
    return _is_plain(value, alternative)


def _is_plain(value: Any, kind: str) -> bool:
    if kind == "integer":
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return whole and not isinstance(value, bool)
    if kind == "null":
        return value is None
    return kind == "any" or isinstance(value, {"text": str, "truth": bool}[kind])


def _is_conditional_value(entry: Any, item: str) -> bool:
    if not isinstance(entry, dict) or ("value" in entry and not _matches(entry["value"], item)):
        return False
    return all(
        any(_matches(entry[key], alternative) for alternative in types.split(" | "))
        for key, types in _CONDITIONS.items()
        if key in entry
    )
