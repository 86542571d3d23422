"""The report of a run over the matrix: the state of each config, with time, machine and cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.model.build_results import PackageReport, StepReport


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
    tests on a worker have not passed.
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
    that built, ``ci_url`` the page of the CI's run, ``workflow`` the URI of its workflow; each is empty where unknown,
    as in runs of an older kiln. ``cost`` is that of a fleet's run.
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
