"""YAML 1.1 as conda-build reads it: plain values with positions and typed texts, and bounds on the input."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import yaml

from kiln.base.errors import MalformedYaml, UnsafeTemplate
from kiln.base.limits import errors
from kiln.base.position import Place
from kiln.base.system.files import NO_WAIT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# libyaml's parser, 15 times as fast as PyYAML's own; safe, because it constructs plain values only.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str | bytes) -> Any:
    """Return the values of a document of kiln's own or the user's, with numbers; others go to `parse_document`.

    Raises:
        yaml.YAMLError: when it is not YAML.
    """
    return yaml.load(text, _LOADER)  # noqa: S506 - both are safe ones


class TypedText(str):
    """The text of a number or a truth value, as Python prints it, together with the value; numbers sort as such."""

    __slots__ = ("typed",)

    typed: bool | int

    def __new__(cls, typed: bool | int) -> TypedText:
        """Make the text of a value."""
        result = super().__new__(cls, typed)
        result.typed = typed
        return result

    def __lt__(self, other: str) -> bool:
        return self.typed < other.typed if isinstance(other, TypedText) else super().__lt__(other)

    def __reduce__(self) -> tuple[type[TypedText], tuple[bool | int]]:
        return TypedText, (self.typed,)


def as_text(value: Any) -> str:
    """Return a value as text; typed text stays typed."""
    return value if isinstance(value, str) else str(value)


def typed_variant_value(value: Any) -> Any:
    """Return the value that a text of a variant stands for in recipe.yaml."""
    return value.typed if isinstance(value, TypedText) else value


def variant_value_with_booleans(value: Any) -> Any:
    """Return the same, with the words true and false as truth values: conda-smithy hands them over as such."""
    return _TRUTH.get(value, value) if type(value) is str else typed_variant_value(value)


def scalar_value(source: PlacedText) -> Any:
    """Return the value that YAML 1.2 gives a scalar of recipe.yaml; a version such as 1.10 stays text."""
    if not source.plain:
        return str(source)
    if source in SPELLINGS_OF_TRUTH:
        return SPELLINGS_OF_TRUTH[str(source)]
    if source in NULLS:
        return None
    return int(source) if is_integer(source) else str(source)


def is_integer(word: str) -> bool:
    """Return whether a text is a decimal integer that fits into 64 bits."""
    digits = word[1:] if word[:1] in {"-", "+"} else word
    return digits.isascii() and digits.isdigit() and len(digits) < 19


_TRUTH = {"true": True, "false": False}
SPELLINGS_OF_TRUTH = {spelling: word == "true" for word in _TRUTH for spelling in (word, word.title(), word.upper())}
NULLS = frozenset({"", "~", "null", "Null", "NULL"})

_SHOWN = 40  # characters of a text in a message
_MAX_DEPTH = 60
_MAX_EXPANSION = 200_000  # nodes that all aliases together may expand to
_MAX_SIZE = 16 << 20  # bytes of one file
_PLAIN_TAGS = {"str", "map", "seq", "bool", "null", "int", "float", "timestamp", "set", "omap"}

# YAML 1.1's booleans and null; numbers stay text, because the version 1.10 is not 1.1.
_WORDS: dict[str, bool | None] = {
    spelling: value
    for value, words in ((True, ("yes", "true", "on")), (False, ("no", "false", "off")), (None, ("null",)))
    for word in words
    for spelling in (word, word.capitalize(), word.upper())
} | {"~": None, "": None}


class ScalarInterpretation(Enum):
    """The types of unquoted scalars: text only (variant files), or also true, false and null (recipes).

    ``PLACED`` is text with its position, and whether it was quoted.
    """

    TEXT = "text"
    WORDS = "words"
    PLACED = "placed"


class PlacedText(str):
    """A scalar of YAML: its text, where it stands (line and column from 1), and whether it is plain: not quoted."""

    __slots__ = ("column", "line", "plain")

    line: int
    column: int
    plain: bool

    def __new__(cls, text: str, line: int, column: int, *, plain: bool) -> PlacedText:
        """Make the text of a scalar."""
        result = super().__new__(cls, text)
        result.line, result.column, result.plain = line, column, plain
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed document: its value, and the line and column (from 1) of each key of its outermost mapping.

    ``repeated`` are the keys, of any mapping, that ``first_counts`` ignored.
    """

    file: str
    value: Any
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    repeated: tuple[Any, ...] = ()

    def place_of_key(self, key: str = "") -> Place:
        """Return the place of a key of the outermost mapping; the file alone when the key is absent."""
        line, column = self.marks.get(key, (0, 0))
        return Place(file=self.file, line=line, column=column)


def place_of_key_path(values: Any, file: str, *keys: str) -> Place:
    """Return the place of the last key of a path of keys into the placed values of a file, as far as it leads."""
    place = Place(file=file)
    for name in keys:
        key = next((key for key in values if str(key) == name), None) if isinstance(values, dict) else None
        if not isinstance(key, PlacedText):
            break
        place, values = Place(file=file, line=key.line, column=key.column), values[key]
    return place


