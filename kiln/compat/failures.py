"""What made a program or a build fail, read from what it said: ``data/failures.ini`` knows the words.

The one table of causes: the doctor reads logs by it, and a compile that fails is explained by it.

A log may be a gigabyte long, and is anybody's: it is read in pieces, of a line no more than its first ``LONGEST``
characters are looked at, and each pattern's repetitions are bounded.
"""

from __future__ import annotations

import configparser
import io
import re
from dataclasses import dataclass, field, replace
from functools import cache
from typing import IO, TYPE_CHECKING, Any

from kiln import errors
from kiln.compat import lines, tables
from kiln.compat.combination import plain as number_of
from kiln.compat.variants import newest_gcc
from kiln.console.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kiln.errors import KilnError

LONGEST = 4096  # characters of a line
MOST = 100  # different failures that are told; a log could name a million versions
_PIECE = 1 << 20  # bytes
_END = 8 << 20  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A failure that is known by its words: one of them is in every line that the pattern matches.

    ``error`` is what a compile ends with that fails so.
    """

    name: str
    words: tuple[bytes, ...]
    pattern: re.Pattern[str]
    cause: str
    cure: str
    source: str
    error: type[KilnError]

    def word(self, text: bytes) -> bytes | None:
        """Return the first of the words that stands in a text."""
        return next((word for word in self.words if word in text), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure found in a log: at ``line``, counted from 1, and in ``count`` lines in all."""

    name: str
    cause: str
    cure: str
    source: str
    line: int
    text: str
    count: int = 1
    error: type[KilnError] = errors.BuildFailed

    def as_data(self) -> dict[str, Any]:
        """Return the failure for programs."""
        return {name: getattr(self, name) for name in ("name", "cause", "cure", "source", "line", "text", "count")}


@dataclass(slots=True)
class _Tally:
    """Failures while a log is read: the first line of each, and how many there were, by what they mean."""

    found: dict[tuple[str, str], Failure] = field(default_factory=dict)
    counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, failure: Failure) -> None:
        key = (failure.name, failure.cause)
        if key not in self.found and len(self.found) < MOST:
            self.found[key] = failure
        if key in self.found:
            self.counts[key] = self.counts.get(key, 0) + 1

    def result(self) -> tuple[Failure, ...]:
        ordered = sorted(self.found.items(), key=lambda item: item[1].line)
        return tuple(replace(failure, count=self.counts[key]) for key, failure in ordered)


@cache
def known() -> tuple[Known, ...]:
    """Return the failures of ``failures.ini``."""
    settings = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    settings.read_string((tables.DATA / "failures.ini").read_text(encoding="utf-8"))
    return tuple(
        Known(
            name=name,
            words=tuple(word.encode() for word in section["words"].splitlines()),
            pattern=re.compile(section["pattern"]),
            cause=section["cause"],
            cure=section["cure"],
            source=section["source"],
            error=getattr(errors, section.get("error", "BuildFailed")),
        )
        for name, section in settings.items()
        if name != settings.default_section
    )


def read(log: IO[bytes]) -> tuple[Failure, ...]:
    """Return the failures that a log tells of, in the order of their first lines."""
    tally, before = _Tally(), 0
    for piece in _pieces(log):
        wanted = [each for each in known() if each.word(piece)]
        if wanted:
            for failure in _in_piece(piece, wanted, before):
                tally.add(failure)
        before += piece.count(b"\n")
    return tally.result()


def at_the_end(log: Path, *, most: int = _END) -> tuple[Failure, ...]:
    """Return the failures that the last ``most`` bytes of a log tell of; none when it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - most))
            return read(file)
    except OSError:
        return ()


def cause(text: str) -> Failure | None:
    """Return what a failed compile's output tells: of several failures the one that the table has first."""
    ranks = {each.name: rank for rank, each in enumerate(known())}
    found = read(io.BytesIO(text.encode("utf-8", "replace")))
    return min(found, key=lambda failure: ranks[failure.name], default=None)


def _pieces(log: IO[bytes]) -> Iterator[bytes]:
    """Yield a log in pieces that end with a line; a line that is longer than a piece is cut."""
    rest = b""
    while chunk := log.read(_PIECE):
        piece = rest + chunk
        end = piece.rfind(b"\n") + 1
        if not end and len(piece) < 2 * _PIECE:
            rest = piece
            continue
        rest = piece[end:] if end else b""
        yield piece[:end] if end else piece
    if rest:
        yield rest


def _in_piece(piece: bytes, wanted: list[Known], before: int) -> Iterator[Failure]:
    for number, raw in enumerate(piece.split(b"\n"), before + 1):
        for each in wanted:
            word = each.word(raw)
            found = _found(each, _window(raw, word), number) if word else None
            if found is not None:
                yield found


def _window(raw: bytes, words: bytes) -> str:
    """The part of a line that is looked at, around the words when it is long; what a progress bar overwrote too."""
    start = max(0, raw.find(words) - LONGEST // 2)
    return plain(raw[start : start + LONGEST].decode("utf-8", "replace").replace("\r", " "))


def _found(each: Known, text: str, number: int) -> Failure | None:
    match = each.pattern.search(text)
    if match is None:
        return None
    values = _values({name: value for name, value in match.groupdict().items() if value is not None})
    return Failure(
        name=each.name,
        cause=_filled(each.cause, values),
        cure=_filled(each.cure, values),
        source=each.source,
        line=number,
        text=text.strip()[:400],
        error=each.error,
    )


def _values(groups: dict[str, str]) -> dict[str, str]:
    """The groups of a match, and what the tables know of them."""
    values = dict(groups)
    if "capability" in groups:
        values["cudas"] = _cudas(groups["capability"])
    if "cuda" in groups:
        values["gcc"] = newest_gcc(groups["cuda"]) or "unknown"
    return values


def _cudas(capability: str) -> str:
    """The CUDAs that compile for a capability, as a range."""
    rows = [row for row in tables.table("cuda_compiler") if str(number_of(capability)) in row["capabilities"].split()]
    if not rows:
        return "none that the tables have"
    first, last = (pick(rows, key=lambda row: lines.numbers(row["first"])) for pick in (min, max))
    return f"{first['first']} to {last['last']}"


def _filled(sentence: str, values: dict[str, str]) -> str:
    return re.sub(r"\{(\w{1,40})\}", lambda found: values.get(found[1], found[0]), sentence)
