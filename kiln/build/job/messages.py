"""The messages of a config's process, its log, and the stop before its budget is spent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

from kiln.base import errors, files, serialization
from kiln.base.errors import AlreadyRunning, BudgetSpent, KilnError
from kiln.base.masking import masked
from kiln.base.serialization import to_json
from kiln.base.text import PARTS, DownloadPace, duration, received_text, remaining_text, unindented_terminal_line
from kiln.state.results import ConfigState, Phase, Progress, StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from kiln.build.job.job import BuildOptions
    from kiln.state.results import CompileReport


def progress_text(progress: Progress) -> str:
    """Return the progress of a step in one line: ``1,234 of 5,678 actions, about 42 min left: Compiling a.cc``."""
    if progress.in_bytes:
        return received_text(progress.done, progress.total, progress.left)
    if progress.stalled:
        return unindented_terminal_line(f"stalled at {_action_counts(progress)}: {progress.stalled}")
    remaining = f", {remaining_text(progress.left)}" if progress.left else ""
    current = f": {progress.current}" if progress.current else ""
    return unindented_terminal_line(f"{_action_counts(progress)}{remaining}{current}")


def _action_counts(progress: Progress) -> str:
    return (
        f"{progress.done:,} actions" if progress.total is None else f"{progress.done:,} of {progress.total:,} actions"
    )


class ProgressLineSelector:
    """Selects the lines for a log: one for each tenth of a step, and for the start and end of a stall.

    Of a step's downloads, one after the other, each has its own lines; one that is over at once has none.
    """

    def __init__(self) -> None:
        self._part = 0
        self._stalled = False

    def next_log_line(self, progress: Progress) -> str:
        """Return a line, or an empty text if the last one is recent enough."""
        part = PARTS * progress.done // progress.total if progress.total else 0
        begins = bool(progress.stalled) and not self._stalled
        ends = self._stalled and not progress.stalled
        is_over = progress.in_bytes and part >= PARTS
        is_at_once = is_over and self._part == 0
        is_due = begins or ends or (part > self._part and not is_at_once)
        self._part = 0 if is_over else max(part, self._part)
        if not is_due:
            return ""
        self._stalled = bool(progress.stalled)
        return f"continues: {progress_text(progress)}" if ends else progress_text(progress)


MARK = "\x1e"
STATES = {
    "OutOfMemory": ConfigState.OUT_OF_MEMORY,
    "DiskFull": ConfigState.DISK_FULL,
    "AlreadyRunning": ConfigState.LOCKED,
    "BudgetSpent": ConfigState.INTERRUPTED,
}


def send_message(kind: str, **fields: Any) -> None:
    """Print a message."""
    serialization.write_line(sys.stdout, message_line(kind, **fields))


def message_line(kind: str, **fields: Any) -> str:
    """Return the line of a message."""
    return f"{MARK}{serialization.encode({'kind': kind, **fields})}"


def parse_message(line: str) -> dict[str, Any] | None:
    """Return the message of a line; None for a line of a build's output."""
    if not line.startswith(MARK):
        return None
    message = serialization.decode(line.removeprefix(MARK))
    return message if message is not None and "kind" in message else None


class ReportedStep:
    """A running step; ``reused`` is set when an earlier run's result is used."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._phases: dict[str, float] = {}
        self._phase, self._entered = "", 0.0
        self.reused = False
        self.notes: list[str] = []
        self.compile: CompileReport | None = None
        self._pace = DownloadPace(
            lambda done, total, left: self.report_progress(Progress(done=done, total=total, left=left, in_bytes=True))
        )

    def add_note(self, text: str) -> None:
        """Add a note, which is shown below the step and in the report."""
        self.notes.append(text)

    def enter_phase(self, name: str) -> None:
        """Count the time from now on as that of a phase; one that was left before continues."""
        now = time.monotonic()
        if self._phase:
            self._phases[self._phase] = self._phases.get(self._phase, 0.0) + now - self._entered
        self._phase, self._entered = name, now

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases so far, and end the present one."""
        self.enter_phase("")
        return tuple(Phase(name=name, seconds=round(seconds, 3)) for name, seconds in self._phases.items())

    def pass_on_line(self, text: str) -> None:
        """Pass on a line of the step's output."""
        self._send(text.lstrip(MARK))

    def report_progress(self, progress: Progress) -> None:
        """Report the progress of the step's compile or download."""
        self._send(message_line("progress", **to_json(progress)))

    def report_received(self, done: int, total: int | None) -> None:
        """Report how many bytes of the step's download are there, of how many, if known; often is not too often."""
        self._pace.received(done, total)

    def record_compile_report(self, report: CompileReport) -> None:
        """Record the report of the step's compile."""
        self.compile = report
        self.add_note(f"Bazel: {report}")


