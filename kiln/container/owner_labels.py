"""Label containers with the process that created them, to find those whose process was killed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kiln import files, process_table
from kiln.operating_system.processes import process_exists

LABEL = "kiln.owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerProcess:
    """A process, identified uniquely on this machine over time, as far as the system allows."""

    machine: str
    boot: str
    namespace: str
    pid: int
    started: str

    def __str__(self) -> str:
        return "/".join((self.machine, self.boot, self.namespace, str(self.pid), self.started))

    @classmethod
    def parse(cls, text: str) -> OwnerProcess | None:
        """Return the owner that a label names; None for another label."""
        parts = text.split("/")
        if len(parts) != 5 or not parts[3].isdecimal():
            return None
        return cls(machine=parts[0], boot=parts[1], namespace=parts[2], pid=int(parts[3]), started=parts[4])

    @classmethod
    def of_process(cls, pid: int) -> OwnerProcess | None:
        """Return the running process ``pid``, or None."""
        import platform

        process = process_table.read_process(pid)
        if not process_exists(pid) or (process is not None and process.state in process_table.ENDED):
            return None
        return cls(
            machine=platform.node().replace("/", "-"),
            boot=files.text_or_empty(Path("/proc/sys/kernel/random/boot_id")).strip(),  # empty without /proc
            namespace=_link_target_or_empty(Path("/proc/self/ns/pid")),
            pid=pid,
            started="" if process is None else str(process.started),
        )

    @classmethod
    def of_this_process(cls) -> OwnerProcess:
        """Return this process."""
        me = cls.of_process(os.getpid())
        assert me is not None, "this process runs"
        return me


def has_ended(owner: OwnerProcess, here: OwnerProcess, now: OwnerProcess | None) -> bool:
    """Return whether ``owner`` has ended, seen from ``here``; ``now`` is the process with its number at present.

    Another machine's processes, and those of another process namespace, cannot be seen: they count as running.
    """
    if owner.machine != here.machine:
        return False
    if owner.boot != here.boot:
        return True
    return owner.namespace == here.namespace and owner != now


def _link_target_or_empty(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
