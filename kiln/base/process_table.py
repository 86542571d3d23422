"""This machine's processes, read from /proc and ended, and the signals to this process; see proc(5)."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import files
from kiln.base.patterns import lazy_pattern
from kiln.base.system import processes as system_processes
from kiln.base.system.processes import TICKS, is_process_running, seconds_since_boot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType


_ANONYMOUS = lazy_pattern(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)
_OOM_KILLS = lazy_pattern(r"^oom_kill (\d+)$", re.MULTILINE)
ENDED = frozenset({"Z", "X"})  # states of a process that has ended, and is not yet waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process: ``used`` is its processor time in seconds, ``busy`` with that of its ended children.

    ``started`` is in clock ticks since boot: with its number, it identifies a process.
    """

    pid: int
    parent: int
    session: int
    name: str
    state: str
    used: float
    busy: float
    started: int


def parse_proc_stat(stat: str) -> Process:
    """Return the process of a ``/proc/PID/stat``; the name in brackets may contain anything."""
    pid, _, rest = stat.partition(" (")
    name, _, after = rest.rpartition(") ")
    fields = after.split()
    user, system, children_user, children_system = map(int, fields[11:15])
    return Process(
        pid=int(pid),
        parent=int(fields[1]),
        session=int(fields[3]),
        name=name,
        state=fields[0],
        used=(user + system) / TICKS,
        busy=(user + system + children_user + children_system) / TICKS,
        started=int(fields[19]),
    )


def has_proc_files() -> bool:
    """Return whether this system shows its processes: Linux alone has them in /proc."""
    return Path("/proc/self/stat").exists()


def read_process(pid: int) -> Process | None:
    """Return a process; None when it does not exist."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return parse_proc_stat(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))
    return None


def all_pids() -> tuple[int, ...]:
    """Return the numbers of all processes."""
    return tuple(int(entry.name) for entry in Path("/proc").glob("[0-9]*"))


def processes_with_descendants(*roots: int) -> tuple[Process, ...]:
    """Return processes with all their descendants."""
    processes = {process.pid: process for pid in all_pids() if (process := read_process(pid)) is not None}
    return tuple(process for process in processes.values() if not _ancestors(process, processes).isdisjoint(roots))


def _ancestors(process: Process, processes: dict[int, Process]) -> set[int]:
    ancestors: set[int] = set()
    current: Process | None = process
    while current is not None and current.pid not in ancestors:
        ancestors.add(current.pid)
        current = processes.get(current.parent)
    return ancestors


def seconds_since_start(process: Process) -> float:
    """Return the age of a process."""
    return seconds_since_boot() - process.started / TICKS


def environment_of_process(pid: int) -> tuple[bytes, ...]:
    """Return the variables with which a process was started, ``NAME=value``; empty when they cannot be read."""
    with contextlib.suppress(OSError):
        return tuple(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    return ()


def child_pids(pid: int) -> tuple[int, ...]:
    """Return the numbers of a process's children; none when it has ended."""
    with contextlib.suppress(OSError):  # it has ended; a glob would look up the files of its threads unguarded
        texts = [files.text_or_empty(thread / "children") for thread in Path(f"/proc/{pid}/task").iterdir()]
        return tuple(int(word) for text in texts for word in text.split())
    return ()


def waits_for_lock(pid: int) -> bool:
    """Return whether a process waits for a lock on a file, see proc_locks(5)."""
    lines = (line.split() for line in files.text_or_empty(Path("/proc/locks")).splitlines())
    return any(words[1] == "->" and words[5] == str(pid) for words in lines)


def process_tree_memory(root: int) -> int:
    """Return the anonymous memory of a process and its descendants, in bytes; cached files do not count."""
    statuses = (Path(f"/proc/{process.pid}/status") for process in processes_with_descendants(root))
    matches = (_ANONYMOUS.search(files.text_or_empty(status)) for status in statuses)
    return sum(1024 * int(match[1]) for match in matches if match)


