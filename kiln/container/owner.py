"""Who made a container: so that those whose maker was killed can be told from those in use."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

LABEL = "kiln.owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process, told from every other on this machine before and after it, as far as the system lets one tell."""

    machine: str
    boot: str
    namespace: str
    pid: int
    started: str

    def __str__(self) -> str:
        return "/".join((self.machine, self.boot, self.namespace, str(self.pid), self.started))

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """Read a label; nothing when it is not one of these."""
        parts = text.split("/")
        if len(parts) != 5 or not parts[3].isdecimal():
            return None
        return cls(machine=parts[0], boot=parts[1], namespace=parts[2], pid=int(parts[3]), started=parts[4])

    @classmethod
    def of_process(cls, pid: int) -> Owner | None:
        """The process ``pid`` as it runs now; nothing when there is none."""
        state, started = _state(pid)
        if not _runs(pid) or state == "Z":  # killed, but its parent has not looked yet
            return None
        return cls(
            machine=platform.node().replace("/", "-"),
            boot=_text(Path("/proc/sys/kernel/random/boot_id")),
            namespace=_link(Path("/proc/self/ns/pid")),
            pid=pid,
            started=started,
        )

    @classmethod
    def here(cls) -> Owner:
        """This process."""
        me = cls.of_process(os.getpid())
        assert me is not None, "a process that asks is there"
        return me


def is_gone(owner: Owner, here: Owner, now: Owner | None) -> bool:
    """Whether ``owner`` runs no more, seen from ``here``; ``now`` is who has its number at present.

    Another machine's processes, and those of another process namespace, cannot be seen: they count as running.
    """
    if owner.machine != here.machine:
        return False
    if owner.boot != here.boot:
        return True
    return owner.namespace == here.namespace and owner != now


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _state(pid: int) -> tuple[str, str]:
    """A process's state, and when it was started in ticks since the machine was: fields 3 and 22 of its stat file."""
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()  # the name before may hold spaces
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:  # systems without /proc
        return ""


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
