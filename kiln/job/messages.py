"""The messages of a config's process: lines of JSON between the lines of its steps' output.

A message begins with a character that no build prints. Errors go from one process of a run to the next in messages, and
each has a config's state.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from kiln import errors, interprocess_messages
from kiln.errors import AlreadyRunning, KilnError
from kiln.model.build_results import StepReport
from kiln.model.run import ConfigState
from kiln.serialization import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kiln.model.bazel_progress_and_report import CompileReport, Progress

MARK = "\x1e"
STATES = {
    "OutOfMemory": ConfigState.OUT_OF_MEMORY,
    "DiskFull": ConfigState.DISK_FULL,
    "AlreadyRunning": ConfigState.LOCKED,
    "BudgetSpent": ConfigState.INTERRUPTED,
}


def send_message(kind: str, **fields: Any) -> None:
    """Print a message."""
    interprocess_messages.write_line(sys.stdout, f"{MARK}{interprocess_messages.encode({'kind': kind, **fields})}")


def parse_message(line: str) -> dict[str, Any] | None:
    """Return the message of a line; None for a line of a build's output."""
    if not line.startswith(MARK):
        return None
    message = interprocess_messages.decode(line.removeprefix(MARK))
    return message if message is not None and "kind" in message else None


class ReportedStep:
    """A running step; ``reused`` is set when an earlier run's result is used."""

    def __init__(self) -> None:
        self.reused = False
        self.notes: list[str] = []
        self.compile: CompileReport | None = None

    def add_note(self, text: str) -> None:
        """Add a note, which is shown below the step and in the report."""
        self.notes.append(text)

    def pass_on_line(self, text: str) -> None:
        """Pass on a line of the step's output."""
        interprocess_messages.write_line(sys.stdout, text.lstrip(MARK))

    def report_progress(self, progress: Progress) -> None:
        """Report the progress of the step's compile."""
        send_message("progress", **to_json(progress))

    def record_compile_report(self, report: CompileReport) -> None:
        """Record the report of the step's compile."""
        self.compile = report
        self.add_note(f"Bazel: {report}")


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
        send_message("step", title=title)
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
            send_message("done", **to_json(report))


def error_as_json(error: KilnError, *, step: str | None = None) -> dict[str, Any]:
    """Return an error as JSON values, with the step in which it occurred, if known."""
    return {
        "type": type(error).__name__,
        "what": str(error.what),
        "why": error.why,
        "hint": error.hint,
        **({"step": step} if step else {}),
    }


def error_from_json(fields: Mapping[str, str]) -> KilnError:
    """Return the error that another process reported, with its step in front."""
    kind: type[KilnError] = getattr(errors, fields["type"])
    step = f"{fields['step']}: " if fields.get("step") else ""
    return kind(f"{step}{fields['what']}", why=fields["why"], hint=fields["hint"])


def failed_config_result(error: KilnError) -> dict[str, Any]:
    """Return the result of a failed config, as JSON values."""
    reason = f"another process builds it: {error.what}" if isinstance(error, AlreadyRunning) else error.what
    state = STATES.get(type(error).__name__, ConfigState.FAILED)
    return {"state": state.value, "reason": reason, "error": error_as_json(error)}
