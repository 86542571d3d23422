"""A program in a container and its result, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or folder of the host (``source``, absolute) mounted in the container as ``target``."""

    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLimits:
    """The limits of a container: cores, bytes of memory (swap included), processes; None for no limit."""

    cores: float | None = None
    memory: int | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUser:
    """The ids of a user and a group on the host, who then own the files that the container writes on its mounts."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRun:
    """One program in one container, which can access nothing of the host except for what is listed here.

    ``argv`` is passed to the image's entry point, if it has one. ``secrets`` are environment variables whose values
    appear in no command line, log or representation. Without ``user`` the image sets the user: its entry point may
    start as root and change to another user, for which it needs some of ``capabilities``; all others are dropped.
    ``interactive`` programs read this process's standard input, which is a terminal if ``terminal`` is set.
    ``options`` are passed to the engine unchanged and last, so they take precedence. ``platform`` is the image's, where
    it is not this machine's.
    """

    image: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    mounts: tuple[Mount, ...] = ()
    user: ContainerUser | None = None
    limits: ContainerLimits = ContainerLimits()
    network: bool = False
    workdir: str | None = None
    capabilities: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    interactive: bool = False
    terminal: bool = False
    options: tuple[str, ...] = ()
    platform: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerProgramResult:
    """The result of a container's program.

    ``exit_code`` is 124 after a timeout. ``peak_memory`` is the peak of its processes' memory in bytes, sampled every
    second, without the page cache; None if the kernel does not report it, the limit once a process was killed for
    reaching it. ``memory_kills`` counts the processes that the kernel killed for lack of memory, whatever the result
    of the program.
    """

    exit_code: int
    tail: str
    peak_memory: int | None = None
    memory_kills: int = 0

    @property
    def ok(self) -> bool:
        """True when the program succeeded."""
        return self.exit_code == 0
