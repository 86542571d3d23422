"""Estimates of builds' durations, and the simulation of queues of builds on workers."""

from __future__ import annotations

import dataclasses
import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.run.queue import BuildQueue
from kiln.state.results import ConfigRun, ConfigState, JobEstimate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kiln.state.ledger.ledger import BuildDuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A config on a worker (counted from 0): ``start`` counts in seconds from the beginning of the run."""

    config: str
    group: str
    worker: int
    start: float
    seconds: float
    cold: bool


def simulate_queue(
    queue: BuildQueue,
    types: Sequence[str],
    *,
    startup: float = 0.0,
    now: float = 0.0,
    idle: Sequence[str] = (),
    building: Sequence[tuple[float, str]] = (),
) -> Iterator[Placement]:
    """Yield the placements of all configs but those that are held back; each new worker is ready after ``startup``.

    There are up to as many new workers as ``types``, their machine types, which are empty if the queue has none. Those
    that exist ``now``, which count first, are ``idle``, or ``building`` until some time.
    """
    existing = [*idle, *(worker for _, worker in building)]
    names = [*existing, *(str(number) for number in range(len(existing), len(existing) + len(types)))]
    new: dict[str, list[int]] = {}  # the workers that were not requested yet
    for worker, machine_type in enumerate(types, len(existing)):
        queue.set_worker_machine_type(names[worker], machine_type)
        new.setdefault(machine_type, []).append(worker)
    free, ends = list(range(len(idle))), [(end, len(idle) + number) for number, (end, _) in enumerate(building)]
    heapq.heapify(ends)

    def begin_next_build(worker: int, moment: float) -> Placement | None:
        name = names[worker]
        job = queue.begin_next_build(name, moment)
        if job is None:
            return None
        heapq.heappush(ends, (queue.expected_end(name), worker))
        return Placement(
            config=job.config,
            group=job.group,
            worker=worker,
            start=queue.expected_start(name),
            seconds=queue.running_build_seconds(name),
            cold=queue.is_running_build_cold(name),
        )

    while queue:
        waiting = []
        for worker in sorted(free):
            if placement := begin_next_build(worker, now):
                yield placement
            else:
                waiting.append(worker)
        free = waiting
        for workers in new.values():
            while workers and (placement := begin_next_build(workers[0], now + startup)):
                del workers[0]
                yield placement
        if not ends:  # what still waits is held back
            return
        now, worker = heapq.heappop(ends)
        queue.end_build(names[worker])
        free.append(worker)


SHARES = 0.99  # a warm build takes less than a cold one, or the queue would take the group for one that shares nothing
HISTORY, SIMILAR, STATED, SIBLINGS, DEFAULT = "history", "similar configs", "stated", "this run", "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileAssumptions:
    """The assumptions about builds without a history.

    ``compile`` are the seconds of a cold build on ``cores`` cores, ``warm`` the part of that time that a warm build
    takes, ``parallel`` the part of a compile that scales with the cores.
    """

    compile: float
    cores: float
    warm: float
    parallel: float

    def slowdown(self, cores: float, reference: float) -> float:
        """Return how many times as long a compile takes on ``cores`` as on ``reference`` cores (Amdahl's law).

        0 stands for an unknown number of cores, and leaves the duration as it is.
        """
        if 0 in {cores, reference}:
            return 1.0
        here, there = (1.0 - self.parallel + self.parallel / count for count in (cores, reference))  # of one core's
        return here / there


def estimate_jobs(
    jobs: Sequence[JobEstimate],
    history: Iterable[BuildDuration],
    *,
    cores: float,
    assumptions: CompileAssumptions,
    stated: Iterable[BuildDuration] = (),
) -> tuple[JobEstimate, ...]:
    """Return configs with their estimates on ``cores`` cores.

    The estimate is the duration of the config's last build, else the average of its group, else what the feedstock has
    ``stated`` of it, else the average of all builds, else the assumption; separately for cold and warm builds.
    """
    cold, warm = ({}, {})  # type: tuple[dict[str, float], dict[str, float]]
    for build in history:
        (cold if build.cold else warm)[build.config] = build.seconds * assumptions.slowdown(cores, build.cores)
    said = {build.config: build.seconds * assumptions.slowdown(cores, build.cores) for build in stated}
    default = assumptions.compile * assumptions.slowdown(cores, assumptions.cores)
    groups = {job.config: job.group for job in jobs}
    estimated = []
    for job in jobs:
        known_cold, known_warm = cold, warm
        if job.config in said:  # which says more than another group's builds
            known_cold, known_warm = (
                {config: seconds for config, seconds in known.items() if groups.get(config) == job.group}
                for known in (cold, warm)
            )
        cold_seconds, source = expected_build_seconds(job.config, groups, known_cold)
        warm_seconds, warm_source = expected_build_seconds(job.config, groups, known_warm)
        if cold_seconds is None:
            cold_seconds, source = (said[job.config], STATED) if job.config in said else (default, DEFAULT)
            if warm_seconds is not None:
                cold_seconds, source = (max(cold_seconds, warm_seconds), warm_source)
        warm_seconds = cold_seconds * assumptions.warm if warm_seconds is None else warm_seconds
        warm_seconds = min(cold_seconds, warm_seconds)
        estimated.append(dataclasses.replace(job, cold=cold_seconds, warm=warm_seconds, source=source))
    return tuple(estimated)


def estimate_by_sibling(
    job: JobEstimate, sibling: JobEstimate, seconds: float, *, cold: bool, warm: float
) -> JobEstimate:
    """Return a config's estimate by what another config has just taken, ``cold`` or warm, where it was only assumed.

    ``warm`` is the part of a cold build that a warm one is assumed to take. Its own group says more than others, of
    which only a cold build says anything.
    """
    is_own = job.group == sibling.group
    if job.source != DEFAULT and not (is_own and job.source == SIBLINGS):
        return job
    if cold:
        return dataclasses.replace(job, cold=seconds, warm=warm * seconds, source=SIBLINGS)
    if not is_own:
        return job
    return dataclasses.replace(job, cold=max(job.cold, seconds / SHARES), warm=seconds, source=SIBLINGS)


def expected_build_seconds(
    config: str, groups: Mapping[str, str], durations: Mapping[str, float]
) -> tuple[float | None, str]:
    """Return a config's last duration, else the average of its group, else that of all, and which of them it is."""
    if config in durations:
        return durations[config], HISTORY
    group = [seconds for other, seconds in durations.items() if groups.get(other) == groups[config]]
    sample = group or list(durations.values())
    return (sum(sample) / len(sample), SIMILAR) if sample else (None, "")


def order_configs_for_build(
    groups: Mapping[str, str],
    durations: Mapping[str, float],
    *,
    finished: Mapping[str, str] | None = None,
    shared: bool = True,
) -> tuple[ConfigRun, ...]:
    """Order configs, given each one's group: the groups' cold builds first, then the warm ones, longest first.

    ``finished`` are the groups of configs that need no build, whose times count. Without a ``shared`` cache, as in a
    rehearsal, no build is cold.
    """
    known = {**groups, **(finished or {})}
    relevant = {config: seconds for config, seconds in durations.items() if config in known}
    waiting = {
        config: ConfigRun(
            config=config,
            state=ConfigState.WAITING,
            group=group,
            estimate=expected_build_seconds(config, known, relevant)[0],
        )
        for config, group in groups.items()
    }
    return tuple(
        dataclasses.replace(waiting[placement.config], cold=shared and placement.cold)
        for placement in simulate_queue(queue_of_configs(waiting.values(), shared=shared), [""])
    )


def queue_of_configs(configs: Iterable[ConfigRun], *, shared: bool) -> BuildQueue:
    """Return the queue of configs; with ``shared``, warm builds wait for the cold build of their group."""
    jobs = (
        JobEstimate(config=config.config, group=config.group, cold=seconds, warm=seconds)
        for config in configs
        for seconds in (config.estimate or 0.0,)
    )
    return BuildQueue(jobs, cache=True, always_share=shared)


def total_build_seconds(configs: Iterable[ConfigRun], jobs: int, *, shared: bool) -> float | None:
    """Return the duration of all builds, ``jobs`` at a time; None when that of any one is unknown."""
    configs = tuple(configs)
    if any(config.estimate is None for config in configs):
        return None
    placements = simulate_queue(queue_of_configs(configs, shared=shared), [""] * jobs)
    return max((placement.start + placement.seconds for placement in placements), default=0.0)
