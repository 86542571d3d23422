"""Variant files such as conda_build_config.yaml: read, selected for a platform, and checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from kiln.errors import MalformedYaml, VariantFault
from kiln.model.place import Place
from kiln.template.names import Names
from kiln.template.selectors import Selectable
from kiln.yamltext import Document, Scalars, parse, read_text

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from kiln.variants.platform import Platform

_KEY = re.compile(r"^([A-Za-z_]\w*)\s*:", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What one variant file says on one platform: each key's value, or list of values, or settings.

    ``origins`` are the files that values of no file of their own were made from, the strongest last.
    """

    name: str
    values: dict[str, Any]
    document: Document | None = None
    origins: tuple[Source, ...] = ()

    def place(self, key: str) -> Place | None:
        """Where a key stands in the file that gave it; None for values that come from no file."""
        if self.document:
            return self.document.place(key)
        return next((source.place(key) for source in reversed(self.origins) if key in source.values), None)


class VariantFile:
    """A variant file on disk; each platform sees its own part of it."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self._text = Selectable(read_text(path, name), name)
        self._parsed: dict[str, Document] = {}
        self._check_lists()

    def _check_lists(self) -> None:
        """Refuse ``key: [a, b]`` at a line's end: conda-build reads a selector there, and the values are gone."""
        for line in self._text.lines:
            if line.selector and not line.commented and line.text.endswith((":", "-")):
                raise VariantFault(
                    f"the list [{line.selector}] reads as a selector",
                    at=Place(file=self.name, line=line.number, column=line.column - 1),
                    why="a bracket at the end of a line is one, so conda-build would drop these values",
                    hint="write each value on a line of its own, after '- '",
                )

    @property
    def keys(self) -> frozenset[str]:
        """Every key that the file defines on any platform."""
        return frozenset(_KEY.findall(self._text.text))

    def header(self) -> dict[str, Any]:
        """The file's values without regard to selectors, for what holds on every platform."""
        lines = "".join(f"{line.text}\n" for line in self._text.lines)
        value = parse(lines, self.name, Scalars.TEXT, may_repeat=lambda _: True).value
        return value if isinstance(value, dict) else {}

    def source(self, platform: Platform, known: frozenset[str]) -> Source:
        """The file as a platform sees it.

        Raises:
            KilnError: the file is malformed or contradicts itself.
        """
        document = self.document(platform, known)
        source = Source(name=self.name, values=without_empty(document.value), document=document)
        check(source)
        return source

    def document(self, platform: Platform, known: frozenset[str]) -> Document:
        """The file's own values, empty ones included."""
        selected = self._text.select(Names(platform.names({}, platform.subdir), {}, known))
        found = self._parsed.get(selected.text)
        if found is None:
            found = parse(selected.text, self.name, Scalars.TEXT, selected.line_of, self._text.is_selected)
            if found.value is None or found.value == "":
                found = Document(file=self.name, value={})
            if not isinstance(found.value, dict):
                raise MalformedYaml("a variant file is a mapping of keys to values", at=found.place())
            self._parsed[selected.text] = found
        return found


@lru_cache(maxsize=256)
def _read(path: Path, name: str, _stamp: tuple[int, int]) -> VariantFile:
    return VariantFile(path, name)


def variant_file(path: Path, name: str) -> VariantFile:
    """The variant file at a path; reading it again while it has not changed costs nothing."""
    try:
        status = path.stat()
    except OSError as error:
        raise VariantFault(f"cannot read {name}", why=error.strerror or str(error)) from error
    return _read(path, name, (status.st_mtime_ns, status.st_size))


def without_empty(values: dict[str, Any]) -> dict[str, Any]:
    """The values without keys that are empty, nested mappings likewise."""
    kept = {}
    for key, given in values.items():
        value = without_empty(given) if isinstance(given, dict) else given
        if value in ([], "", None, {}) or (key in {"final", "noarch_python", "zip_keys"} and not value):
            continue
        kept[key] = value
    if "zip_keys" in kept and not any(kept["zip_keys"]):
        del kept["zip_keys"]
    return kept


