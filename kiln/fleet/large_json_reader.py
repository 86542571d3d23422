"""Read members of a JSON document that is too large for memory, one after the other."""

from __future__ import annotations

import json
import re
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

CHUNK = 1 << 20  # characters that are read at a time
LARGEST = 16 << 20  # characters of a value that is decoded as a whole
_DECODER = json.JSONDecoder()
_NUMBER = ("", *"0123456789.eE+-")
_SPACE = re.compile(r"[ \t\n\r]*")

Path = tuple[str, ...]


def iterate_json_members(file: IO[str], inside: Container[Path]) -> Iterator[tuple[Path, Any]]:
    """Yield the members of a document with their paths, in its order.

    The objects and arrays whose paths are ``inside`` are not yielded, but their members; the root, ``()``, always is.
    An element of an array has the path of the array.

    Raises:
        ValueError: when the document is invalid, or a value is too large or nested too deeply.
    """
    reader = _JsonStreamReader(file)
    yield from _iterate_members_at_position(reader, (), inside)


def _iterate_members_at_position(
    reader: _JsonStreamReader, path: Path, inside: Container[Path]
) -> Iterator[tuple[Path, Any]]:
    """Yield the members of the object or array that begins here."""
    opening = reader.read_expected_character("{[")
    closing = "}" if opening == "{" else "]"
    if reader.peek_character() == closing:
        reader.read_expected_character(closing)
        return
    while True:
        member = path
        if opening == "{":
            member = (*path, str(reader.read_value()))
            reader.read_expected_character(":")
        if opening == "{" and member in inside and reader.peek_character() in "{[":
            yield from _iterate_members_at_position(reader, member, inside)
        else:
            yield member, reader.read_value()
        if reader.read_expected_character("," + closing) == closing:
            return


class _JsonStreamReader:
    """A JSON text, of which a part is in memory."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._text = ""
        self._at = 0

    def peek_character(self) -> str:
        """Return the next character after white space; empty at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = self._at if space is None else space.end()
            if self._at < len(self._text) or not self._read_next_chunk():
                return self._text[self._at : self._at + 1]

    def read_expected_character(self, characters: str) -> str:
        """Return the next character after white space, which has to be one of several."""
        character = self.peek_character()
        if not character or character not in characters:
            raise ValueError(f"{character or 'the end'!r} instead of one of {characters!r}")
        self._at += 1
        return character

    def read_value(self) -> Any:
        """Return the value that begins here."""
        self.peek_character()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                if not self._read_next_chunk():
                    raise
            except RecursionError as error:
                raise ValueError("nested too deeply") from error
            else:
                # A number may go on in the next part, such as 0.5 after "0" or "0.".
                if self._text[end : end + 1] not in _NUMBER or not self._read_next_chunk():
                    self._at = end
                    return value

    def _read_next_chunk(self) -> bool:
        """Read the next part; return False at the end."""
        if len(self._text) - self._at > LARGEST:
            raise ValueError(f"a value of more than {LARGEST:,} characters")
        part = self._file.read(CHUNK)
        self._text, self._at = self._text[self._at :] + part, 0
        return bool(part)
