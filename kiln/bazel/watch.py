"""A build followed while it goes on: its event file read as it grows, its progress told, a stall noticed."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln.bazel import processes
from kiln.bazel.events import Build
from kiln.compat import failures as known
from kiln.errors import BuildFailed, excerpt
from kiln.model.compile import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kiln.errors import KilnError
    from kiln.model.compile import CompileReport

LOOK = 0.5  # seconds between two looks at the file
HEAD = 1024  # bytes at a file's beginning, in which a call of Bazel has a number of its own
WINDOW = 600.0  # seconds of the past that an estimate is made from
IDLE = 0.02  # of a core: a Java server that waits does not use nothing
MESSAGE = 15  # lines of a failed action's output that are told


class EventFile:
    """Reads whole events from a file that another process writes; a second call of Bazel begins it anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.build = Build()
        self._at = 0
        self._head = b""
        self._rest = b""
        self._lock = threading.Lock()

    def read(self) -> None:
        """Take the events that have come since the last time."""
        with self._lock:
            self._read()

    def _read(self) -> None:
        try:
            with self.path.open("rb") as file:
                head = file.read(HEAD)
                if not head.startswith(self._head):
                    self.build, self._at, self._rest = Build(), 0, b""
                self._head = head
                file.seek(self._at)
                data = file.read()
        except OSError:
            return
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.build.take(line)


class Pace:
    """Estimates what is left from how fast actions ended lately: first cached ones fly, then compiled ones crawl."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def left(self, now: float, done: int, total: int | None) -> float | None:
        """Return the seconds until all is done, None while there is nothing to go by."""
        self._seen.append((now, done))
        while now - self._seen[0][0] > WINDOW and len(self._seen) > 2:
            self._seen.popleft()
        before, had = self._seen[0]
        if total is None or done <= had or now <= before:
            return None
        return max(0, total - done) * (now - before) / (done - had)


class Stall:
    """Notices when for ``limit`` seconds no event has come and hardly any processor time was used."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._events = -1
        self._busy: float | None = None
        self._since = 0.0

    def seconds(self, now: float, events: int, busy: Callable[[], float]) -> float | None:
        """Return for how long nothing has happened, once that is too long; ``busy`` is asked only without an event."""
        if events != self._events:
            self._events, self._busy, self._since = events, None, now
            return None
        used = busy()
        if self._busy is None or not 0 <= used - self._busy <= IDLE * max(now - self._since, LOOK):
            self._busy, self._since = used, now
        idle = now - self._since
        return idle if idle >= self.limit else None


@dataclass(slots=True, kw_only=True)
class Watch:
    """A build being followed by a thread of its own; ``tell`` hears of its progress, at most twice a second.

    Its processes are looked at only if they run ``beside`` this one, and not in a container of their own.
    """

    file: EventFile
    tell: Callable[[Progress], None]
    stall: Stall
    pace: Pace = field(default_factory=Pace)
    told: Progress | None = None
    beside: bool = True

    @property
    def build(self) -> Build:
        """What is known of the build."""
        return self.file.build

    def look(self, now: float) -> None:
        """Read what is new and tell of it."""
        self.file.read()
        progress = self.progress(now)
        if progress is not None and progress != self.told:
            self.told = progress
            self.tell(progress)

    def progress(self, now: float) -> Progress | None:
        """Return how far the build is, None before it begins."""
        build = self.build
        stalled = self.stalled(now)
        if build.events == 0 and not stalled:
            return None
        return Progress(
            done=build.done,
            total=None if build.total is None else max(build.total, build.done),
            current=build.current,
            left=self.pace.left(now, build.done, build.total),
            stalled=stalled,
        )

    def stalled(self, now: float) -> str:
        """Return since when nothing happens, and what is at work then; nothing while all goes well."""
        if not self.beside:
            idle = self.stall.seconds(now, self.build.events, lambda: 0.0)
            return "" if idle is None else f"Bazel has said nothing for {idle / 60:.0f} min"
        roots = {os.getpid(), *({self.build.server} if self.build.server else ())}

        def busy() -> float:
            # To look at processes takes time as well, which is no work of the build's.
            return processes.busy(each for each in processes.below(roots) if each.pid != os.getpid())

        idle = self.stall.seconds(now, self.build.events, busy)
        if idle is None:
            return ""
        names = processes.at_work(processes.below(roots), without=roots)
        return f"nothing has happened for {idle / 60:.0f} min; at work: {names or 'nothing but Bazel itself'}"

    def report(self) -> CompileReport | None:
        """Return what the actions came from, None when Bazel has not said it."""
        self.file.read()
        return self.build.report()

    def explained(self, error: KilnError) -> KilnError:
        """Return a failure told by the action that failed and by its cause, so far as these are known."""
        self.file.read()
        failures, complaints = self.build.failures, self.build.complaints
        said = failures[0].text if failures else "\n".join(complaints)
        cause = known.cause("\n".join([*(failure.text for failure in failures), *complaints, error.why]))
        if not said and cause is None:
            return error
        who = str(failures[0]) if failures else "the compile failed"
        more = f"; {len(failures) - 1} more failed" if len(failures) > 1 else ""
        why = f": {cause.name}" if cause else ""
        message = excerpt("\n".join(said.splitlines()[-MESSAGE:]))
        kind = BuildFailed if cause is None else cause.error
        return kind(f"{who}{more}{why}\n{message}".rstrip(), why=error.why, hint=cause.cure if cause else error.hint)


@contextlib.contextmanager
def watched(path: Path, *, tell: Callable[[Progress], None], stall: float, beside: bool = True) -> Iterator[Watch]:
    """Follow the build whose events come to ``path``, from now to the end of the block; ``stall`` is in seconds."""
    watch = Watch(file=EventFile(path), tell=tell, stall=Stall(stall), beside=beside)
    over = threading.Event()

    def follow() -> None:
        while not over.wait(LOOK):
            watch.look(time.monotonic())

    thread = threading.Thread(target=follow, name="Bazel's events", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()
        watch.file.read()
