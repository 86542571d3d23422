"""The fleet: what is to be built, on which machines, and what became of both."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A cell to be built: ``full`` are the seconds with its group's compile, ``follower`` those after it was compiled.

    ``key`` is a hash over what its packages are made of, ``known`` says where the seconds come from.
    """

    config: str
    group: str
    full: float
    follower: float
    known: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """A machine that can be had: ``type`` is its meaning, the same with every provider, ``name`` the provider's word.

    ``memory`` and ``disk`` are in GB, ``hourly`` is the price of an hour, ``billed`` the seconds of the steps in which
    it is charged; ``source`` and ``date`` say where the price was read, and when.
    """

    provider: str
    type: str
    name: str
    cores: int
    memory: float
    disk: float
    hourly: float
    spot_hourly: float | None
    currency: str
    billed: float
    region: str
    source: str
    date: str


class MachineState(str, Enum):
    """What is known of a machine of the fleet; ``ASKED`` is written down before the provider is asked."""

    ASKED = "asked for"
    PREPARING = "preparing"
    READY = "ready"
    LEAVING = "leaving"
    LOST = "lost"
    REFUSED = "refused"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine of a fleet run: times are seconds since the epoch, ``hourly`` its price; ``id`` is the provider's."""

    name: str
    type: str
    state: MachineState
    asked: float
    hourly: float = 0.0
    id: str = ""
    up: float | None = None
    gone: float | None = None
    reason: str = ""


class JobState(str, Enum):
    """What is known of a cell's build on a machine; ``ASKED`` is written down before the machine is told."""

    ASKED = "asked for"
    RUNNING = "running"
    ENDED = "ended"
    HOME = "home"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A cell's build on a machine: ``attempt`` counts from one over all machines.

    ``exit_code`` is what kiln ended with there.
    """

    config: str
    machine: str
    attempt: int
    state: JobState
    began: float
    leader: bool = False
    ended: float | None = None
    exit_code: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """A run of the fleet as the ledger has it: ``id`` also names the machines, ``number`` is that of the run's report.

    ``finished`` is None while machines of it may be there; ``key`` a hash over what was asked for.
    """

    id: str
    provider: str
    type: str
    started: float
    finished: float | None
    number: int
    lives: bool
    key: str = ""
    machines: tuple[Machine, ...] = ()
    jobs: tuple[Job, ...] = ()