def read_text(path: Path, name: str) -> str:
    """Return a file's text.

    Raises:
        MalformedYaml: it cannot be read, is not a regular file, is not UTF-8, or exceeds the size limit.
    """
    errors.record_place(name)
    try:
        # Without waiting: nobody may ever write into a FIFO, and a link may lead to one, or to an endless device.
        with os.fdopen(os.open(path, os.O_RDONLY | NO_WAIT), "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_MAX_SIZE + 1) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise MalformedYaml(f"cannot read {name}", at=Place(file=name), why=error.strerror or str(error)) from error
    if not stat.S_ISREG(status.st_mode):
        why = f"it is a link to {path.readlink()}" if path.is_symlink() else "it is a pipe, a socket or a device"
        raise MalformedYaml(f"{name} is not a regular file", at=Place(file=name), why=why, hint="replace it by a file")
    if len(data) > _MAX_SIZE:
        size = max(status.st_size, len(data))
        raise MalformedYaml(f"{name} has {size:,} bytes", at=Place(file=name), why=f"the limit is {_MAX_SIZE:,}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        at = Place(file=name, line=before.count(b"\n") + 1, column=error.start - before.rfind(b"\n"))
        hint = "save the file as UTF-8"
        raise MalformedYaml("not UTF-8 text", at=at, why=f"byte 0x{data[error.start]:02x}", hint=hint) from error


def parse_document(
    text: str,
    file: str,
    scalars: ScalarInterpretation,
    line_of: Callable[[int], int] | None = None,
    may_repeat: Callable[[str], bool] | None = None,
    *,
    first_counts: bool = False,
) -> Document:
    """Parse the only document of ``text``.

    ``line_of`` maps a line of the text to a line of the file (from 1). ``may_repeat`` returns whether a key may be
    repeated with another value, in which case the last value counts. With ``first_counts`` any key may be repeated, and
    the first value counts, as for conda-smithy's linter.

    Raises:
        MalformedYaml: the text is not YAML, repeats a key with another value, nests too deeply or expands too far.
        UnsafeTemplate: a tag asks for an object of a programming language.
    """
    builder = _DocumentBuilder(file, scalars, line_of or (lambda line: line), may_repeat or (lambda _: False))
    builder.first_counts = first_counts
    errors.record_place(file)
    event: Any = None
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.add_event(event)
    except (MemoryError, errors.OutOfTime):
        errors.record_place(file, builder.line_of(event.start_mark.line + 1) if event else 0)
        raise
    except yaml.MarkedYAMLError as error:
        raise builder.parser_error(error, text) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        at = Place(file=file, line=builder.line_of(line))
        raise MalformedYaml("a character that YAML does not allow", at=at, why=str(error.reason)) from error
    except RecursionError as error:
        raise MalformedYaml("nested too deeply", at=Place(file=file)) from error
    return Document(file=file, value=builder.root, marks=builder.marks, repeated=tuple(builder.repeated))


_NO_KEY = object()


class _OpenCollection:
    """An open mapping or sequence."""

    __slots__ = ("anchor", "key", "merges", "size", "value")

    def __init__(self, value: dict[Any, Any] | list[Any], anchor: str | None) -> None:
        self.value = value
        self.anchor = anchor
        self.key: Any = _NO_KEY
        self.size = 1
        self.merges: list[Any] = []


class _DocumentBuilder:
    """A builder of values from the parser's events, without recursion.

    Events and marks are ``Any``, because PyYAML's two parsers use different types of the same shape.
    """

    def __init__(
        self, file: str, scalars: ScalarInterpretation, line_of: Callable[[int], int], may_repeat: Callable[[str], bool]
    ) -> None:
        self.may_repeat = may_repeat
        self.first_counts = False
        self.repeated: list[Any] = []
        self.file = file
        self.words = scalars is ScalarInterpretation.WORDS
        self.placed = scalars is ScalarInterpretation.PLACED
        self.line_of = line_of
        self.root: Any = None
        self.marks: dict[str, tuple[int, int]] = {}
        self._stack: list[_OpenCollection] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._expanded = 0
        self._documents = 0

    def parser_error(self, error: yaml.MarkedYAMLError, text: str) -> MalformedYaml:
        """Return the error for what the parser found, with the character or the quoted text that it does not name."""
        problem, mark, context = error.problem or "not YAML", error.problem_mark, error.context or ""
        if mark and problem.endswith("that cannot start any token"):  # of which PyYAML's own parser alone names it
            before, character = text[: mark.index][-1:], text[mark.index : mark.index + 1]
            what = f"found the character {character!r}, which cannot start a value"
            return self.malformed_error(what, mark, hint=_character_hint(before + character))
        opening = error.context_mark
        if opening and "quoted scalar" in context and "unexpected" in problem:
            start = text[opening.index :].splitlines()[0][:_SHOWN]
            what, hint = f"the quoted text that begins with {start} has no end", f"close it with {start[:1]}"
            return self.malformed_error(what, opening, hint=hint)
        return self.malformed_error(problem, mark, context)

    def malformed_error(self, problem: str, mark: Any, context: str = "", hint: str = "") -> MalformedYaml:
        """Return the error for a problem at the parser's position."""
        at = Place(file=self.file)
        if mark is not None:
            at = Place(file=self.file, line=self.line_of(mark.line + 1), column=mark.column + 1)
        return MalformedYaml(problem, at=at, why=context, hint=hint or _problem_hint(problem))

    def add_event(self, event: Any) -> None:
        """Add the contents of one event."""
        kind = type(event)
        if kind is yaml.ScalarEvent:
            self._add_scalar(event)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            self._open_collection(event, {} if kind is yaml.MappingStartEvent else [])
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            self._close_collection(event)
        elif kind is yaml.AliasEvent:
            self._add_alias(event)
        elif kind is yaml.DocumentStartEvent:
            self._documents += 1
            if self._documents > 1:
                raise self.malformed_error("a second document begins", event.start_mark)

    def _open_collection(self, event: Any, value: dict[Any, Any] | list[Any]) -> None:
        self._require_plain_tag(event)
        if len(self._stack) >= _MAX_DEPTH:
            raise self.malformed_error(f"nested more than {_MAX_DEPTH} levels deep", event.start_mark)
        if self._stack and type(self._stack[-1].value) is dict and self._stack[-1].key is _NO_KEY:
            raise self.malformed_error("a list or mapping in the place of a key", event.start_mark)
        self._stack.append(_OpenCollection(value, event.anchor))

    def _close_collection(self, event: Any) -> None:
        level = self._stack.pop()
        for merged in level.merges:
            for key, value in merged.items():
                level.value.setdefault(key, value)  # type: ignore[union-attr]
        if level.anchor:
            self._anchors[level.anchor] = (level.value, level.size)
        self._add_value(level.value, level.size, event)

    def _add_alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise self.malformed_error(f"undefined anchor &{event.anchor}", event.start_mark)
        value, size = self._anchors[event.anchor]
        self._expanded += size
        if self._expanded > _MAX_EXPANSION:
            why = "nested aliases expand exponentially"
            raise self.malformed_error(f"aliases expand to more than {_MAX_EXPANSION:,} values", event.start_mark, why)
        self._add_value(value, size, event)

    def _add_scalar(self, event: Any) -> None:
        if event.tag is not None:
            self._require_plain_tag(event)
        value: Any = event.value
        if self.words and event.implicit[0] and value in _WORDS:
            value = _WORDS[value]
        elif self.placed:
            line, column = self.line_of(event.start_mark.line + 1), event.start_mark.column + 1
            value = PlacedText(value, line, column, plain=bool(event.implicit[0]))
        if event.anchor:
            self._anchors[event.anchor] = (value, 1)
        self._add_value(value, 1, event)

    def _add_value(self, value: Any, size: int, event: Any) -> None:
        if not self._stack:
            self.root = value
            return
        level = self._stack[-1]
        level.size += size
        if type(level.value) is list:
            level.value.append(value)
        elif level.key is _NO_KEY:
            self._set_pending_key(level, value, event)
        else:
            self._add_pair(level, value, event)

    def _set_pending_key(self, level: _OpenCollection, key: Any, event: Any) -> None:
        if isinstance(key, (dict, list)):
            raise self.malformed_error("a list or mapping in the place of a key", event.start_mark)
        level.key = key
        if len(self._stack) == 1:
            self.marks[key] = (self.line_of(event.start_mark.line + 1), event.start_mark.column + 1)

    def _add_pair(self, level: _OpenCollection, value: Any, event: Any) -> None:
        key, level.key = level.key, _NO_KEY
        if self.words and key == "<<" and isinstance(value, (dict, list)):
            level.merges.extend(part for part in (value if isinstance(value, list) else [value]) if type(part) is dict)
            return
        if self.first_counts and key in level.value:
            self.repeated.append(key)
            return
        if key in level.value and level.value[key] != value and not self.may_repeat(str(key)):
            why = "the later value would silently override the earlier one"
            raise self.malformed_error(f"duplicate key {key!r}", event.start_mark, why)
        level.value[key] = value

    def _require_plain_tag(self, event: Any) -> None:
        tag = event.tag
        if tag is None or tag in {"!", ""} or tag.removeprefix("tag:yaml.org,2002:") in _PLAIN_TAGS:
            return
        at = Place(file=self.file, line=self.line_of(event.start_mark.line + 1), column=event.start_mark.column + 1)
        raise UnsafeTemplate(f"the tag {tag!r} is not allowed", at=at, why="it names an object to construct")


_NO_TABS = "indent with spaces; YAML allows no tabs there"
_SPECIAL = "check the indentation of this line and the one above, and quote text with special characters"


def _character_hint(characters: str) -> str:
    """Return a hint for a character that cannot start a value, with the one before it."""
    if characters == "{%":
        return "remove the {% %}, which meta.yaml alone may have; recipe.yaml defines names in context"
    return _NO_TABS if characters[-1:] == "\t" else "quote the text"


def _problem_hint(problem: str) -> str:
    if "tab" in problem:
        return _NO_TABS
    if problem.startswith("duplicate"):
        return "keep one of them, or put them under selectors that exclude each other"
    return _SPECIAL if re.search(r"expected <block end>|did not find expected", problem) else ""
