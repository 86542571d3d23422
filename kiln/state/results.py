"""The results of builds and runs, their progress and steps, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kiln.conda.provenance.records import ExternalRepository, ResolvedPackage


class RunObserver(Protocol):
    """An observer that shows a run: a live view, plain lines, a CI's groups.

    All methods are called from one thread, in the order of the events, and must return at once. Events are stored
    before they are reported: an observer that raises an error ends the run, and loses nothing.
    """

    def run_began(self, report: MatrixReport) -> None:
        """Show that a run begins: its configs in the order of work, cached ones in that state."""

    def config_changed(self, config: ConfigRun) -> None:
        """Show a config's new state; all fields are current."""

    def output_line_received(self, config: str, step: str, line: str) -> None:
        """Show a line of output of a config's step; it is empty when the step begins."""

    def progress_changed(self, config: str, progress: Progress) -> None:
        """Show the progress of the compile or the download in a config's step, twice a second at most."""

    def run_cost_changed(self, cost: RunCost) -> None:
        """Show the cost of a run on workers, which changes all the time."""

    def run_ended(self, report: MatrixReport) -> None:
        """Show that the run is over, finished or stopped, with the state of every config."""


class MachineSize(Protocol):
    """The size of a machine: cores, GB of memory and of disk, GPUs; 0 where it is unknown."""

    @property
    def cores(self) -> int:
        """The number of cores."""

    @property
    def memory(self) -> float:
        """GB of memory."""

    @property
    def disk(self) -> float:
        """GB of disk."""

    @property
    def gpus(self) -> int:
        """The number of GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSize:
    """The needs of a config: cores, GB of memory and of disk, GPUs; and the seconds that it may take.

    ``hours`` are those that it is said to take, on that many cores; 0 if nothing is said.
    """

    cores: int = 0
    memory: float = 0.0
    disk: float = 0.0
    gpus: int = 0
    time_limit: float | None = None
    hours: float = 0.0

    def fits(self, machine_type: MachineSize) -> bool:
        """Return whether a machine type is large enough; a size that is unknown is."""
        sizes = ((self.cores, machine_type.cores), (self.memory, machine_type.memory), (self.disk, machine_type.disk))
        return all(not offer or need <= offer for need, offer in sizes) and self.gpus <= machine_type.gpus

    def __str__(self) -> str:
        cores, gpus = "core" if self.cores == 1 else "cores", "GPU" if self.gpus == 1 else "GPUs"
        parts = [(self.cores, cores), (self.memory, "GB of memory"), (self.disk, "GB of disk"), (self.gpus, gpus)]
        return ", ".join(f"{value:g} {unit}" for value, unit in parts if value) or "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEstimate:
    """A config to build: ``cold`` are the seconds with its group's compile, ``warm`` those with the compile cached.

    Both are 0 until they are estimated. ``key`` is a hash over the inputs of its packages, ``source`` the origin of the
    figures, ``size`` what it needs. ``type`` is the machine type that builds it, where a run has several.
    """

    config: str
    group: str
    cold: float = 0.0
    warm: float = 0.0
    source: str = ""
    key: str = ""
    size: JobSize = field(default_factory=JobSize)
    type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A conda package that was built for a config, or its wheel; ``size`` is in bytes.

    For a wheel, ``build_string`` holds the tags of its name and ``subdir`` its folder.
    """

    path: Path
    sha256: str
    size: int
    config: str
    name: str
    version: str
    build_string: str
    subdir: str

    @property
    def is_wheel(self) -> bool:
        """True for a wheel, which belongs to no channel."""
        return self.path.suffix == ".whl"

    @property
    def channel_path(self) -> str:
        """The path of the package in a channel; for a wheel, its folder and name."""
        return f"{self.subdir}/{self.path.name}"


