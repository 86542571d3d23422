"""Read conda-forge.yml: refuse what is misspelled or invalid, name what has no effect."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from kiln.conda_forge_yml.schema import SchemaCheck, SettingFault, UsedBy, leaves, rows, setting_of, without_use
from kiln.errors import RecipeFault, raise_all
from kiln.model.source_position import Place
from kiln.names import CONDA_PLATFORMS
from kiln.yamltext import Document, PlacedText, ScalarTypes, parse, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

NAME = "conda-forge.yml"
WORKFLOW = "workflow_settings"  # the section of values for systems, platforms or CI services
_PLATFORMS = frozenset(platform.replace("-", "_") for platform in CONDA_PLATFORMS)
_DECIDES_PACKAGES = frozenset({UsedBy.MATRIX, UsedBy.BUILD})
_CHECK = SchemaCheck(strict=True, numerals=True)


def parsed(path: Path) -> Document:
    """Return the file as a mapping with places; empty without the file.

    Raises:
        KilnError: the file is malformed, a setting is misspelled, or one that kiln uses has an invalid value.
    """
    document, refused = _checked(_text(path), path.name)
    raise_all(_errors(path, refused))
    return document


def no_effect_notes(path: Path) -> list[str]:
    """Return a line about each setting without effect: unknown ones, and those that kiln has no use for."""
    values = _parsed(_text(path), path.name).value
    unknown = [fault for fault in _CHECK.faults(values) if not _is_refused(fault)]
    return [
        f"{error.at}: {error.what}{f' ({error.hint})' if error.hint else ''}"
        for error in _errors(path, (*unknown, *without_use(values)))
    ]


class SettingUse(NamedTuple):
    """The use of a setting by kiln: the part that uses it, and its effect, or why it has none."""

    setting: str
    file: str
    line: int
    column: int
    used_by: str
    effect: str


def uses(path: Path) -> list[SettingUse]:
    """Return what kiln does with each setting of a file, in the file's order.

    Raises:
        KilnError: as for `parsed`.
    """
    values, placed = parsed(path).value, _placed(path)
    entries = []
    for names, _, _ in leaves(values):
        setting, at = setting_of(names), _place(path.name, placed, names)
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
            KilnError: as for `parsed`.
        """
        document = parsed(path)
        return cls(document, document.value)

    def place(self, key: str) -> Place:
        """Return the place of an outermost setting."""
        return self._document.place(key)

    def get(self, key: str) -> Any:
        """Return a setting as it is; None when it is missing."""
        return self._values.get(key)

    def mapping(self, key: str) -> dict[str, Any]:
        """Return a setting that is a mapping; empty when it is missing."""
        value = self._values.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise RecipeFault(f"the setting {key!r} is not a mapping", at=self._document.place(key))
        return value

    def nested(self, key: str) -> TypedSettings:
        """Return the settings in a mapping."""
        return TypedSettings(self._document, self.mapping(key))

    def text(self, key: str, default: str) -> str:
        """Return a setting that is text."""
        value = self._values.get(key)
        return default if value is None else str(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a setting that is true or false."""
        value = self._values.get(key)
        return default if value is None else str(value).lower() == "true"

    def number(self, key: str, default: int) -> int:
        """Return a setting that is a whole number."""
        value = self._values.get(key)
        return default if value is None else int(str(value))

    def items(self, key: str, default: list[str]) -> list[str]:
        """Return a setting that is a list, or one item of it."""
        value = self._values.get(key)
        if value is None:
            return default
        return [str(item) for item in value] if isinstance(value, list) else [str(value)]

    def for_platform(self, name: str, *, provider: str, platform: str) -> Any:
        """Return a workflow setting for a platform, such as ``linux-64``, on a CI service; None without one.

        Of several values that hold, the last one counts. Source: ``get_workflow_settings`` and ``_load_forge_config``
        of conda-smithy (conda_smithy/utils.py and configure_feedstock.py).
        """
        value = self.mapping(WORKFLOW).get(name)
        if not isinstance(value, list):
            return value
        conditions = {"os": platform.partition("-")[0], "platform": platform.replace("-", "_"), "provider": provider}
        values = [entry.get("value") for entry in value if isinstance(entry, dict) and _holds(entry, conditions)]
        return values[-1] if values else None


def _text(path: Path) -> str:
    return read_text(path, path.name) if path.is_file() else ""


@lru_cache(maxsize=2)  # a command reads its settings many times; by text, so that a changed file is parsed again
def _checked(text: str, name: str) -> tuple[Document, tuple[SettingFault, ...]]:
    """Return the settings of a text, and those that are refused."""
    document = _parsed(text, name)
    return document, tuple(fault for fault in _CHECK.faults(document.value) if _is_refused(fault))


def _parsed(text: str, name: str) -> Document:
    document = parse(text, name, ScalarTypes.WORDS, may_repeat=_may_repeat)
    if document.value is None or document.value == []:  # feedstocks had an empty list for "no settings"
        return Document(file=name, value={})
    if not isinstance(document.value, dict):
        raise RecipeFault("conda-forge.yml is a mapping of settings", at=document.place())
    return document


def _may_repeat(key: str) -> bool:
    # conda-smithy accepts duplicate keys; kiln only those that do not affect a package.
    return key not in _decisive() and key not in _PLATFORMS


@cache
def _decisive() -> frozenset[str]:
    """Return the keys that decide packages, of any mapping."""
    return frozenset(
        name.rpartition(".")[2] for name, setting in rows().items() if setting.used_by in _DECIDES_PACKAGES
    )


def _is_refused(fault: SettingFault) -> bool:
    """Return whether a setting is refused: a misspelled one, or an invalid value that kiln would use."""
    if fault.unknown:
        return fault.misspelled
    setting = setting_of(fault.path)
    return setting is not None and setting.used_by.by_kiln


def _errors(path: Path, faults: Iterable[SettingFault]) -> list[RecipeFault]:
    """Return faults as errors, with their places."""
    faults = list(faults)
    placed = _placed(path) if faults else {}
    return [RecipeFault(fault.text, at=_place(path.name, placed, fault.path), hint=fault.cure) for fault in faults]


def _placed(path: Path) -> Any:
    """Return the file's values as texts with their places."""
    return parse(_text(path), path.name, ScalarTypes.PLACED, may_repeat=lambda _: True).value


def _place(file: str, values: Any, path: tuple[str, ...]) -> Place:
    """Return the place of a setting, given by the keys that lead to it."""
    place = Place(file=file)
    for name in path:
        key = next((key for key in values if str(key) == name), None) if isinstance(values, dict) else None
        if not isinstance(key, PlacedText):
            break
        place, values = Place(file=file, line=key.line, column=key.column), values[key]
    return place


def _holds(entry: Mapping[str, Any], conditions: Mapping[str, str]) -> bool:
    for key, actual in conditions.items():
        expected = entry.get(key)
        if expected is not None and actual not in (expected if isinstance(expected, list) else [expected]):
            return False
    return True
