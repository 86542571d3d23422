"""The messages of a config's process: lines of JSON between the lines of its steps' output.

A message begins with a character that no build prints.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from kiln import json_messages
from kiln.model.build_results import StepReport
from kiln.serialization import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.model.compile_report import CompileReport, Progress

MARK = "\x1e"


def send(kind: str, **fields: Any) -> None:
    """Print a message."""
    json_messages.write_line(sys.stdout, f"{MARK}{json_messages.encode({'kind': kind, **fields})}")


def parse_message(line: str) -> dict[str, Any] | None:
    """Return the message of a line; None for a line of a build's output."""
    if not line.startswith(MARK):
        return None
    message = json_messages.decode(line.removeprefix(MARK))
    return message if message is not None and "kind" in message else None


class ReportedStep:
    """A running step."""

    def __init__(self) -> None:
        self.reused = False
        self.notes: list[str] = []
        self.compile: CompileReport | None = None

    def note(self, text: str) -> None:
        """Add a note, which is shown below the step and in the report."""
        self.notes.append(text)

    def reuse(self) -> None:
        """Record that an earlier run's result is used."""
        self.reused = True

    def line(self, text: str) -> None:
        """Pass on a line of the step's output."""
        json_messages.write_line(sys.stdout, text.lstrip(MARK))

    def progress(self, progress: Progress) -> None:
        """Report the progress of the step's compile."""
        send("progress", **to_json(progress))

    def compiled(self, report: CompileReport) -> None:
        """Record the report of the step's compile."""
        self.compile = report
        self.note(f"Bazel: {report}")


class StepReporter:
    """Reports steps on standard output, and collects their reports."""

    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.failed: str | None = None

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[ReportedStep]:
        """Report a step's start and end, with its time."""
        start = time.monotonic()
        step = ReportedStep()
        send("step", title=title)
        try:
            yield step
        except BaseException:
            self.failed = title
            raise
        finally:
            seconds = round(time.monotonic() - start, 3)
            report = StepReport(
                title=title,
                seconds=seconds,
                reused=step.reused,
                notes=tuple(step.notes),
                compile=step.compile,
                failed=self.failed == title,
            )
            self.steps.append(report)
            send("done", **to_json(report))
