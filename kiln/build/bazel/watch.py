"""Follow a running build of Bazel, interrupt it in time, and record its external repositories."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files, process_table
from kiln.base.errors import BuildFailed, KilnError, program_output_with_margin
from kiln.base.text import RemainingTimeEstimate
from kiln.build.bazel.events import BazelBuildState
from kiln.build.engine.failures import source_work_folders

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from kiln.base.process_table import Process
    from kiln.conda.provenance.records import ExternalRepository
    from kiln.state.results import CompileReport, Progress


NAME = "stop"  # of the file, in the config's folder

# A process of its own, in no job table: a script's `wait` does not wait for it, and it holds none of its files open.
# The fields of a process's stat after its name are its state and its parent; a name may contain anything.
_LINES = Path(__file__).with_name("interrupt.sh.in")


def interrupt_bazel_lines(file: Path) -> str:
    """Return the lines, for the beginning of a script in bash."""
    return _LINES.read_text(encoding="utf-8").format(file=shlex.quote(str(file)))


FILE = "external_repositories.json"  # in a step's folder


def write_repository_record(step_folder: Path) -> None:
    """Write what the sources in a step's work folders declare; a build does not fail for what they declare."""
    try:
        declared = [item for folder in source_work_folders(step_folder) for item in _declared_repositories(folder)]
    except KilnError as error:
        sys.stdout.write(f"the external repositories of the sources are not recorded: {error}\n")
        declared = []
    if declared:
        from kiln.base.serialization import to_json

        files.write_text(step_folder / FILE, json.dumps(to_json(declared)))


def read_repository_record(step_folder: Path) -> list[dict[str, Any]]:
    """Return what was recorded of a step, as JSON values."""
    file = step_folder / FILE
    values: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    return values


