"""Read this machine's processes from /proc, and end them; see proc(5)."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import files
from kiln.lazy_pattern import lazy_pattern
from kiln.operating_system.processes import KILL, TICKS, is_process_running, seconds_since_boot

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable

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
    """Return the process of a ``/proc/PID/stat``; the name in brackets may contain anything.

    Raises:
        ValueError, IndexError: when it is incomplete.
    """
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


def has_children(pid: int) -> bool:
    """Return whether a process has children."""
    return any(map(files.text_or_empty, Path(f"/proc/{pid}").glob("task/*/children")))


def waits_for_lock(pid: int) -> bool:
    """Return whether a process waits for a lock on a file, see proc_locks(5)."""
    lines = (line.split() for line in files.text_or_empty(Path("/proc/locks")).splitlines())
    return any(words[1] == "->" and words[5] == str(pid) for words in lines)


def process_tree_memory(root: int) -> int:
    """Return the anonymous memory of a process and its descendants, in bytes; cached files do not count."""
    return sum(_anonymous_memory(process.pid) for process in processes_with_descendants(root))


def _anonymous_memory(pid: int) -> int:
    match = _ANONYMOUS.search(files.text_or_empty(Path(f"/proc/{pid}/status")))
    return 1024 * int(match[1]) if match else 0


def oom_kill_count() -> int:
    """Return how many processes the kernel has killed since boot because memory ran out."""
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
    send_signal(KILL, [process.pid for process in processes_with_descendants(root) if process.pid != root])


def kill_orphans_in_folder(folder: Path) -> tuple[int, ...]:
    """Kill processes that a killed build left running below ``folder``; return their numbers.

    The caller holds the folder's lock. A process is an orphan when its working directory is there and its session's
    leader has ended; a user's shell in that folder still has its session's leader.
    """
    return send_signal(KILL, [pid for pid in all_pids() if _has_working_directory_in(pid, folder) and _is_orphan(pid)])


def _has_working_directory_in(pid: int, folder: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(folder.resolve())
    except OSError:
        return False


def _is_orphan(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and not is_process_running(process.session)