class StepReporter:
    """Reports steps on standard output, one after the other, and collects their reports.

    Of steps at the same moment the first is shown; the lines of the others are kept until it is their turn. ``failed``
    is the first of them that failed.
    """

    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.failed: str | None = None
        self._lock = threading.Lock()
        self._running: list[_Turn] = []

    def expect_steps(self, number: int) -> None:
        """Report how many steps are still to come."""
        send_message("expected", steps=number)

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[ReportedStep]:
        """Report a step's start and end, with its time."""
        began, start, turn = time.time(), time.monotonic(), _Turn()
        with self._lock:
            self.failed = self.failed if self._running else None
            self._running.append(turn)

        def send(line: str) -> None:
            with self._lock:
                if self._running[0] is turn:
                    serialization.write_line(sys.stdout, line)
                else:
                    turn.kept.append(line)

        step = ReportedStep(send)
        send(message_line("step", title=title))
        failed = True
        try:
            yield step
            failed = False
        finally:
            if failed:
                self.failed = self.failed or title
            report = StepReport(
                title=title,
                seconds=round(time.monotonic() - start, 3),
                reused=step.reused,
                notes=tuple(step.notes),
                compile=step.compile,
                failed=failed,
                phases=step.phases(),
                began=round(began, 3),
            )
            send(message_line("done", **to_json(report)))
            with self._lock:
                turn.report = report
                self._show_next_steps()

    def _show_next_steps(self) -> None:
        """Take away the steps that have been shown to their end, and show what the next ones have written."""
        while self._running and (report := self._running[0].report) is not None:
            self.steps.append(report)
            del self._running[0]
            for line in self._running[0].kept if self._running else ():
                serialization.write_line(sys.stdout, line)


@dataclass(slots=True)
class _Turn:
    """A running step: its lines that wait until it is shown, and its report once it has ended."""

    kept: list[str] = field(default_factory=list)
    report: StepReport | None = None


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
    reason = "\n".join(filter(None, (error.what, error.why)))
    if isinstance(error, AlreadyRunning):
        reason = f"another process builds it: {error.what}"
    state = STATES.get(type(error).__name__, ConfigState.FAILED)
    return {"state": state.value, "reason": reason, "error": error_as_json(error)}


TEXTS = frozenset({"title", "notes"})  # the fields of a message that are shown to people


class BuildLog:
    """A config's log: every line of its build with the time, passed on to standard output."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = ProgressLineSelector()

    def __enter__(self) -> BuildLog:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file: TextIO = self.path.open("a", encoding="utf-8", buffering=1)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.file.close()

    def record_and_pass_on_line(self, line: str) -> None:
        """Record a line of the build process."""
        from kiln.build.job.untrusted_results import is_valid_message
        from kiln.state.ledger import json_columns

        message = parse_message(line)
        if message is None or not is_valid_message(message):  # a script can write into the same stream
            text = masked(line) if line.startswith(MARK) else line  # all other lines were masked when they were read
            self.write_line(text)
            serialization.write_line(sys.stdout, text.lstrip(MARK))
            return
        message = {**message, **{name: _masked_texts(message[name]) for name in TEXTS & message.keys()}}
        if message["kind"] == "step":
            self.write_line(f"=== {message.get('title')}")
            self.journal = ProgressLineSelector()
        elif message["kind"] == "done":
            self.write_line(f"--- {message.get('title')}: {message.get('seconds')} s")
            for note in message.get("notes", ()):
                self.write_line(f"    {note}")
        elif message["kind"] == "progress" and (
            progress := self.journal.next_log_line(json_columns.progress_from_json(message))
        ):
            self.write_line(f"    {progress}")
        send_message(**message)

    def write_line(self, line: str) -> None:
        """Write a line of the log."""
        now = datetime.now().astimezone()
        with contextlib.suppress(OSError):  # the build reports a full disk itself
            self.file.write(f"{now:%Y-%m-%d %H:%M:%S} {line}\n")


def _masked_texts(text: str | list[str]) -> str | list[str]:
    return masked(text) if isinstance(text, str) else [masked(part) for part in text]


# Bytes of a cache per second: measured for packing (docs/reference/benchmarks.md), assumed for uploading, as no
# service guarantees a speed.
PACKED, UPLOADED = 50_000_000, 25_000_000
LEAST, SHARE = 120.0, 0.1  # seconds of the reserve that do not depend on the size, at most this share of the budget
LOOK, MEASURE = 0.5, 60.0  # seconds between two checks, and between two measurements of a cache
ACTIONS_LOOK = 0.1
SHORTEST = 10.0  # seconds that Bazel has at least for its end
CONTINUE = "run the same command again; with --handover DIR a job on another machine continues it"


def least_reserve_seconds(budget: float) -> float:
    """Return the seconds that a budget keeps for the end of a build, whatever it made."""
    return min(LEAST, SHARE * budget)


def termination_time_in_notice(text: str) -> float | None:
    """Return the time of a machine's end, in seconds since the epoch, by a notice ``{"at": N}``; None without one."""
    try:
        return float(json.loads(text)["at"])
    except (ValueError, KeyError, TypeError):
        return None


