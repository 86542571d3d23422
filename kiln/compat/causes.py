"""The causes of a failed program or build, by its log: the patterns are in ``data``.

``failures.ini`` has those of TensorFlow, CUDA and Bazel, ``build_failures.ini`` those of all packages: the doctor reads
logs with both, and errors of failed builds quote them.

A log may be a gigabyte long, and is untrusted: it is read in pieces, at most ``LONGEST`` characters of a line are
searched, and each pattern's repetitions are bounded.
"""

from __future__ import annotations

import configparser
import io
import re
import signal
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
# Bytes. The lines of a piece are searched where one of them has a word: of larger pieces, needlessly many.
_PIECE = 1 << 17
_END = 8 << 20  # bytes
_REALTIME = 32  # the first signal without a name
_COMMAND = 100  # characters of a command in a message
_BEFORE = 5  # lines before the first that speaks of an error
_NEXT = 3  # lines between two lines of one message


class Kind(str, Enum):
    """What a message is beside others of the same log; in the order in which they matter."""

    CAUSE = "cause"
    GENERAL = "general"
    DEGRADED = "degraded"
    CONSEQUENCE = "consequence"
    HARMLESS = "harmless"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFailure:
    """A known failure: one of its words is in every line that a pattern matches.

    ``headline`` is the cause in a few words, empty where no build ends so; ``error`` is that of a build.
    """

    name: str
    words: tuple[bytes, ...]
    patterns: tuple[re.Pattern[str], ...]
    headline: str
    cause: str
    cure: str
    source: str
    error: type[KilnError]
    kind: Kind

    def first_matching_word(self, text: bytes) -> bytes | None:
        """Return the first of the words that is in a text."""
        return next((word for word in self.words if word in text), None)

    def first_match(self, line: str) -> re.Match[str] | None:
        """Return the match of the first pattern that matches."""
        return next((match for pattern in self.patterns if (match := pattern.search(line))), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFailure:
    """A failure found in a log: at ``line``, counted from 1, and in ``count`` lines in all."""

    name: str
    headline: str
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
    """Return the failures of both tables, in their order: of several in an output, the first is the cause."""
    settings = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    for table in ("failures.ini", "build_failures.ini"):
        settings.read_string((tables.DATA / table).read_text(encoding="utf-8"))
    return tuple(
        KnownFailure(
            name=name,
            words=tuple(word.encode() for word in section["words"].splitlines()),
            patterns=tuple(re.compile(pattern) for pattern in section["pattern"].splitlines()),
            headline=section.get("headline", name if "error" in section else ""),
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
    """Return the failure in a failed compile's output: of several the one that the tables have first."""
    ranks = {failure.name: rank for rank, failure in enumerate(known_failures())}
    failures = failures_in_log(io.BytesIO(text.encode("utf-8", "replace")))
    failures = tuple(failure for failure in failures if failure.kind is not Kind.GENERAL)  # the action is told anyway
    return min(failures, key=lambda failure: ranks[failure.name], default=None)


def cause_of_failed_build(text: str) -> LogFailure | None:
    """Return the failure of builds in an output: of several the one that the tables have first, where it is told last.

    A script goes on after much that looks like a failure; what ended it stands at the end. Lines next to each other
    are one message, whose first counts; of a compiler's errors the others mostly follow from the first.
    """
    candidates = [failure for failure in known_failures() if failure.headline]
    ranks = {failure.name: rank for rank, failure in enumerate(candidates)}
    cause: LogFailure | None = None
    for failure in _failures_in_piece(text.encode("utf-8", "replace"), candidates, 0):
        if cause is not None and failure.name == cause.name and failure.line - (cause.line + cause.count - 1) <= _NEXT:
            cause = replace(cause, count=failure.line - cause.line + 1)
        elif cause is None or ranks[failure.name] < ranks[cause.name] + (cause.kind is not Kind.GENERAL):
            cause = failure
    return cause


# The end of pip's report of a failed subprocess, and of the engine's: what comes before says more.
_WRAP_UP = re.compile(
    r"^\s*(?:error: subprocess-exited-with-error|Exception information:|ERROR: Exception:"
    r"|Removed build tracker:|Script failed with status \d{1,9})"
)
_OWN_BLOCK = re.compile(r"^\s*╰─> \[\d{1,9} lines? of output\]$")  # pip's, where it has not shown the output before
_TRACE = re.compile(r"^\++ ")  # of a shell
# It quotes what a script would say, `+ echo 'error: ...'`; kiln's log and those of CI services have a time before it.
_STAMPED_TRACE = re.compile(rb"(?:\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?Z? )?\++ ")
_ERROR = re.compile(r"\b(?:error|fatal|failed|failure|traceback|exception|panicked|abort(?:ed|ing)?)\b", re.IGNORECASE)


def script_end_in_words(code: int, output: str) -> str:
    """Return a script's exit code, with the signal that it stands for, and the last command in its shell's trace."""
    number = -code if code < 0 else code - 128
    ended = f"exit code {code}" + (f" ({signal.strsignal(number)})" if 0 < number < _REALTIME else "")
    commands = [line for line in output.splitlines() if line.startswith("+ ")]
    return f"{ended} after: {sanitized_line(commands[-1][2:])[:_COMMAND]}" if commands else ended


def telling_lines(text: str, most: int = 15) -> list[str]:
    """Return the lines of a failed build's output that say most: from its cause on, or those at its end.

    Left out are the shell's trace, and what pip and the engine say about the failure of another program.
    """
    lines = text.splitlines()
    if (cause := cause_of_failed_build(text)) is not None:
        rest = lines[cause.line - 1 :]
        ends = (at for at, line in enumerate(rest) if at and _WRAP_UP.match(line))
        return [line for line in rest[: next(ends, None)] if line.strip() and not _TRACE.match(line)][:most]
    blocks = [at for at, line in enumerate(lines) if _OWN_BLOCK.match(line)]
    if blocks:
        lines = lines[blocks[-1] + 1 :]
        lines = lines[: next((at for at, line in enumerate(lines) if line.strip() == "[end of output]"), None)]
    while (end := next((at for at, line in enumerate(lines) if _WRAP_UP.match(line)), None)) is not None:
        if not any(line.strip() for line in lines[:end]):
            lines = lines[end + 1 :]
            continue
        lines = lines[:end]
    shown = [line for line in lines if not _TRACE.match(line) and line.strip()][-most:]
    first = next((at for at, line in enumerate(shown) if _ERROR.search(line)), 0)
    return shown[max(0, first - _BEFORE) :] or [line for line in text.splitlines() if line.strip()][-most:]


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
            if _STAMPED_TRACE.match(raw):
                break
            start = max(0, raw.find(word) - LONGEST // 2)  # of a long line the part around the word is searched
            part = raw[start : start + LONGEST].decode("utf-8", "replace")
            text = sanitized_line(part.replace("\r", " "))  # a progress bar overwrites text
            if match := candidate.first_match(text):
                values = _template_values(match)
                yield LogFailure(
                    name=candidate.name,
                    headline=_filled_template(candidate.headline, values),
                    cause=_filled_template(candidate.cause, values),
                    cure=_filled_template(candidate.cure, values),
                    source=candidate.source,
                    line=number,
                    text=text.strip()[:400],
                    error=candidate.error,
                    kind=candidate.kind,
                )
                break  # the tables' later rows are more general


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
