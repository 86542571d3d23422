"""The causes of a failed program or build, by its log: ``data/failures.ini`` has the patterns.

It is the one table of causes: the doctor reads logs with it, and errors of a failed compile quote it.

A log may be a gigabyte long, and is untrusted: it is read in pieces, at most ``LONGEST`` characters of a line are
searched, and each pattern's repetitions are bounded.
"""

from __future__ import annotations

import configparser
import io
import re
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import IO, TYPE_CHECKING, Any

from kiln.base import errors
from kiln.base.text import sanitized_line
from kiln.compat import tables
from kiln.compat.combination import capability_number
from kiln.compat.tables import version_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kiln.base.errors import KilnError

LONGEST = 4096  # characters of a line
MOST = 100  # different failures to report; a log could name a million versions
_PIECE = 1 << 20  # bytes
_END = 8 << 20  # bytes


class Kind(str, Enum):
    """What a message is beside others of the same log; in the order in which they matter."""

    CAUSE = "cause"
    DEGRADED = "degraded"
    CONSEQUENCE = "consequence"
    HARMLESS = "harmless"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFailure:
    """A known failure: one of its words is in every line that the pattern matches.

    ``error`` is the error of a compile with this failure.
    """

    name: str
    words: tuple[bytes, ...]
    pattern: re.Pattern[str]
    cause: str
    cure: str
    source: str
    error: type[KilnError]
    kind: Kind

    def first_matching_word(self, text: bytes) -> bytes | None:
        """Return the first of the words that is in a text."""
        return next((word for word in self.words if word in text), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFailure:
    """A failure found in a log: at ``line``, counted from 1, and in ``count`` lines in all."""

    name: str
    cause: str
    cure: str
    source: str
    line: int
    text: str
    count: int = 1
    error: type[KilnError] = errors.BuildFailed
    kind: Kind = Kind.CAUSE

    def as_data(self) -> dict[str, Any]:
        """Return the failure as JSON values."""
        names = ("name", "cause", "cure", "source", "line", "text", "count")
        return {**{name: getattr(self, name) for name in names}, "kind": self.kind.value}


@cache
def known_failures() -> tuple[KnownFailure, ...]:
    """Return the failures of ``failures.ini``."""
    settings = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    settings.read_string((tables.DATA / "failures.ini").read_text(encoding="utf-8"))
    return tuple(
        KnownFailure(
            name=name,
            words=tuple(word.encode() for word in section["words"].splitlines()),
            pattern=re.compile(section["pattern"]),
            cause=section["cause"],
            cure=section["cure"],
            source=section["source"],
            error=getattr(errors, section.get("error", "BuildFailed")),
            kind=Kind(section.get("kind", "cause")),
        )
        for name, section in settings.items()
        if name != settings.default_section
    )


def failures_in_log(log: IO[bytes]) -> tuple[LogFailure, ...]:
    """Return the failures in a log: causes before what follows from them, each in the order of their first lines."""
    failures: dict[tuple[str, str], LogFailure] = {}
    before = 0
    for piece in _whole_line_pieces(log):
        candidates = [failure for failure in known_failures() if failure.first_matching_word(piece)]
        for failure in _failures_in_piece(piece, candidates, before) if candidates else ():
            key = (failure.name, failure.cause)
            if key in failures:
                failures[key] = replace(failures[key], count=failures[key].count + 1)
            elif len(failures) < MOST:
                failures[key] = failure
        before += piece.count(b"\n")
    kinds = list(Kind)
    return tuple(sorted(failures.values(), key=lambda failure: (kinds.index(failure.kind), failure.line)))


def failures_at_log_end(log: Path, *, most: int = _END) -> tuple[LogFailure, ...]:
    """Return the failures in the last ``most`` bytes of a log; none when it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - most))
            return failures_in_log(file)
    except OSError:
        return ()


def cause_of_failed_compile(text: str) -> LogFailure | None:
    """Return the failure in a failed compile's output: of several the one that the table has first."""
    ranks = {failure.name: rank for rank, failure in enumerate(known_failures())}
    failures = failures_in_log(io.BytesIO(text.encode("utf-8", "replace")))
    return min(failures, key=lambda failure: ranks[failure.name], default=None)


def _whole_line_pieces(log: IO[bytes]) -> Iterator[bytes]:
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


def _failures_in_piece(piece: bytes, candidates: list[KnownFailure], before: int) -> Iterator[LogFailure]:
    for number, raw in enumerate(piece.split(b"\n"), before + 1):
        for candidate in candidates:
            word = candidate.first_matching_word(raw)
            if word is None:
                continue
            start = max(0, raw.find(word) - LONGEST // 2)  # of a long line the part around the word is searched
            part = raw[start : start + LONGEST].decode("utf-8", "replace")
            text = sanitized_line(part.replace("\r", " "))  # a progress bar overwrites text
            if match := candidate.pattern.search(text):
                values = _template_values(match)
                yield LogFailure(
                    name=candidate.name,
                    cause=_filled_template(candidate.cause, values),
                    cure=_filled_template(candidate.cure, values),
                    source=candidate.source,
                    line=number,
                    text=text.strip()[:400],
                    error=candidate.error,
                    kind=candidate.kind,
                )


def _template_values(match: re.Match[str]) -> dict[str, str]:
    """Return the groups of a match, and facts of the tables about them."""
    values = {name: value for name, value in match.groupdict().items() if value is not None}
    if "capability" in values:
        rows = tables.cuda_rows_for_capability(capability_number(values["capability"]))
        ends = [pick(rows, key=lambda row: version_numbers(row["first"])) for pick in (min, max) if rows]
        values["cudas"] = f"{ends[0]['first']} to {ends[1]['last']}" if ends else "none that the tables have"
    return values


def _filled_template(sentence: str, values: dict[str, str]) -> str:
    return re.sub(r"\{(\w{1,40})\}", lambda match: values.get(match[1], match[0]), sentence)
