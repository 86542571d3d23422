"""What runs in a container, and how it ended, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or folder of the host (``source``, absolute) seen in the container as ``target``."""

    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a container may use at most: cores, bytes of memory (swap included), processes; None leaves it open."""

    cores: float | None = None
    memory: int | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """The numbers of a user and a group on the host, who then own what the container writes on its mounts."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRun:
    """One program in one container: nothing of the host is in reach but what stands here.

    ``argv`` is handed to the image's entry point, where it has one. ``secrets`` are environment variables whose values
    appear in no command line, log or representation. Without ``user`` the image says who runs: its entry point may
    start as root and change to another user, for which it needs some of ``capabilities``; all others are dropped.
    ``interactive`` programs read what this process reads, from a terminal where ``terminal`` says that there is one.
    ``options`` go to the engine as they are and come last, so they prevail.
    """

    image: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    mounts: tuple[Mount, ...] = ()
    user: User | None = None
    limits: Limits = Limits()
    network: bool = False
    workdir: str | None = None
    capabilities: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    interactive: bool = False
    terminal: bool = False
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a container's program ended.

    ``exit_code`` is 124 when its time ran out. ``peak_memory`` is the most that its processes held at once, in bytes,
    looked at every second, without the files that the kernel keeps in memory; None where the kernel does not tell,
    the limit itself once a process was ended for reaching it.
    ``memory_kills`` counts the processes that the kernel ended for want of memory, whatever became of the program.
    """

    exit_code: int
    tail: str
    seconds: float
    peak_memory: int | None = None
    memory_kills: int = 0

    @property
    def ok(self) -> bool:
        """Whether the program ended well."""
        return self.exit_code == 0

    @property
    def out_of_memory(self) -> bool:
        """Whether the program failed, and processes of it were ended for want of memory."""
        return not self.ok and self.memory_kills > 0
