"""The cores and the memory that this process may use, within its control group's limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kiln.operating_system import machine_resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources of a machine: cores, and bytes of memory."""

    cores: int
    memory: int

    @classmethod
    def here(cls) -> Resources:
        """Return the resources that this process may use."""
        return cls(
            cores=machine_resources.cores(), memory=min(machine_resources.machine_memory(), _cgroup_memory_limit())
        )


def _cgroup_memory_limit() -> int:
    """Return the memory limit of this process's control group, in bytes; a huge number without one."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return int(Path("/sys/fs/cgroup", name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
    return 1 << 62
