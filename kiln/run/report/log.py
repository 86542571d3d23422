"""A build's log: its steps, its tests by name, the line of a failure's cause, and its text in parts for a page."""

from __future__ import annotations

import base64
import contextlib
import io
import re
import zlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kiln.base.errors import DiskFull, OutOfMemory
from kiln.base.text import line_as_terminal_shows
from kiln.compat import causes
from kiln.run.report.comparison import TEST_STEP
from kiln.run.report.text import open_log
from kiln.run.view.state import TRACED_VARIABLE
from kiln.state.results import BAD, ConfigState

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from kiln.state.results import ConfigRun

_STAMP = 20  # bytes of the time before each line: ``2026-11-29 06:22:42 ``
_TIME = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
_LONGEST = 1 << 14  # bytes of a line that are kept
_PART = 1 << 16  # bytes of a part: what a browser unpacks and lays out at once
_STEPS, _TESTS = 500, 1000  # a script could print any number of lines that look like one
_END = 8 << 20  # bytes at the end in which causes are searched, as the command's advice does
_CAUSES = 3
# What says that something before it has failed.
_CONSEQUENCE = re.compile(
    r"collect2: |make(?:\[\d+\])?: \*\*\*|ninja: build stopped|exit (?:code|status)|Script failed with status"
)
_PREFIX = re.compile(r"/\S{0,400}?/prefixes/[^/\s]{1,200}/")  # of a test
_NEAR = 400  # lines at the end of a failed step in which its error is looked for
_ERROR = re.compile(r"(?i:(?<![\w-])(?:error|fatal|traceback|cannot|undefined reference)(?![\w-]))|Error\b|FAILED")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStep:
    """A step in a log: its first line and its number of lines; ``seconds`` are None for one that has no end."""

    title: str
    line: int
    lines: int
    seconds: float | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTest:
    """A test: the command as its script's trace has it, the step, and the lines of both and of its output."""

    command: str
    step: str
    line: int
    lines: int
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCause:
    """A line that says why a build failed; ``cause`` and ``cure`` are empty for one that no table knows."""

    line: int
    text: str
    cause: str = ""
    cure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOutline:
    """What is in a log. ``parts`` are its lines, compressed and in base64: the first line, their number, the text.

    ``start`` is the time of the first line that has one.
    """

    steps: tuple[LogStep, ...] = ()
    tests: tuple[LogTest, ...] = ()
    causes: tuple[LogCause, ...] = ()
    lines: int = 0
    bytes: int = 0
    start: str = ""
    parts: tuple[tuple[int, int, str], ...] = ()


def read_log(config: ConfigRun, *, with_parts: bool = False) -> LogOutline:
    """Return the outline of a config's log; an empty one where it is missing, or not a regular file."""
    if config.log is None:
        return LogOutline()
    failed = {step.title for step in config.steps if step.failed}
    reader = _LogReader(failed, with_parts=with_parts)
    with contextlib.suppress(OSError):
        with open_log(config.log) as file:
            before = b"\n"
            for line in iter(partial(file.readline, _LONGEST), b""):
                if before.endswith(b"\n"):  # what a longer line has besides is left out
                    reader.add_line(line)
                before = line
        return reader.outline(_causes(config.log, config.state, reader) if config.state in BAD else ())
    return LogOutline()


