"""What is at work below a build: the processor time of its processes, and their names.

Bazel's server leaves the process tree of whoever called it, so it is a root of its own; its number comes from the event
file.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

TICKS = os.sysconf("SC_CLK_TCK")
SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process as the kernel tells of it: ``busy`` is its processor time and that of its ended children, in seconds.

    ``started`` is in seconds since the machine's start.
    """

    pid: int
    parent: int
    name: str
    state: str
    busy: float
    started: float


def below(roots: Collection[int]) -> tuple[Process, ...]:
    """Return the processes below some, these included."""
    known = {process.pid: process for process in _all()}
    return tuple(process for process in known.values() if _descends(process, roots, known))


def busy(processes: Iterable[Process]) -> float:
    """Return the processor time that processes have used, in seconds."""
    return sum(process.busy for process in processes)


def at_work(processes: Collection[Process], *, without: Collection[int] = ()) -> str:
    """Return which processes a build is waiting for, in words: the ones without children, the oldest first."""
    parents = {process.parent for process in processes}
    leaves = [each for each in processes if each.pid not in parents and each.pid not in without and each.state != "Z"]
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    oldest = sorted(leaves, key=lambda each: each.started)[:SHOWN]
    return ", ".join(f"{each.name} (process {each.pid}, {_age(now - each.started)})" for each in oldest)


def _age(seconds: float) -> str:
    return f"since {seconds / 60:.0f} min" if seconds >= 120 else f"since {seconds:.0f} s"


def _all() -> Iterable[Process]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            yield parse((entry / "stat").read_text(errors="replace"))


def parse(stat: str) -> Process:
    """Return what a ``/proc/PID/stat`` says; the name in brackets may hold anything (proc(5))."""
    pid, _, rest = stat.partition(" (")
    name, _, after = rest.rpartition(") ")
    fields = after.split()
    return Process(
        pid=int(pid),
        parent=int(fields[1]),
        name=name,
        state=fields[0],
        busy=sum(map(int, fields[11:15])) / TICKS,
        started=int(fields[19]) / TICKS,
    )


def _descends(process: Process, roots: Collection[int], known: Mapping[int, Process]) -> bool:
    at: Process | None = process
    while at is not None:
        if at.pid in roots:
            return True
        at = known.get(at.parent)
    return False