def zip_groups(value: Any) -> list[tuple[str, ...]]:
    """The groups of ``zip_keys``, which may be one list of keys or a list of such lists.

    Raises:
        ValueError: it is neither.
    """
    if not value:
        return []
    if isinstance(value, (list, tuple)):
        if all(isinstance(key, str) for key in value):
            return [tuple(value)]
        if all(isinstance(group, (list, tuple)) and all(isinstance(key, str) for key in group) for group in value):
            return [tuple(group) for group in value]
    raise ValueError("zip_keys is a list of keys, or a list of lists of keys")


def as_list(value: Any) -> list[Any]:
    """A value as the list that it stands for."""
    if value is None:
        return []
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    return [value]


def check(source: Source) -> None:
    """Refuse what no variant file may say, all faults at once.

    Raises:
        VariantFault: a value with parts of its own, a key with a dash, malformed ``zip_keys``, zipped keys without
            values, in two groups, or of different lengths.
    """
    try:
        groups = zip_groups(source.values.get("zip_keys"))
    except ValueError as error:
        raise VariantFault("malformed zip_keys", at=source.place("zip_keys"), why=str(error)) from error
    faults = [
        *_nested(source),
        *_pins(source),
        *_dashes(source),
        *_unset(source, groups),
        *_twice(source, groups),
        *_lengths(source, groups),
    ]
    if faults:
        first, *others = faults
        raise VariantFault(first.what, at=first.at, why=first.why, hint=first.hint, others=others)


def _nested(source: Source) -> list[VariantFault]:
    return [
        VariantFault(f"{key} has a value that is neither text nor number", at=source.place(key), why=str(value)[:80])
        for key, value in source.values.items()
        if isinstance(value, list) and key != "zip_keys" and any(isinstance(item, (dict, list)) for item in value)
    ]


def _pins(source: Source) -> list[VariantFault]:
    pins = source.values.get("pin_run_as_build") or {}
    if isinstance(pins, dict) and all(isinstance(each, dict) for each in pins.values()):
        return []
    what = "pin_run_as_build is no mapping of packages to their pins"
    return [VariantFault(what, at=source.place("pin_run_as_build"), hint="python: {min_pin: x.x, max_pin: x.x}")]


def _dashes(source: Source) -> list[VariantFault]:
    return [
        VariantFault(f"the key {key!r} has a dash", at=source.place(key), hint=f"write {key.replace('-', '_')!r}")
        for key in source.values
        if "-" in str(key)
    ]


def _unset(source: Source, groups: list[tuple[str, ...]]) -> list[VariantFault]:
    return [
        VariantFault(f"the zipped key {key!r} has no values in {source.name}", at=source.place("zip_keys"))
        for group in groups
        for key in group
        if key not in source.values
    ]


def _twice(source: Source, groups: list[tuple[str, ...]]) -> list[VariantFault]:
    distinct = [key for group in {frozenset(group) for group in groups} for key in group]
    return [
        VariantFault(f"the key {key!r} is in more than one group of zip_keys", at=source.place("zip_keys"))
        for key in sorted({key for key in distinct if distinct.count(key) > 1})
    ]


def _lengths(source: Source, groups: list[tuple[str, ...]]) -> list[VariantFault]:
    faults = []
    for group in groups:
        lengths = {key: len(as_list(source.values[key])) for key in group if key in source.values}
        if len(set(lengths.values())) > 1:
            why = ", ".join(f"{key} has {count}" for key, count in lengths.items())
            common = max(lengths.values(), key=list(lengths.values()).count)
            odd = next(key for key, count in lengths.items() if count != common)
            hint = "give every key of the group the same number of values"
            at = source.place(odd)
            faults.append(VariantFault("zipped keys have different numbers of values", at=at, why=why, hint=hint))
    return faults
