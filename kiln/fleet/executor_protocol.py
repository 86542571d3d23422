"""The protocol between the supervisor and the executor of its commands: commands, and the events that answer them.

A command is submitted and returns at once; events arrive later. So the same supervisor decides whether commands are
executed by Ansible on real machines or by a simulation with its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kiln.fleet.reconcile import ListedMachine
    from kiln.model.build_results import PackageReport, StepReport
    from kiln.model.job_estimate import JobSize

    # Moves the collected packages of a config to the folder of finished packages, and returns them there.
    KeepPackages = Callable[[str, Sequence[PackageReport]], tuple[PackageReport, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _WorkerMessage:
    """A command to a worker, or an event of it."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _BuildMessage(_WorkerMessage):
    """A command about a config's build on a worker, or an event of it."""

    config: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionWorkers:
    """Create workers, or find existing ones again: `WorkerProvisioned` or `ProvisionFailed` for each.

    ``offers`` are the type, spot and zone of each, and ``needs`` what its configs need at most.
    """

    workers: tuple[str, ...]
    offers: Mapping[str, tuple[str, bool, str]] = field(default_factory=dict)
    needs: Mapping[str, JobSize] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareWorker(_WorkerMessage):
    """Prepare a worker for builds: `WorkerPrepared` or `CommandFailed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchService(_WorkerMessage):
    """Watch the cache, or the part of a pool, on a worker: `Heartbeat` and `WorkerUnreachable`, repeatedly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryJobs(_WorkerMessage):
    """Query the jobs of a worker: `JobsListed` or `CommandFailed`.

    ``keys`` are the hashes over the inputs of configs; jobs with other inputs are left out.
    """

    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartBuild(_BuildMessage):
    """Start a config's build, which then runs detached: `BuildStarted` or `CommandFailed`.

    ``cache`` is the URL of a shared cache or of a pool's server, or empty; ``key`` is a hash over the config's inputs,
    which the worker keeps with what it builds. ``attempt`` counts the builds of the config. Where the provider
    schedules, the build begins after that of the config ``after``, whose compile it reuses. A ``reclaimable`` one can
    be stopped so that another worker continues it.
    """

    cache: str = ""
    key: str = ""
    attempt: int = 1
    after: str = ""
    reclaimable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopBuild(_BuildMessage):
    """Stop a build: its `BuildFinished` follows, or `CommandUndelivered` or `CommandFailed` now.

    With ``until`` it ends in order, and packs what it has made, as far as that can be fetched until then.
    """

    reason: str = "its time limit is over"
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowBuild(_BuildMessage):
    """Follow a build: `Heartbeat`, `WorkerUnreachable`, `ReclaimNotice` and `LogLine` repeatedly, then `BuildFinished`.

    Lines are written to ``log``, too.
    """

    log: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectResults(_BuildMessage):
    """Collect a config's packages and log, and check them and their ``key``: `ResultsCollected` or `CollectFailed`.

    With ``until``, collect what an unfinished build has handed over instead, and give up at that time.
    """

    key: str = ""
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewLease(_WorkerMessage):
    """Renew a worker's lease for so many seconds: `LeaseRenewed`, or `WorkerUnreachable`."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminateWorker(_WorkerMessage):
    """Terminate a worker: `WorkerTerminated`, or `CommandFailed`.

    With an ``id``, only the machine that the provider knows by it, and not another of the same name.
    """

    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TearDownRun:
    """Stop all other commands, and remove all that the run has: `RunTornDown` or `TearDownFailed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeWorkers:
    """List the machines, and find out whether workers are silent, or this computer is cut off: `WorkersProbed`.

    When the provider lists workers that do not answer, its firewall is opened for this computer's current address.
    Without ``workers`` none is contacted.
    """

    workers: tuple[str, ...]


Command: TypeAlias = (
    ProvisionWorkers
    | PrepareWorker
    | WatchService
    | QueryJobs
    | StartBuild
    | StopBuild
    | FollowBuild
    | CollectResults
    | RenewLease
    | TerminateWorker
    | ProbeWorkers
    | TearDownRun
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProvisioned(_WorkerMessage):
    """A worker exists."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionFailed(_WorkerMessage):
    """The provider refuses a worker.

    ``credentials`` when it does not accept the credentials, ``scarce`` when it has no such worker at the moment.
    """

    reason: str
    credentials: bool = False
    scarce: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPrepared(_WorkerMessage):
    """A worker can build; ``cache`` is the URL of the cache, or of the pool's server, that it holds."""

    cache: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsListed(_WorkerMessage):
    """The jobs of a worker: the state of each config, ``running``, ``ended`` or ``lost``."""

    jobs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandFailed(_WorkerMessage):
    """A command to a worker failed."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildStarted(_BuildMessage):
    """A config's build runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedBuildStarted(_BuildMessage):
    """A build that waited in the provider's own queue has begun, ``at`` this time."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(_WorkerMessage):
    """A worker has answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimNotice(_WorkerMessage):
    """A worker's provider has given notice: it takes the worker back ``at`` this time."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUnreachable(_WorkerMessage):
    """A worker does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a build's output, or of a worker's preparation for a config; empty when a step begins."""

    config: str
    step: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFinished(_BuildMessage):
    """A build is over: ``exit_code`` is that of kiln on the worker, None when it is unknown.

    ``at`` is the time of its end, where that is known better than by this event. With ``unfit`` its worker can build
    nothing more; ``overdue`` marks one that a scheduler ended at its time limit.
    """

    exit_code: int | None
    reason: str = ""
    at: float | None = None
    unfit: bool = False
    overdue: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsCollected(_BuildMessage):
    """A build's results are collected and checked; ``log`` is its log, ``reason`` says why a failed config failed."""

    packages: tuple[PackageReport, ...] = ()
    steps: tuple[StepReport, ...] = ()
    peak_memory: int | None = None
    log: Path | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectFailed(_BuildMessage):
    """A build's results could not be collected.

    ``corrupt`` when what arrived differs from what was sent; ``foreign`` when it was made of other inputs than the
    config's.
    """

    reason: str
    corrupt: bool = False
    foreign: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerDiskFull:
    """A command was not carried out because the disk of this computer is full; no worker is at fault."""

    command: Command
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandUndelivered:
    """A command was not carried out because the worker, or the provider that was to create it, was unreachable."""

    command: Command
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewed(_WorkerMessage):
    """A worker's lease was renewed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersProbed:
    """The workers that answer, and the machines that the provider lists: None when the provider could not be asked.

    ``credentials`` when it did not accept the credentials, with its ``reason``.
    """

    answers: frozenset[str]
    machines: tuple[ListedMachine, ...] | None
    credentials: bool = False
    reason: str = ""

    @property
    def listed_names(self) -> frozenset[str] | None:
        """The names of the machines that have not ended."""
        if self.machines is None:
            return None
        return frozenset(machine.name for machine in self.machines if not machine.ended)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTerminated(_WorkerMessage):
    """A worker is terminated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTornDown:
    """Nothing of the run remains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TearDownFailed:
    """Something of the run remains, or with ``unknown`` may remain: the provider could not be asked.

    ``credentials`` when it did not accept the credentials.
    """

    reason: str
    unknown: bool = False
    credentials: bool = False


WorkerEvent: TypeAlias = (
    WorkerProvisioned | ProvisionFailed | WorkerPrepared | JobsListed | CommandFailed | WorkerTerminated
)
BuildEvent: TypeAlias = (
    BuildStarted
    | QueuedBuildStarted
    | Heartbeat
    | LeaseRenewed
    | ReclaimNotice
    | WorkerUnreachable
    | BuildFinished
    | ResultsCollected
    | CollectFailed
)
Event: TypeAlias = (
    WorkerEvent
    | BuildEvent
    | LogLine
    | ControllerDiskFull
    | CommandUndelivered
    | WorkersProbed
    | RunTornDown
    | TearDownFailed
)


class WorkerExecutor(Protocol):
    """Executes commands, and keeps the time."""

    def now(self) -> float:
        """Return the time in seconds since the epoch."""

    def submit(self, command: Command) -> None:
        """Begin to execute a command, and return at once."""

    def next_event(self, until: float) -> Event | None:
        """Return the next event, or None when none has arrived by ``until``."""
