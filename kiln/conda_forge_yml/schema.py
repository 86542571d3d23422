"""The settings in conda-forge.yml: their types, and what kiln does with each; the check of values against the types.

``settings.csv`` holds facts of conda-smithy's schema (conda_smithy/data/conda-forge.json, August 2026), and kiln's use
of each setting. Alternatives of types stand between ``|``; ``closed`` is a mapping of listed keys only, ``open`` one
with any other keys, ``lax`` one whose other keys conda-smithy ignores, and ``values of`` a list of values for systems,
platforms or CI services.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kiln import files
from kiln.errors import did_you_mean
from kiln.name_rules import FORGE_PLATFORMS

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = Path(__file__).with_name("settings.csv")
_SETS = {
    "PLATFORM": frozenset(FORGE_PLATFORMS),
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
_SLIP = 0.85  # the similarity of a misspelled name to the right one
_MAPPINGS = frozenset({"open", "closed", "lax"})


class UsedBy(str, Enum):
    """The part of kiln that uses a setting; ``NONE`` has a meaning for builds, ``OTHERS`` is for other programs."""

    MATRIX = "matrix"
    BUILD = "build"
    WORKFLOW = "workflow"
    LINT = "lint"
    PUBLISH = "publish"
    NONE = "none"
    OTHERS = "others"


class SettingDefinition(NamedTuple):
    """The types of a setting, what replaces a deprecated one, which part of kiln uses it, and its effect there.

    Without a use, ``effect`` is the reason.
    """

    types: str
    replacement: str
    used_by: UsedBy
    effect: str


class SettingFault(NamedTuple):
    """An invalid setting: the keys that lead to it, the description, the cure.

    ``unknown`` if the key is not in the schema, ``misspelled`` if it is besides almost one that is.
    """

    path: tuple[str, ...]
    text: str
    cure: str
    unknown: bool = False
    misspelled: bool = False


@cache
def setting_definitions() -> dict[str, SettingDefinition]:
    """Return the type of each setting by its dotted name; the empty name is the whole file."""
    types: dict[str, SettingDefinition] = {}
    for name, setting in rows_of_settings_table().items():
        stem, _, last = name.rpartition(".")
        types |= {f"{stem}.{item}": setting for item in _SETS[last]} if last in _SETS else {name: setting}
    return types


@cache
def rows_of_settings_table() -> dict[str, SettingDefinition]:
    """Return the rows of the table, in which ``PLATFORM`` and ``SYSTEM`` stand for all of them."""
    return {
        row["setting"]: SettingDefinition(
            row["types"], row["replacement"], UsedBy(row["used_by"] or UsedBy.OTHERS), row["effect"]
        )
        for row in files.csv_rows(TABLE)
    }


def setting_definition_of_path(path: tuple[str, ...]) -> SettingDefinition | None:
    """Return the setting that the keys lead to, or the one that contains it; None for an unknown outermost key."""
    known = [".".join(path[:length]) for length in range(len(path), 0, -1)]
    return next((setting_definitions()[name] for name in known if name in setting_definitions()), None)


def unknown_settings_smithy_ignores(settings: Any) -> Iterator[SettingFault]:
    """Yield the unknown settings of a file that conda-smithy's linter ignores."""
    reported = {fault.path for fault in SchemaCheck().faults(settings)}
    yield from (fault for fault in SchemaCheck(strict=True).faults(settings) if fault.path not in reported)


def deprecated_settings(settings: Any, path: tuple[str, ...] = ()) -> Iterator[SettingFault]:
    """Yield the deprecated settings of a file that have a value."""
    for key, value in settings.items() if isinstance(settings, dict) else ():
        here = (*path, str(key))
        setting = setting_definitions().get(".".join(here))
        if setting and setting.replacement and value is not None:
            yield SettingFault(here, f"{'.'.join(here)} is deprecated", f"use {setting.replacement}")
        yield from deprecated_settings(value, here)


def settings_without_use(settings: Any) -> Iterator[SettingFault]:
    """Yield the settings of a file that concern builds, and that kiln has no use for, with the reason."""
    for path, value in leaf_settings(settings):
        setting = setting_definition_of_path(path)
        if setting is not None and setting.used_by is UsedBy.NONE and value is not None:
            yield SettingFault(path, f"{'.'.join(path)} has no effect in kiln", setting.effect)