class TestVerdict(str, Enum):
    """The result of a package's tests; they are skipped where no program of its platform runs."""

    PASSED = "passed"
    FAILED = "failed"
    NONE = "no tests"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestReport:
    """The tests of one package in a fresh prefix: ``notes`` are lines for the user.

    ``install_seconds`` is the time for creating the prefix, ``seconds`` that of the tests. ``run_packages`` are the
    package's run dependencies as they were installed, without what only its tests require.
    """

    package: str
    verdict: TestVerdict
    commands: int = 0
    install_seconds: float = 0.0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    log: Path | None = None
    run_packages: tuple[ResolvedPackage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of a step: ``download``, ``solve``, ``install``, ``script``, ``pack`` or ``test``, and its seconds."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step of a run; ``reused`` when an earlier result was used, ``compile`` is Bazel's report of it.

    ``phases`` are the parts that the step's time was spent on, in their order, where they are known. ``began`` is in
    seconds since the epoch, 0 where unknown: steps of a rehearsal run at the same moment.
    """

    title: str
    seconds: float
    reused: bool = False
    notes: tuple[str, ...] = ()
    compile: CompileReport | None = None
    failed: bool = False
    phases: tuple[Phase, ...] = ()
    began: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageReport:
    """One package of a run with its tests; ``repositories`` are those that its sources declare for Bazel.

    ``feedstock`` is a hash over the recipe, the settings and the config's file that it was built from; empty where they
    changed during the build.
    """

    artifact: Artifact
    build_seconds: float
    reused: bool
    tests: TestReport
    repositories: tuple[ExternalRepository, ...] = ()
    feedstock: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a compile: ``done`` of ``total`` actions; the total is None at first, and then grows for a while.

    ``current`` is a running action, ``left`` an estimate in seconds. ``stalled`` says since when nothing has
    happened and which processes run; it is empty while there is progress. With ``in_bytes`` it is that of a download.
    """

    done: int
    total: int | None = None
    current: str = ""
    left: float | None = None
    stalled: str = ""
    in_bytes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileReport:
    """The origin of a compile's actions, as counted by Bazel.

    ``hits`` came from a cache, ``misses`` were run, ``remote`` of them by a remote executor; ``internal`` are Bazel's
    own, which need neither. ``seconds`` is the wall-clock time, ``work`` the sum over all actions, None without a
    profile of Bazel. ``critical`` is the duration of the critical path, the longest chain of actions that need each
    other, ``queued`` the part of it in which an action waited for a remote worker; None where Bazel reports none.
    """

    hits: int
    misses: int
    internal: int
    seconds: float
    work: float | None = None
    remote: int = 0
    critical: float | None = None
    queued: float | None = None

    def __str__(self) -> str:
        internal = f", {self.internal:,} internal" if self.internal else ""
        where = f" ({self.remote:,} remotely, {self.misses - self.remote:,} here)" if self.remote else ""
        text = (
            f"{self.hits + self.misses:,} actions: {self.hits:,} from the cache, {self.misses:,} run{where}{internal}"
        )
        if not self.remote or self.critical is None:
            return text
        queued = "" if self.queued is None else f", {self.queued:,.0f} s of it in the queue"
        return f"{text}; critical path {self.critical:,.0f} s{queued}"


def sum_of_reports(reports: Sequence[CompileReport]) -> CompileReport:
    """Return the report of a compile that called Bazel several times."""
    return CompileReport(
        hits=sum(report.hits for report in reports),
        misses=sum(report.misses for report in reports),
        internal=sum(report.internal for report in reports),
        seconds=sum(report.seconds for report in reports),
        work=_sum_of_known(report.work for report in reports),
        remote=sum(report.remote for report in reports),
        critical=_sum_of_known(report.critical for report in reports),
        queued=_sum_of_known(report.queued for report in reports),
    )


def _sum_of_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of the values that are known, None without any."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


class ConfigState(str, Enum):
    """The state of a config; ``LOCKED`` is a config that another process is building."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    CACHED = "cached"
    FAILED = "failed"
    OUT_OF_MEMORY = "out of memory"
    DISK_FULL = "disk full"
    INTERRUPTED = "interrupted"
    LOCKED = "locked by another process"


OPEN = frozenset({ConfigState.WAITING, ConfigState.RUNNING})
GOOD = frozenset({ConfigState.DONE, ConfigState.CACHED})
BAD = frozenset({ConfigState.FAILED, ConfigState.OUT_OF_MEMORY, ConfigState.DISK_FULL})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRun:
    """One config of a run: times are seconds since the epoch, durations in seconds, ``peak_memory`` in bytes.

    ``started`` is None for a config that waits or is cached; ``group`` is the configs that share a cache, such as
    ``cuda12.9``, whose first build is ``cold``; ``worker`` is the worker of the fleet that builds it, if one does;
    ``reason`` says why it failed or was not built. ``earlier_seconds`` is the duration of the jobs that this one
    continues. ``is_built`` marks a config whose packages are complete in another state than those of `GOOD`: their
    tests on a worker have not passed. ``expected_steps`` is the number that ``steps`` will have, 0 until it is known.
    """

    config: str
    state: ConfigState
    group: str
    cold: bool = False
    worker: str = ""
    started: float | None = None
    finished: float | None = None
    estimate: float | None = None
    peak_memory: int | None = None
    log: Path | None = None
    reason: str = ""
    steps: tuple[StepReport, ...] = ()
    packages: tuple[PackageReport, ...] = ()
    earlier_seconds: float = 0.0
    is_built: bool = False
    expected_steps: int = 0

    @property
    def has_result(self) -> bool:
        """Whether the run did anything for the config: neither did it only wait, nor did another process build it."""
        has_begun = self.started is not None or self.is_built or bool(self.packages)
        return self.state is not ConfigState.LOCKED and (has_begun or self.state is not ConfigState.WAITING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerCharge:
    """The charge for the machine that controls a detached run, of the provider's type ``name``.

    ``hourly`` is its price with its disk and its address, ``billed`` the billing increment in seconds; it is charged
    from the time ``since``.
    """

    hourly: float
    billed: float
    since: float
    currency: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """The cost of a run on workers: ``spent`` so far, and ``expected`` in the end, in ``currency``.

    The currency is empty when a price is unknown.
    ``end`` is the expected time of the end, 0 where unknown, ``config_ends`` those of the configs that are not
    finished, ``config_starts`` the expected starts of those that wait, in seconds since the epoch. The charge for a
    machine that controls the run, the ``controller``, is part of both.
    """

    spent: float
    expected: float
    currency: str
    end: float
    config_ends: Mapping[str, float] = field(default_factory=dict)
    controller: ControllerCharge | None = None
    config_starts: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_charged(self) -> bool:
        """False for workers that cost nothing, such as those of this computer."""
        return self.expected > 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixReport:
    """One run: ``finished`` is None while it runs, or when it was killed; ``rehearsal`` when it made no release.

    ``commit`` is the feedstock's at the start of the run, ``remote_url`` its repository, ``kiln_version`` the version
    that built, ``ci_url`` the page of the CI's run, ``workflow`` the URI of its workflow; each is empty where unknown.
    ``cost`` is that of a fleet's run.
    """

    run: int
    command: str
    started: float
    finished: float | None
    machine: str
    cores: int
    jobs: int
    engine: str
    container: str
    image: str | None = None
    rehearsal: bool = False
    commit: str = ""
    remote_url: str = ""
    kiln_version: str = ""
    ci_url: str = ""
    workflow: str = ""
    cost: RunCost | None = None
    configs: tuple[ConfigRun, ...] = ()
