"""The resources of this process: the cores and the memory of its container, or else of the machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUPS, PROCESS, MEMORY = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/meminfo")


def cpus(cgroups: Path = CGROUPS, process: Path = PROCESS) -> int:
    """Return the number of cores, at least 1: those in the process's affinity mask, or fewer by its quota.

    A quota is microseconds in each period: ``cpu.max`` holds both (cgroup v2), ``cpu.cfs_*`` one each (v1).
    """
    if sys.platform == "darwin":
        return os.cpu_count() or 1
    candidates = [float(len(os.sched_getaffinity(0)))]
    for folder in groups(cgroups, process, controller="cpu"):
        quota, _, period = text(folder / "cpu.max").partition(" ")
        quota, period = quota or text(folder / "cpu.cfs_quota_us"), period or text(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):  # without a limit it is "max" or -1
            candidates.append(int(quota) / int(period))
    return max(1, int(min(candidates)))


def memory(cgroups: Path = CGROUPS, process: Path = PROCESS, machine: Path = MEMORY) -> int:
    """Return the memory in bytes: the machine's, or the smallest limit of the process's groups.

    The files are ``memory.max`` and ``memory.high`` (cgroup v2), ``memory.limit_in_bytes`` (v1, a number near 2**63
    without a limit).
    """
    if sys.platform == "darwin":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    (total,) = (
        int(line.split()[1]) * 1024 for line in machine.read_text().splitlines() if line.startswith("MemTotal:")
    )
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limits = (text(folder / name) for folder in groups(cgroups, process, controller="memory") for name in names)
    return min([total, *(int(limit) for limit in limits if limit.isdecimal() and int(limit))])


def groups(cgroups: Path, process: Path, *, controller: str) -> Iterator[Path]:
    """Yield the folders of a process's groups, innermost first; in a container often the root alone."""
    for line in text(process).splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = cgroups / controllers if controllers else cgroups
        inner = root / place.strip("/")
        # A path that is invisible in a container leaves the root alone, which is the container's group then.
        yield from (folder for folder in (inner, *inner.parents) if folder == root or root in folder.parents)
        if controllers:
            yield cgroups / controller  # also a path of version 1, as a link or a mount


def text(path: Path) -> str:
    """Return the text of a file; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
