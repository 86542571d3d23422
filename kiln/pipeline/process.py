"""Processes of a run: they end with whoever started them, and what a killed one left running is ended."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def end_with_all_below(number: signal.Signals = signal.SIGTERM) -> None:
    """Have a signal end this process and all below it at once, scripts too, which nobody else would end.

    Python's own handlers wait until a library's call has returned, which may take long; the thread does not.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)

    def end() -> None:
        os.read(woken, 1)
        end_below(os.getpid())
        os._exit(128 + number)

    threading.Thread(target=end, daemon=True).start()
    signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)


def end_orphans(folder: Path) -> tuple[int, ...]:
    """Kill what an earlier, killed build left running below ``folder``; returns the numbers of the processes.

    Only for who holds the folder's lock. A process is such an orphan when it works there and the leader of its session
    is gone; somebody's shell, who looks at what a build left, has its session's leader still.
    """
    ended = []
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if _works_in(entry, folder) and not _runs(_session(entry)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                ended.append(pid)
    return tuple(ended)


def _works_in(entry: Path, folder: Path) -> bool:
    try:
        return (entry / "cwd").readlink().is_relative_to(folder)
    except OSError:
        return False


def _runs(pid: int) -> bool:
    """Whether a process is there and has not ended, looked at by its parent or not."""
    try:
        return (Path(f"/proc/{pid}") / "stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except (OSError, IndexError):
        return False


def _session(entry: Path) -> int:
    """The number of a process's session, which is that of its leader: field 6 of its stat file."""
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, IndexError, ValueError):
        return os.getpid()


def end_below(root: int) -> None:
    """Kill all processes below one."""
    parents = {pid: int(fields["PPid"]) for pid, fields in _status()}
    for pid in parents:
        if pid != root and _descends(pid, root, parents):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def held_memory(root: int) -> int:
    """Return the memory that a process and all below it hold by themselves, in bytes; files in memory do not count."""
    parents: dict[int, int] = {}
    held: dict[int, int] = {}
    for pid, fields in _status():
        parents[pid] = int(fields["PPid"])
        held[pid] = 1024 * int(fields.get("RssAnon", "0").split()[0])
    return sum(size for pid, size in held.items() if _descends(pid, root, parents))


def _status() -> Iterator[tuple[int, dict[str, str]]]:
    """Yield what the kernel tells of each process that is there when it is looked at."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            lines = (entry / "status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            if "PPid" in fields:
                yield int(entry.name), fields


def _descends(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid and pid != root:
        pid = parents.get(pid, 0)
    return pid == root


def memory_kills() -> int:
    """Return how many processes of this machine the kernel has ended for want of memory since it started."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0
