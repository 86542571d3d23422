"""How a cell's process tells what it does: the lines of its steps' output, and lines of its own between them.

A line of its own begins with a character that no build prints, and holds JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from kiln.model.artifact import StepReport

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = "\x1e"


def say(kind: str, **fields: Any) -> None:
    """Print a line of one's own."""
    sys.stdout.write(f"{MARK}{json.dumps({'kind': kind, **fields})}\n")
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

    def note(self, text: str) -> None:
        """Keep a line that is shown below the step and in the report."""
        self.notes.append(text)

    def found(self) -> None:
        """Say that an earlier run's result is used."""
        self.reused = True

    def line(self, text: str) -> None:
        """Hand on a line of the step's output."""
        sys.stdout.write(f"{text.lstrip(MARK)}\n")
        sys.stdout.flush()


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
            self.steps.append(StepReport(title=title, seconds=seconds, reused=step.reused, notes=tuple(step.notes)))
            say("done", title=title, seconds=seconds, reused=step.reused, notes=step.notes, failed=self.failed == title)