class _LogReader:
    """Reads a log line by line; a hundred megabytes are a million lines, so each one takes few operations."""

    def __init__(self, failed: Collection[str], *, with_parts: bool) -> None:
        self._failed, self._with_parts = failed, with_parts
        self._start = ""
        self.number = self._bytes = 0
        self._begun: list[tuple[str, int]] = [("before the first step", 1)]
        self._ended: dict[str, tuple[int, float]] = {}
        self._tests: list[tuple[str, str, int]] = []
        self._parts: list[tuple[int, int, str]] = []
        self._part: list[bytes] = []
        self._size, self._first = 0, 1

    def add_line(self, line: bytes) -> None:
        """Add a line."""
        mark = line[_STAMP : _STAMP + 4]
        if not self._start and _TIME.match(line):
            self._start = line[: _STAMP - 1].decode()
        if mark == b"=== " and len(self._begun) < _STEPS:
            self._end_part()
            self._begun.append((_shown(line[_STAMP + 4 :]), self.number + 1))
        elif mark == b"--- ":
            title, _, seconds = _shown(line[_STAMP + 4 :]).rpartition(": ")
            if title == self._begun[-1][0]:
                with contextlib.suppress(ValueError):
                    self._ended[title] = (self.number + 1, float(seconds.removesuffix(" s")))
        elif mark[:2] == b"+ " and self._begun[-1][0].startswith(TEST_STEP) and len(self._tests) < _TESTS:
            text = _shown(line[_STAMP:])
            if not TRACED_VARIABLE.match(text):
                self._tests.append(
                    (_PREFIX.sub("$PREFIX/", text.removeprefix("+ ")), self._begun[-1][0], self.number + 1)
                )
        self.number += 1
        self._bytes += len(line)
        if not self._with_parts:
            return
        self._part.append(line if line.endswith(b"\n") else line + b"\n")
        self._size += len(line)
        if self._size >= _PART:
            self._end_part()

    def _end_part(self) -> None:
        if self._part:
            data = zlib.compress(b"".join(self._part), 6)
            self._parts.append((self._first, self.number + 1 - self._first, base64.b64encode(data).decode()))
        self._part, self._size, self._first = [], 0, self.number + 1

    def failed_lines(self) -> tuple[int, int]:
        """Return the first line of the failed step, and the one after its output; of the last step by default."""
        for (title, line), (_, following) in zip(self._begun, [*self._begun[1:], ("", self.number + 1)], strict=True):
            if title in self._failed:
                return line, self._ended.get(title, (following, 0.0))[0]
        title, line = self._begun[-1]
        return line, self._ended.get(title, (self.number + 1, 0.0))[0]

    def outline(self, causes: tuple[LogCause, ...]) -> LogOutline:
        """Return the outline of the lines so far."""
        self._end_part()
        begins = [*(line for _, line in self._begun), self.number + 1]
        steps = [
            LogStep(
                title=title,
                line=line,
                lines=begins[index + 1] - line,
                seconds=self._ended.get(title, (0, None))[1],
                failed=title in self._failed,
            )
            for index, (title, line) in enumerate(self._begun)
            if begins[index + 1] > line
        ]
        ends = {step.title: self._ended.get(step.title, (step.line + step.lines, 0.0))[0] for step in steps}
        tests = []
        for index, (command, step, line) in enumerate(self._tests):
            after = self._tests[index + 1 : index + 2]
            is_last = not after or after[0][1] != step
            end = ends.get(step, line + 1) if is_last else after[0][2]
            # `set -e` ends a script at the command that fails, which is its last one.
            tests.append(
                LogTest(
                    command=command, step=step, line=line, lines=end - line, failed=is_last and step in self._failed
                )
            )
        return LogOutline(
            steps=tuple(steps),
            tests=tuple(tests),
            causes=causes,
            lines=self.number,
            bytes=self._bytes,
            start=self._start,
            parts=tuple(self._parts),
        )


_ERRORS = {ConfigState.OUT_OF_MEMORY: OutOfMemory, ConfigState.DISK_FULL: DiskFull}


def _causes(log: Path, state: ConfigState, reader: _LogReader) -> tuple[LogCause, ...]:
    """Return the lines that say why a step failed: those that the table of failures knows, or else one of its last."""
    first, end = reader.failed_lines()
    with open_log(log) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _END))
        data = file.read()
    before = reader.number - data.count(b"\n") - (not data.endswith(b"\n"))
    known = [
        LogCause(line=before + found.line, text=_shown(found.text[_STAMP:]), cause=found.cause, cure=found.cure)
        for found in causes.failures_in_log(io.BytesIO(data))
        # What ended a build for want of memory or space is not what the log has besides.
        if first <= before + found.line < end and found.error is _ERRORS.get(state, found.error)
    ]
    if known:
        return tuple(known[-_CAUSES:])
    near = max(first, end - _NEAR)
    lines = data.split(b"\n")[max(0, near - 1 - before) : max(0, end - 1 - before)]
    shown = [(near + index, _shown(line[_STAMP:])) for index, line in enumerate(lines)]
    told = [
        (line, text)
        for line, text in shown
        if text.strip() and not text.startswith(("+", "===", "---")) and not _CONSEQUENCE.search(text)
    ]
    if state is not ConfigState.FAILED:  # a full disk, or no memory: the log has no better word for it
        return ()
    errors = [(line, text) for line, text in told if _ERROR.search(text)]
    return tuple(LogCause(line=line, text=text[:400]) for line, text in (errors or told)[-1:])


def _shown(line: bytes | str) -> str:
    return line_as_terminal_shows(line if isinstance(line, str) else line.decode(errors="replace")).rstrip("\n")