def transferable_bytes(seconds: float) -> int:
    """Return the bytes of a cache that can be packed and uploaded in a time, after Bazel's end."""
    return round(max(0.0, seconds - SHORTEST) / (1 / PACKED + 1 / UPLOADED))


def reserve_seconds(size: int, least: float) -> float:
    """Return the seconds that the end of a build takes: of Bazel, and of packing and uploading ``size`` bytes."""
    return least + size / PACKED + size / UPLOADED


@dataclass(slots=True, kw_only=True)
class BudgetMonitor:
    """Watches the time and the finished actions of a build in a thread, and stops it.

    ``cache`` is the folder of its compile cache, ``stop`` the file that asks it to stop. ``spent`` says why, once it
    was stopped, ``terminated`` that it went on regardless.
    """

    options: BuildOptions
    cache: Path
    stop: Path
    spent: str = ""
    terminated: bool = False
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _before: int = 0
    _measured: float = 0.0
    _reserve: float = 0.0

    @contextlib.contextmanager
    def stop_when_spent(self) -> Iterator[None]:
        """Stop the block in time, where there is a budget.

        Raises:
            BudgetSpent: when the block had to be terminated.
        """
        from kiln.state.store.compile_cache import cached_action_count

        files.remove(self.stop)
        if self.options.has_budget:
            self._before = cached_action_count(self.cache)
            self._thread = threading.Thread(target=self._watch_budget, name="budget", daemon=True)
            self._thread.start()
        try:
            try:
                yield
            finally:
                self._over.set()
                if self._thread is not None:
                    self._thread.join()
        except KeyboardInterrupt:
            if not self.terminated:
                raise
            raise BudgetSpent(f"stopped before it was finished: {self.spent}", hint=CONTINUE) from None

    def _watch_budget(self) -> None:
        while not self.spent:
            if self._over.wait(LOOK if self.options.action_limit is None else ACTIONS_LOOK):
                return
            self.spent = self.stop_reason(time.time(), self._before)
        with contextlib.suppress(OSError):  # a script has made a link of that name, and is terminated below
            files.create_empty_file(self.stop)
        if not self._over.wait(max(SHORTEST, self._reserve / 2)):
            self.terminated = True
            os.kill(os.getpid(), signal.SIGTERM)

    def stop_reason(self, now: float, before: int) -> str:
        """Return why the build is to stop now, empty while it may go on; ``before`` is the count of actions then."""
        from kiln.state.store.compile_cache import cached_action_count

        limit, deadline, notice = self.options.action_limit, self.options.deadline, self.options.notice
        end = None if notice is None else termination_time_in_notice(files.text_or_empty(notice))
        if end is not None:
            return f"the machine is taken back in {duration(max(0.0, end - now))}"
        if limit is not None and (done := cached_action_count(self.cache) - before) >= limit:
            return f"{done} actions of Bazel are finished, and --budget allows {limit}"
        if deadline is None:
            return ""
        self._update_reserve(now)
        left = deadline - now
        if left > self._reserve:
            return ""
        return f"{duration(max(0.0, left))} of --budget are left, which its end and its packing take"

    def _update_reserve(self, now: float) -> None:
        """Estimate the time that the end takes; measuring a large cache takes long itself."""
        if now - self._measured < MEASURE:
            return
        started = time.monotonic()
        self._reserve = reserve_seconds(files.size_on_disk(self.cache), self.options.least_reserve)
        self._measured = now + 10 * (time.monotonic() - started)
