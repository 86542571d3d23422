"""What this process may use of its machine: cores and memory, as far as the control groups let it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a machine has for builds: cores, and bytes of memory."""

    cores: int
    memory: int

    @classmethod
    def here(cls) -> Resources:
        """What this process may use of its machine."""
        return cls(cores=len(os.sched_getaffinity(0)), memory=min(_machine_memory(), _group_limit()))


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _group_limit() -> int:
    """The limit of the control group that this process is in, in bytes; beyond all bounds when there is none."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return int(Path("/sys/fs/cgroup", name).read_text())
        except (OSError, ValueError):
            continue
    return 1 << 62
