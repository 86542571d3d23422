"""What this process may really use: the cores and the memory of its container, or else of the machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUPS, PROCESS, MEMORY = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/meminfo")


def cpus(cgroups: Path = CGROUPS, process: Path = PROCESS) -> int:
    """Return how many cores there are, at least 1: those that the process may run on, or what its quota comes to.

    A quota is microseconds in each period: ``cpu.max`` holds both (cgroup v2), ``cpu.cfs_*`` one each (v1).
    """
    found = [float(len(os.sched_getaffinity(0)))]
    for folder in groups(cgroups, process, controller="cpu"):
        quota, _, period = text(folder / "cpu.max").partition(" ")
        quota, period = quota or text(folder / "cpu.cfs_quota_us"), period or text(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):  # without a limit it is "max" or -1
            found.append(int(quota) / int(period))
    return max(1, int(min(found)))


def memory(cgroups: Path = CGROUPS, process: Path = PROCESS, machine: Path = MEMORY) -> int:
    """Return the bytes of memory that there are: the machine's, or a smaller limit of any group the process is in.

    The files are ``memory.max`` and ``memory.high`` (cgroup v2), ``memory.limit_in_bytes`` (v1, a number near 2**63
    without a limit).
    """
    (total,) = (
        int(line.split()[1]) * 1024 for line in machine.read_text().splitlines() if line.startswith("MemTotal:")
    )
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limits = (text(folder / name) for folder in groups(cgroups, process, controller="memory") for name in names)
    return min([total, *(int(limit) for limit in limits if limit.isdecimal() and int(limit))])


def groups(cgroups: Path, process: Path, *, controller: str) -> Iterator[Path]:
    """Yield the folders of the groups that a process is in, innermost first; inside a container often just the root."""
    for line in text(process).splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = cgroups / controllers if controllers else cgroups
        inner = root / place.strip("/")
        # A place that is not seen from inside a container leaves the root alone, which is the container's own then.
        yield from (folder for folder in (inner, *inner.parents) if folder == root or root in folder.parents)
        if controllers:
            yield cgroups / controller  # where version 1 also lies, as a link or by itself


def text(path: Path) -> str:
    """Return what a file holds; nothing where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