def merged_repositories(*declared: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the repositories of several steps, of each name the first."""
    by_name: dict[str, dict[str, Any]] = {}
    for item in (item for values in declared for item in values):
        by_name.setdefault(item["name"], item)
    return list(by_name.values())


def _declared_repositories(folder: Path) -> tuple[ExternalRepository, ...]:
    from kiln.conda.provenance.bazel_repositories import read_declaring_files

    contents = read_declaring_files(folder)
    if not contents:
        return ()
    from kiln.base import limits  # few sources declare any
    from kiln.conda.provenance.bazel_repositories import external_repositories

    return limits.run_bounded(lambda: external_repositories(contents))


EVENTS, PROFILE = "events.json", "profile.gz"  # the ends of the names of a call's files
LOOK = 0.5  # seconds between two reads of the file
HEAD = 1024  # bytes at a file's beginning, which hold the unique id of a call of Bazel
WINDOW = 600.0  # seconds of the past on which an estimate is based: cached actions are fast, compiled ones slow
IDLE = 0.02  # of a core: an idle Java server still uses some
SHOWN = 3  # processes
MESSAGE = 15  # lines of a failed action's output that are reported


class BuildEventFile:
    """Reads whole events from a file that another process writes; another call of Bazel begins a new file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.build = BazelBuildState()
        self._at = 0
        self._head = b""
        self._rest = b""
        self._lock = threading.Lock()

    def read_new_events(self) -> None:
        """Read the new events."""
        with self._lock:
            try:
                with self.path.open("rb") as file:
                    head = file.read(HEAD)
                    if not head.startswith(self._head):
                        self.build, self._at, self._rest = BazelBuildState(), 0, b""
                    self._head = head
                    file.seek(self._at)
                    data = file.read()
            except OSError:
                return
            self._at += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self.build.handle_event_line(line)

    def compile_report(self) -> CompileReport | None:
        """Return the origin of this call's actions; its profile is next to the events, if the step put it there.

        Bazel's own place for profiles is used again by the next call, and with a remote executor the events name none.
        """
        profile = self.path.with_name(self.path.name.replace(EVENTS, PROFILE))
        if profile.is_file():
            self.build.profile = profile
        return self.build.compile_report()


def earlier_event_files(path: Path) -> list[Path]:
    """Return the files of events that a step has put aside, under longer names, before a further call of Bazel."""
    return sorted(path.parent.glob(f"{path.name}.*"))


class StallDetector:
    """Detects that for ``limit`` seconds no event has arrived and hardly any processor time was used."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._events = -1
        self._busy: float | None = None
        self._since = 0.0

    def stalled_seconds(self, now: float, events: int, busy: Callable[[], float]) -> float | None:
        """Return for how long nothing has happened, once that is too long; ``busy`` is called only without an event."""
        if events != self._events:
            self._events, self._busy, self._since = events, None, now
            return None
        used = busy()
        if self._busy is None or not 0 <= used - self._busy <= IDLE * max(now - self._since, LOOK):
            self._busy, self._since = used, now
        idle = now - self._since
        return idle if idle >= self.limit else None


@dataclass(slots=True, kw_only=True)
class BuildWatch:
    """A build that is followed by a thread; ``on_progress`` is called with its progress, at most twice a second.

    Its processes are only inspected if they run in the same container (``same_container``) as this one.
    """

    file: BuildEventFile
    on_progress: Callable[[Progress], None]
    stall: StallDetector
    pace: RemainingTimeEstimate = field(default_factory=lambda: RemainingTimeEstimate(WINDOW))
    reported: Progress | None = None
    same_container: bool = True

    def poll_events(self, now: float) -> None:
        """Read new events, and report changed progress."""
        self.file.read_new_events()
        progress = self.current_progress(now)
        if progress is not None and progress != self.reported:
            self.reported = progress
            self.on_progress(progress)

    def current_progress(self, now: float) -> Progress | None:
        """Return the progress of the build, None before it begins."""
        from kiln.state.results import Progress

        build = self.file.build
        stalled = self.stall_description(now)
        if build.events == 0 and not stalled:
            return None
        return Progress(
            done=build.done,
            total=None if build.total is None else max(build.total, build.done),
            current=build.current,
            left=self.pace.remaining_seconds(now, build.done, build.total),
            stalled=stalled,
        )

    def stall_description(self, now: float) -> str:
        """Describe a stall and the processes that run; empty while there is progress."""
        if not self.same_container:
            idle = self.stall.stalled_seconds(now, self.file.build.events, lambda: 0.0)
            return "" if idle is None else f"no output of Bazel for {idle / 60:.0f} min"
        roots = {os.getpid(), *({self.file.build.server} if self.file.build.server else ())}

        def busy_seconds() -> float:
            # Inspecting processes takes time as well, which is not the build's.
            return sum(
                process.busy
                for process in process_table.processes_with_descendants(*roots)
                if process.pid != os.getpid()
            )

        idle = self.stall.stalled_seconds(now, self.file.build.events, busy_seconds)
        if idle is None:
            return ""
        names = awaited_processes_text(process_table.processes_with_descendants(*roots), without=roots)
        return f"nothing has happened for {idle / 60:.0f} min; at work: {names or 'nothing but Bazel itself'}"

    def compile_report(self) -> CompileReport | None:
        """Return the origin of the actions of all calls of Bazel, None when it has not counted them."""
        from kiln.state.results import sum_of_reports

        self.file.read_new_events()
        earlier = [BuildEventFile(path) for path in earlier_event_files(self.file.path)]
        for file in earlier:
            file.read_new_events()
        reports = [report for file in (*earlier, self.file) if (report := file.compile_report())]
        return sum_of_reports(reports) if reports else None

    def explained_error(self, error: KilnError) -> KilnError:
        """Return an error with the action that failed and its cause, as far as they are known."""
        from kiln.compat import causes

        self.file.read_new_events()
        failures, complaints = self.file.build.failures, self.file.build.complaints
        output = failures[0].text if failures else "\n".join(complaints)
        cause = causes.cause_of_failed_compile(
            "\n".join([*(failure.text for failure in failures), *complaints, error.what, error.why])
        )
        kind = BuildFailed if cause is None else cause.error
        if not output and cause is None:
            return error
        if not output and cause is not None and cause.headline and cause.headline in error.what:
            return kind(error.what, why=error.why, hint=error.hint)
        action = str(failures[0]) if failures else "the compile failed"
        more = f"; {len(failures) - 1} more failed" if len(failures) > 1 else ""
        why = f": {cause.headline or cause.name}" if cause else ""
        if workspace := self.file.build.workspace:
            output = output.replace(workspace, "$SRC_DIR")  # as in the log
        message = program_output_with_margin("\n".join(output.splitlines()[-MESSAGE:]))
        return kind(f"{action}{more}{why}\n{message}".rstrip(), why=error.why, hint=cause.cure if cause else error.hint)


def awaited_processes_text(alive: Collection[Process], *, without: Collection[int] = ()) -> str:
    """Return the processes that a build is waiting for, as text: those without children, the oldest first."""
    alive = [process for process in alive if process.state not in process_table.ENDED]
    parents = {process.parent for process in alive}
    leaves = [process for process in alive if process.pid not in parents and process.pid not in without]
    oldest = sorted(leaves, key=lambda process: process.started)[:SHOWN]
    return ", ".join(f"{process.name} (process {process.pid}, {_process_age_text(process)})" for process in oldest)


def _process_age_text(process: Process) -> str:
    seconds = process_table.seconds_since_start(process)
    return f"since {seconds / 60:.0f} min" if seconds >= 120 else f"since {seconds:.0f} s"


@contextlib.contextmanager
def watch_build(
    path: Path, *, on_progress: Callable[[Progress], None], stall: float, same_container: bool = True
) -> Iterator[BuildWatch]:
    """Follow the build whose event file is ``path`` during the block; ``stall`` is in seconds."""
    watch = BuildWatch(
        file=BuildEventFile(path), on_progress=on_progress, stall=StallDetector(stall), same_container=same_container
    )
    over = threading.Event()

    def poll_events_until_over() -> None:
        while not over.wait(LOOK):
            watch.poll_events(time.monotonic())

    thread = threading.Thread(target=poll_events_until_over, name="Bazel's events", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()
        watch.file.read_new_events()
