"""How a cell's process tells what it does: the lines of its steps' output, and lines of its own between them.

A line of its own begins with a character that no build prints, and holds JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from kiln.model.artifact import StepReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.model.compile import CompileReport, Progress

MARK = "\x1e"


_ONE_AT_A_TIME = threading.Lock()  # a compile is told of by a thread of its own


def say(kind: str, **fields: Any) -> None:
    """Print a line of one's own."""
    _write(f"{MARK}{json.dumps({'kind': kind, **fields})}")


def _write(line: str) -> None:
    with _ONE_AT_A_TIME:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def heard(line: str) -> dict[str, Any] | None:
    """Return what a line of another process's own says; None for a line of a build's output."""
    if not line.startswith(MARK):
        return None
    try:
        told = json.loads(line.removeprefix(MARK))
    except ValueError:
        return None
    return told if isinstance(told, dict) and "kind" in told else None


class Told:
    """One step under way."""

    def __init__(self) -> None:
        self.reused = False
        self.notes: list[str] = []
        self.compile: CompileReport | None = None

    def note(self, text: str) -> None:
        """Keep a line that is shown below the step and in the report."""
        self.notes.append(text)

    def found(self) -> None:
        """Say that an earlier run's result is used."""
        self.reused = True

    def line(self, text: str) -> None:
        """Hand on a line of the step's output."""
        _write(text.lstrip(MARK))

    def progress(self, progress: Progress) -> None:
        """Tell how far the step's compile is."""
        say("progress", **dataclasses.asdict(progress))

    def compiled(self, report: CompileReport) -> None:
        """Keep what the step's compile came from."""
        self.compile = report
        self.note(f"Bazel: {report}")


class Voice:
    """Tells of steps on standard output, and keeps their reports."""

    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.failed: str | None = None

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Told]:
        """Tell of a step from its start to its end, with its time."""
        start = time.monotonic()
        step = Told()
        say("step", title=title)
        try:
            yield step
        except BaseException:
            self.failed = title
            raise
        finally:
            seconds = round(time.monotonic() - start, 3)
            report = StepReport(
                title=title, seconds=seconds, reused=step.reused, notes=tuple(step.notes), compile=step.compile
            )
            self.steps.append(report)
            say("done", **dataclasses.asdict(report), failed=self.failed == title)
