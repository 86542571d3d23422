"""Read conda-forge.yml: refuse what is misspelled or invalid, name what has no effect."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from kiln.conda_forge_yml.schema import (
    SchemaCheck,
    SettingFault,
    UsedBy,
    leaf_settings,
    rows_of_settings_table,
    setting_definition_of_path,
    settings_without_use,
)
from kiln.errors import RecipeFault, raise_all
from kiln.name_rules import FORGE_PLATFORMS
from kiln.yamltext import Document, ScalarInterpretation, parse_document, place_of_key_path, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kiln.model.source_position import Place

WORKFLOW = "workflow_settings"  # the section of values for systems, platforms or CI services
_DECIDES_PACKAGES = frozenset({UsedBy.MATRIX, UsedBy.BUILD})
_CHECK = SchemaCheck(strict=True, numerals=True)


def read_document(path: Path) -> Document:
    """Return the file as a mapping with places; empty without the file.

    Raises:
        KilnError: the file is malformed, a setting is misspelled, or one that kiln uses has an invalid value.
    """
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
    """Return the keys that decide packages, of any mapping."""
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
