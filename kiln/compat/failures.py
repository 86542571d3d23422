"""What made a program or a build fail, read from what it said: ``data/failures.ini`` knows the words.

A log may be a gigabyte long, and is anybody's: it is read in pieces, of a line no more than its first ``LONGEST``
characters are looked at, and each pattern's repetitions are bounded.
"""

from __future__ import annotations

import configparser
import re
from dataclasses import dataclass, field
from functools import cache
from typing import IO, TYPE_CHECKING, Any

from kiln.compat import lines, tables
from kiln.compat.combination import plain as number_of
from kiln.compat.variants import newest_gcc
from kiln.console.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONGEST = 4096  # characters of a line
_PIECE = 1 << 20  # bytes
_END = 8 << 20  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A failure that is known by its words: they are in every line that the pattern matches."""

    name: str
    words: bytes
    pattern: re.Pattern[str]
    cause: str
    cure: str
    source: str


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
        self.counts[key] = self.counts.get(key, 0) + 1
        self.found.setdefault(key, failure)

    def result(self) -> tuple[Failure, ...]:
        return tuple(
            Failure(**{**failure.as_data(), "count": self.counts[key]})
            for key, failure in sorted(self.found.items(), key=lambda item: item[1].line)
        )


@cache
def known() -> tuple[Known, ...]:
    """Return the failures of ``failures.ini``."""
    settings = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    settings.read_string((tables.DATA / "failures.ini").read_text(encoding="utf-8"))
    return tuple(
        Known(
            name=name,
            words=section["words"].encode(),
            pattern=re.compile(section["pattern"]),
            cause=section["cause"],
            cure=section["cure"],
            source=section["source"],
        )
        for name, section in settings.items()
        if name != settings.default_section
    )


def read(log: IO[bytes]) -> tuple[Failure, ...]:
    """Return the failures that a log tells of, in the order of their first lines."""
    tally, before = _Tally(), 0
    for piece in _pieces(log):
        wanted = [each for each in known() if each.words in piece]
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
        looked_for = [each for each in wanted if each.words in raw]
        if not looked_for:
            continue
        for each in looked_for:
            found = _found(each, _window(raw, each.words), number)
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
    cause, cure = (_filled(sentence, values) for sentence in (each.cause, each.cure))
    return Failure(name=each.name, cause=cause, cure=cure, source=each.source, line=number, text=text.strip()[:400])


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