def leaf_settings(settings: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the settings of a file that the table knows and that contain no other known one: path and value."""
    for key, value in settings.items() if isinstance(settings, dict) else ():
        here = (*path, str(key))
        inner = isinstance(value, dict) and any(name.startswith(f"{'.'.join(here)}.") for name in setting_definitions())
        if inner:
            yield from leaf_settings(value, here)
        else:
            yield here, value


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaCheck:
    """A check of settings, by default that of conda-smithy's linter.

    ``strict`` reports keys that conda-smithy ignores, ``numerals`` accepts text as numbers.
    """

    strict: bool = False
    numerals: bool = False

    def faults(self, value: Any, path: tuple[str, ...] = ()) -> Iterator[SettingFault]:
        """Yield the invalid settings of a file, or of the setting that the keys lead to."""
        name = ".".join(path)
        setting = setting_definitions().get(name)
        if setting is None:
            return
        alternatives = setting.types.split(" | ")
        if not any(self._matches_type(value, alternative) for alternative in alternatives):
            expected = " or ".join(
                _type_description(alternative) for alternative in alternatives if alternative != "null"
            )
            description = (
                "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)
            )
            text = f"{name or 'conda-forge.yml'} is {description}, expected {expected}"
            yield SettingFault(path, text, _suggested_value(value, alternatives))
        if not isinstance(value, dict):
            return
        known = [
            other.rpartition(".")[2] for other in setting_definitions() if other and other.rpartition(".")[0] == name
        ]
        refuses = "closed" in alternatives or ("lax" in alternatives and self.strict)
        for key, item in value.items():
            here = (*path, str(key))
            if str(key) in known:
                yield from self.faults(item, here)
                continue
            # A key of an open mapping may be right although it is not listed, unless it is almost a listed one.
            slip = did_you_mean(str(key), known, similarity=_SLIP)
            if refuses or ("open" in alternatives and self.strict and slip):
                cure, text = did_you_mean(str(key), known) if refuses else slip, f"unknown setting {'.'.join(here)!r}"
                yield SettingFault(here, text, cure, unknown=True, misspelled=bool(slip))

    def _matches_type(self, value: Any, alternative: str) -> bool:
        if alternative in _MAPPINGS:
            return isinstance(value, dict)
        kind, _, item = alternative.partition(" of ")
        if kind == "values":
            return isinstance(value, list) and all(self._is_conditional_value(entry, item) for entry in value)
        if kind == "list":
            return isinstance(value, list) and all(self._matches_type(entry, item) for entry in value)
        if kind == "mapping":
            return isinstance(value, dict) and all(self._matches_type(entry, item) for entry in value.values())
        if kind == "one" or alternative in _SETS:
            # The package formats are numbers or text; no other set has numbers.
            return (
                not isinstance(value, bool)
                and isinstance(value, (str, int))
                and str(value) in _allowed_values(alternative)
            )
        return self._matches_plain_type(value, alternative)

    def _matches_plain_type(self, value: Any, kind: str) -> bool:
        if kind == "integer":
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            numeral = self.numerals and isinstance(value, str) and value.isdecimal()
            return (whole and not isinstance(value, bool)) or numeral
        if kind == "null":
            return value is None
        return kind == "any" or isinstance(value, {"text": str, "truth": bool}[kind])

    def _is_conditional_value(self, entry: Any, item: str) -> bool:
        if not isinstance(entry, dict) or ("value" in entry and not self._matches_type(entry["value"], item)):
            return False
        if self.strict and entry.keys() - {*_CONDITIONS, "value"}:
            return False
        return all(
            any(self._matches_type(entry[key], alternative) for alternative in types.split(" | "))
            for key, types in _CONDITIONS.items()
            if key in entry
        )


def _suggested_value(value: Any, alternatives: list[str]) -> str:
    names = [name for alternative in alternatives for name in sorted(_allowed_values(alternative))]
    return did_you_mean(value, names) if isinstance(value, str) else ""


def _allowed_values(alternative: str) -> frozenset[str]:
    if alternative.startswith("one of "):
        return frozenset(alternative.split()[2:])
    return _SETS.get(alternative.removeprefix("list of "), frozenset())


def _type_description(alternative: str) -> str:
    if alternative in _MAPPINGS:
        return "a mapping"
    if alternative.startswith("values of "):
        return "a list of mappings with value:, os:, platform: and provider:"
    names = ", ".join(sorted(_allowed_values(alternative)))
    if alternative.startswith("list of "):
        return f"a list of {names or alternative.removeprefix('list of ')}"
    return f"one of {names}" if names else {"truth": "true or false", "integer": "an integer"}.get(alternative, "text")
