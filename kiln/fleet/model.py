"""Fleet runs as values: the configs to build, the workers, and the state of both."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

LEASE = 5400.0  # seconds: an hour without a network loses no build, with some minutes to spare
LIFETIME = 86400.0  # seconds after which a worker ends itself, renewed or not, unless its plan takes longer
TYPES_SEPARATOR = ", "  # between the machine types of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """A machine type that a provider offers: ``type`` is kiln's name, equal for all providers, ``name`` the provider's.

    ``memory`` and ``disk`` are in GB; 0 cores, memory or disk are unknown. ``hourly`` is the price of an hour of the
    machine alone, ``disk_hourly`` and ``address_hourly`` those of its disk and its public address, ``egress`` that of a
    GB that leaves the provider; the kinds of price in ``not_counted`` are unknown. ``billed`` is the billing increment
    in seconds; ``source`` and ``date`` say where and when the price was read, ``spot_source`` and ``spot_date`` where
    and when the spot price was; without ``is_priced`` the price is unknown, and ``currency`` is empty.
    A provider has ``limit`` machines of the type, 0 for no known limit.
    """

    provider: str
    type: str
    name: str
    cores: int
    memory: float
    disk: float
    gpus: int = 0
    gpu: str = ""
    hourly: float = 0.0
    spot_hourly: float | None = None
    disk_hourly: float = 0.0
    address_hourly: float = 0.0
    egress: float = 0.0
    not_counted: tuple[str, ...] = ()
    currency: str = "USD"
    billed: float = 1.0
    region: str = ""
    source: str = ""
    date: str = ""
    spot_source: str = ""
    spot_date: str = ""
    is_priced: bool = True
    limit: int = 0

    def hourly_price(self, *, spot: bool) -> float:
        """Return the price of an hour of a worker, with its disk and its address."""
        machine = self.spot_hourly if spot and self.spot_hourly is not None else self.hourly
        return machine + self.disk_hourly + self.address_hourly


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A machine type as a provider offers it: as a spot worker or on demand, in a zone, or with '' in its usual one."""

    machine_type: MachineType
    spot: bool = False
    zone: str = ""

    @property
    def key(self) -> tuple[str, bool, str]:
        """The offer as its workers' records have it: type, spot, zone."""
        return self.machine_type.type, self.spot, self.zone

    @property
    def hourly_price(self) -> float:
        """The price of an hour of a worker."""
        return self.machine_type.hourly_price(spot=self.spot)

    def __str__(self) -> str:
        kind = self.machine_type
        names = kind.type if kind.name == kind.type else f"{kind.type} ({kind.name})"
        return names + (" spot" if self.spot else "") + (f" in {self.zone}" if self.zone else "")


class WorkerState(str, Enum):
    """The state of a worker; ``REQUESTED`` is stored before the provider is asked."""

    REQUESTED = "requested"
    PREPARING = "preparing"
    READY = "ready"
    TERMINATING = "terminating"
    LOST = "lost"
    REFUSED = "refused"
    TERMINATED = "terminated"


GONE = frozenset({WorkerState.TERMINATED, WorkerState.REFUSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """A worker of a fleet run: ``id`` is the provider's.

    It is a ``spot`` worker or on demand, in a ``zone`` where one was requested.
    ``hourly`` is its price, with its disk and its address, ``egress`` that of a GB that is fetched from it, ``billed``
    the billing increment in seconds.

    ``requested``, ``provisioned`` and ``terminated`` are times in seconds since the epoch.
    """

    name: str
    type: str
    state: WorkerState
    requested: float
    spot: bool = False
    zone: str = ""
    hourly: float = 0.0
    egress: float = 0.0
    billed: float = 1.0
    currency: str = ""
    id: str = ""
    provisioned: float | None = None
    terminated: float | None = None
    reason: str = ""

    @property
    def offer_key(self) -> tuple[str, bool, str]:
        """The offer by which it was requested: type, spot, zone."""
        return self.type, self.spot, self.zone


class JobState(str, Enum):
    """The state of a config's build on a worker; ``REQUESTED`` is stored before the worker is asked."""

    REQUESTED = "requested"
    RUNNING = "running"
    FINISHED = "finished"
    COLLECTED = "collected"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A config's build on a worker: ``attempt`` counts from one over all workers.

    ``started`` and ``finished`` are seconds since the epoch, ``exit_code`` is that of kiln on the worker, ``traffic``
    the size of the collected packages in bytes. ``reclaimed`` marks a build whose worker the provider took back, which
    is not a failure of the config. ``key`` is a hash over what a job has tested, empty for a build.
    """

    config: str
    worker: str
    attempt: int
    state: JobState
    started: float
    cold: bool = False
    finished: float | None = None
    reclaimed: bool = False
    exit_code: int | None = None
    traffic: int = 0
    reason: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """A run of the fleet as the ledger has it: ``id`` also names the workers, ``number`` is that of the run's report.

    ``type`` has the machine types of the workers, separated by `TYPES_SEPARATOR`. ``finished`` is None
    while workers of it may exist; ``lives`` is true while its process runs; ``key`` is a hash over the recipe and the
    options of the builds.
    """

    id: str
    provider: str
    type: str
    started: float
    finished: float | None
    number: int
    lives: bool
    key: str = ""
    workers: tuple[WorkerRecord, ...] = ()
    jobs: tuple[JobRecord, ...] = ()

    @property
    def machine_types(self) -> tuple[str, ...]:
        """The machine types of the workers."""
        return tuple(self.type.split(TYPES_SEPARATOR))