def oom_kill_count() -> int:
    """Return how many processes the kernel has killed so far because memory ran out, of this process's control group.

    The count of the whole machine, which is taken where the group has none, also grows when a container somewhere
    exceeds its own limit: a build that fails for another reason at that moment would be blamed on memory.
    """
    groups = (line.split(":", 2) for line in files.text_or_empty(Path("/proc/self/cgroup")).splitlines())
    for _, controllers, group in groups:
        version_1 = "memory" in controllers.split(",")
        if version_1 or not controllers:
            name = f"memory{group}/memory.oom_control" if version_1 else f"{group.lstrip('/')}/memory.events"
            if match := _OOM_KILLS.search(files.text_or_empty(Path("/sys/fs/cgroup", name))):
                return int(match[1])
    match = _OOM_KILLS.search(files.text_or_empty(Path("/proc/vmstat")))
    return int(match[1]) if match else 0


def send_signal(number: signal.Signals, pids: Iterable[int]) -> tuple[int, ...]:
    """Send a signal to processes, and return the numbers of those that received it."""
    receivers = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            receivers.append(pid)
    return tuple(receivers)


def kill_descendants(root: int) -> None:
    """Kill all descendants of a process."""
    send_signal(signal.SIGKILL, [process.pid for process in processes_with_descendants(root) if process.pid != root])


def kill_orphans_in_folder(folder: Path) -> tuple[int, ...]:
    """Kill processes that a killed build left running below ``folder``; return their numbers.

    The caller holds the folder's lock. A process is an orphan when its working directory is there and its session's
    leader has ended; a user's shell in that folder still has its session's leader.
    """
    top, orphans = folder.resolve(), []
    for pid in all_pids():
        with contextlib.suppress(OSError):  # another user's, or it has ended meanwhile
            if Path(f"/proc/{pid}/cwd").readlink().is_relative_to(top):
                process = read_process(pid)
                if process is not None and not is_process_running(process.session):
                    orphans.append(pid)
    return send_signal(signal.SIGKILL, orphans)


TOGETHER = 1.0  # seconds within which two signals count as one


def die_with_parent(number: signal.Signals = signal.SIGKILL, *, parent: int | None = None) -> None:
    """Have this process get a signal when its parent ends, even by SIGKILL.

    ``parent`` is the number of that process, if known: if it has ended while this process was starting, exit.
    """
    system_processes.die_with_parent(number)
    if parent is not None and os.getppid() != parent:
        os._exit(128 + number)


def end_tree_on_signal(number: signal.Signals = signal.SIGTERM) -> None:
    """Have a signal end this process and its descendants at once, scripts among them.

    Python's own handlers wait until a library's call has returned, which may take long; a thread does not.
    """
    wakeup, trigger = os.pipe()
    os.set_blocking(trigger, False)

    def end_tree() -> None:
        os.read(wakeup, 1)
        kill_descendants(os.getpid())
        os._exit(128 + number)

    threading.Thread(target=end_tree, daemon=True).start()
    signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(trigger, warn_on_full_buffer=False)


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end the block as Ctrl-C does, so that processes are stopped and files cleaned up.

    A SIGHUP that was ignored when this process was started, as by nohup, stays ignored, as does a SIGINT.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with temporary_signal_handler((signal.SIGTERM, *hangup_signals()), _interrupting_handler()):
        yield


def hangup_signals() -> tuple[signal.Signals, ...]:
    """Return SIGHUP, unless it was ignored when this process was started."""
    return () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)


@contextlib.contextmanager
def temporary_signal_handler(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handle signals in the block; must be called in the main thread."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _interrupting_handler() -> Callable[[int, FrameType | None], None]:
    """Return a handler that merges signals in quick succession: timeout(1) signals a process, then its group."""
    last = -math.inf

    def interrupt(number: int, _frame: FrameType | None) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before >= TOGETHER:
            raise KeyboardInterrupt(signal.Signals(number).name)

    return interrupt
