"""conda-forge.yml: the schema of its settings, what kiln does with each, and its values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kiln.base import files
from kiln.base.errors import RecipeFault, did_you_mean, raise_all
from kiln.base.patterns import FORGE_PLATFORMS
from kiln.base.yaml import Document, ScalarInterpretation, parse_document, place_of_key_path, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kiln.base.position import Place


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


WORKFLOW = "workflow_settings"  # the section of values for systems, platforms or CI services
_DECIDES_PACKAGES = frozenset({UsedBy.MATRIX, UsedBy.BUILD})
_CHECK = SchemaCheck(strict=True, numerals=True)


def read_document(path: Path) -> Document:
    """Return the file as a mapping with places; empty without the file."""
    document, refused = _checked_settings(_text_or_empty_without_file(path), path.name)
    raise_all(_fault_errors(path, refused))
    return document


def no_effect_notes(path: Path) -> list[str]:
    """Return a line about each setting without effect: unknown ones, and those that kiln has no use for."""
    values = _parse_text(_text_or_empty_without_file(path), path.name).value
    unknown = [fault for fault in _CHECK.faults(values) if not _is_refused_fault(fault)]
    return [
        f"{error.at}: {error.what}{f' ({error.hint})' if error.hint else ''}"
        for error in _fault_errors(path, (*unknown, *settings_without_use(values)))
    ]


class SettingUse(NamedTuple):
    """The use of a setting by kiln: the part that uses it, and its effect, or why it has none."""

    setting: str
    file: str
    line: int
    column: int
    used_by: str
    effect: str


def setting_uses(path: Path) -> list[SettingUse]:
    """Return what kiln does with each setting of a file, in the file's order.

    Raises:
        KilnError: as for `read_document`.
    """
    values, placed = read_document(path).value, _values_with_places(path)
    entries = []
    for names, _ in leaf_settings(values):
        setting, at = setting_definition_of_path(names), place_of_key_path(placed, path.name, *names)
        used_by, effect = (setting.used_by, setting.effect) if setting else (UsedBy.NONE, "not a setting")
        use = SettingUse(".".join(names), at.file, at.line, at.column, used_by.value, effect)
        entries.append(use)
    return entries


class TypedSettings:
    """Typed access to the settings."""

    def __init__(self, document: Document, values: dict[str, Any]) -> None:
        self._document = document
        self._values = values

    @classmethod
    def read(cls, path: Path) -> TypedSettings:
        """Read a file.

        Raises:
            KilnError: as for `read_document`.
        """
        document = read_document(path)
        return cls(document, document.value)

    def place_of(self, key: str) -> Place:
        """Return the place of an outermost setting."""
        return self._document.place_of_key(key)

    def get(self, key: str) -> Any:
        """Return a setting as it is; None when it is missing."""
        return self._values.get(key)

    def get_mapping(self, key: str) -> dict[str, Any]:
        """Return a setting that is a mapping; empty when it is missing."""
        value = self._values.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise RecipeFault(f"the setting {key!r} is not a mapping", at=self._document.place_of_key(key))
        return value

    def get_nested(self, key: str) -> TypedSettings:
        """Return the settings in a mapping."""
        return TypedSettings(self._document, self.get_mapping(key))

    def get_text(self, key: str, default: str) -> str:
        """Return a setting that is text."""
        value = self._values.get(key)
        return default if value is None else str(value)

    def get_flag(self, key: str, *, default: bool) -> bool:
        """Return a setting that is true or false."""
        value = self._values.get(key)
        return default if value is None else str(value).lower() == "true"

    def get_number(self, key: str, default: int) -> int:
        """Return a setting that is a whole number."""
        value = self._values.get(key)
        return default if value is None else int(str(value))

    def get_list(self, key: str, default: list[str]) -> list[str]:
        """Return a setting that is a list, or one item of it."""
        value = self._values.get(key)
        if value is None:
            return default
        return [str(item) for item in value] if isinstance(value, list) else [str(value)]

    def get_workflow_setting(self, name: str, *, provider: str, platform: str) -> Any:
        """Return a workflow setting for a platform, such as ``linux-64``, on a CI service; None without one.

        Of several values that hold, the last one counts. Source: ``get_workflow_settings`` and ``_load_forge_config``
        of conda-smithy (conda_smithy/utils.py and configure_feedstock.py).
        """
        value = self.get_mapping(WORKFLOW).get(name)
        if not isinstance(value, list):
            return value
        conditions = {"os": platform.partition("-")[0], "platform": platform.replace("-", "_"), "provider": provider}
        values = [
            entry.get("value") for entry in value if isinstance(entry, dict) and _meets_conditions(entry, conditions)
        ]
        return values[-1] if values else None


def _text_or_empty_without_file(path: Path) -> str:
    return read_text(path, path.name) if path.is_file() else ""


@lru_cache(maxsize=2)  # a command reads its settings many times; by text, so that a changed file is parsed again
def _checked_settings(text: str, name: str) -> tuple[Document, tuple[SettingFault, ...]]:
    """Return the settings of a text, and those that are refused."""
    document = _parse_text(text, name)
    return document, tuple(fault for fault in _CHECK.faults(document.value) if _is_refused_fault(fault))


def _parse_text(text: str, name: str) -> Document:
    document = parse_document(text, name, ScalarInterpretation.WORDS, may_repeat=_may_repeat_key)
    if document.value is None or document.value == []:  # feedstocks had an empty list for "no settings"
        return Document(file=name, value={})
    if not isinstance(document.value, dict):
        raise RecipeFault("conda-forge.yml is a mapping of settings", at=document.place_of_key())
    return document


def _may_repeat_key(key: str) -> bool:
    # conda-smithy accepts duplicate keys; kiln only those that do not affect a package.
    return key not in _package_deciding_keys() and key not in FORGE_PLATFORMS


@cache
def _package_deciding_keys() -> frozenset[str]:
    return frozenset(
        name.rpartition(".")[2]
        for name, setting in rows_of_settings_table().items()
        if setting.used_by in _DECIDES_PACKAGES
    )


def _is_refused_fault(fault: SettingFault) -> bool:
    """Return whether a setting is refused: a misspelled one, or an invalid value that kiln would use."""
    if fault.unknown:
        return fault.misspelled
    setting = setting_definition_of_path(fault.path)
    return setting is not None and setting.used_by not in {UsedBy.NONE, UsedBy.OTHERS}


def _fault_errors(path: Path, faults: Iterable[SettingFault]) -> list[RecipeFault]:
    faults = list(faults)
    placed = _values_with_places(path) if faults else {}
    return [
        RecipeFault(fault.text, at=place_of_key_path(placed, path.name, *fault.path), hint=fault.cure)
        for fault in faults
    ]


def _values_with_places(path: Path) -> Any:
    return parse_document(
        _text_or_empty_without_file(path), path.name, ScalarInterpretation.PLACED, may_repeat=lambda _: True
    ).value


def _meets_conditions(entry: Mapping[str, Any], conditions: Mapping[str, str]) -> bool:
    for key, actual in conditions.items():
        expected = entry.get(key)
        if expected is not None and actual not in (expected if isinstance(expected, list) else [expected]):
            return False
    return True
