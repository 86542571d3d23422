"""The commands of a supervisor and the events that answer them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from kiln.build.job.collected import BuildMessage, ResultsCollected, WorkerMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kiln.state.results import JobSize, PackageReport

    # Moves the collected packages of a config to the folder of finished packages, and returns them there.
    KeepPackages = Callable[[str, Sequence[PackageReport]], tuple[PackageReport, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMachine:
    """A machine as a provider lists it; one that ``ended`` builds no more, but may still be charged for.

    ``expires`` is the end of its lifetime, in seconds since the epoch, 0 where that is unknown.
    """

    name: str
    owner: str
    id: str = ""
    type: str = ""
    ended: bool = False
    expires: float = 0.0

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ListedMachine:
        """Return a machine of the answer of `list.yml`."""
        name, ended = str(row["name"]), bool(row["ended"])
        texts = {key: str(row.get(key, "")) for key in ("owner", "id", "type")}
        return cls(name=name, ended=ended, expires=float(row.get("expires") or 0.0), **texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionWorkers:
    """Create workers, or find existing ones again: `WorkerProvisioned` or `ProvisionFailed` for each.

    ``offers`` are the type, spot and zone of each, and ``needs`` what its configs need at most. ``configs`` are those
    that wait for a worker, by its name.
    """

    workers: tuple[str, ...]
    offers: Mapping[str, tuple[str, bool, str]] = field(default_factory=dict)
    needs: Mapping[str, JobSize] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareWorker(WorkerMessage):
    """Prepare a worker for builds: `WorkerPrepared` or `CommandFailed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchService(WorkerMessage):
    """Watch the cache on a worker: `Heartbeat` and `WorkerUnreachable`, repeatedly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryJobs(WorkerMessage):
    """Query the jobs of a worker: `JobsListed` or `CommandFailed`.

    ``keys`` are the hashes over the inputs of configs; jobs with other inputs are left out.
    """

    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartBuild(BuildMessage):
    """Start a config's build, which then runs detached: `BuildStarted` or `CommandFailed`.

    ``cache`` is the URL of a shared cache, or empty; ``key`` is a hash over the config's inputs,
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
class StopBuild(BuildMessage):
    """Stop a build: its `BuildFinished` follows, or `CommandUndelivered` or `CommandFailed` now.

    With ``until`` it ends in order, and packs what it has made, as far as that can be fetched until then.
    """

    reason: str = "its time limit is over"
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowBuild(BuildMessage):
    """Follow a build: `Heartbeat`, `WorkerUnreachable`, `ReclaimNotice` and `LogLine` repeatedly, then `BuildFinished`.

    Lines are written to ``log``, too.
    """

    log: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectResults(BuildMessage):
    """Collect a config's packages and log, and check them and their ``key``: `ResultsCollected` or `CollectFailed`.

    With ``until``, collect what an unfinished build has handed over instead, and give up at that time.
    """

    key: str = ""
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewLease(WorkerMessage):
    """Renew a worker's lease for so many seconds: `LeaseRenewed`, or `WorkerUnreachable`."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminateWorker(WorkerMessage):
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
class WorkerProvisioned(WorkerMessage):
    """A worker exists."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionFailed(WorkerMessage):
    """The provider refuses a worker.

    ``credentials`` when it does not accept the credentials, ``scarce`` when it has no such worker at the moment.
    """

    reason: str
    credentials: bool = False
    scarce: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPrepared(WorkerMessage):
    """A worker can build; ``cache`` is the URL of the cache that it holds."""

    cache: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsListed(WorkerMessage):
    """The jobs of a worker: the state of each config, ``running``, ``ended`` or ``lost``."""

    jobs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandFailed(WorkerMessage):
    """A command to a worker failed."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildStarted(BuildMessage):
    """A config's build runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedBuildStarted(BuildMessage):
    """A build that waited in the provider's own queue has begun, ``at`` this time."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(WorkerMessage):
    """A worker has answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimNotice(WorkerMessage):
    """A worker's provider has given notice: it takes the worker back ``at`` this time."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUnreachable(WorkerMessage):
    """A worker does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a build's output, or of a worker's preparation for a config; empty when a step begins."""

    config: str
    step: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFinished(BuildMessage):
    """A build is over: ``exit_code`` is that of kiln on the worker, None when it is unknown.

    ``at`` is the time of its end, or ``seconds`` how long it took by its worker's clock, where that is known better
    than by this event. With ``unfit`` its worker can build nothing more; ``overdue`` marks one that a scheduler ended
    at its time limit.
    """

    exit_code: int | None
    reason: str = ""
    at: float | None = None
    seconds: float | None = None
    unfit: bool = False
    overdue: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectFailed(BuildMessage):
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
    """A command was not carried out because the worker, or the provider that was to create it, was unreachable.

    ``answered`` when the provider was reached, and could not do it at the moment.
    """

    command: Command
    reason: str
    answered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewed(WorkerMessage):
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
class WorkerTerminated(WorkerMessage):
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
    WorkerProvisioned
    | ProvisionFailed
    | WorkerPrepared
    | JobsListed
    | CommandFailed
    | WorkerTerminated
    | BuildStarted
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
    WorkerEvent | LogLine | ControllerDiskFull | CommandUndelivered | WorkersProbed | RunTornDown | TearDownFailed
)


class WorkerExecutor(Protocol):
    """Executes commands, and keeps the time."""

    def now(self) -> float:
        """Return the time in seconds since the epoch."""

    def submit(self, command: Command) -> None:
        """Begin to execute a command, and return at once."""

    def next_event(self, until: float) -> Event | None:
        """Return the next event, or None when none has arrived by ``until``."""
