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


def simulate_queue(queue: BuildQueue, types: Sequence[str], *, startup: float = 0.0) -> Iterator[Placement]:
    """Yield the placements of all configs; each worker is ready ``startup`` after its request.

    There are up to as many workers as ``types``, their machine types, which are empty if the queue has none.
    """
    new: dict[str, list[int]] = {}  # the workers that were not requested yet
    for worker, machine_type in enumerate(types):
        queue.set_worker_machine_type(str(worker), machine_type)
        new.setdefault(machine_type, []).append(worker)
    idle: list[int] = []
    building: list[tuple[float, int]] = []
    now = 0.0
    while queue:
        waiting = []
        for worker in sorted(idle):
            placement = _begin_next_build(queue, worker, now)
            if placement is None:
                waiting.append(worker)
            else:
                yield placement
                heapq.heappush(building, (placement.start + placement.seconds, worker))
        idle = waiting
        for names in new.values():
            while names and (placement := _begin_next_build(queue, names[0], now + startup)):
                yield placement
                heapq.heappush(building, (placement.start + placement.seconds, names.pop(0)))
        now, worker = heapq.heappop(building)
        queue.end_build(str(worker))
        idle.append(worker)


def _begin_next_build(queue: BuildQueue, worker: int, now: float) -> Placement | None:
    name = str(worker)
    job = queue.begin_next_build(name, now)
    if job is None:
        return None
    start, seconds, cold = (
        queue.expected_start(name),
        queue.running_build_seconds(name),
        queue.is_running_build_cold(name),
    )
    return Placement(config=job.config, group=job.group, worker=worker, start=start, seconds=seconds, cold=cold)


HISTORY, SIMILAR, DEFAULT = "history", "similar configs", "assumed"


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
) -> tuple[JobEstimate, ...]:
    """Return configs with their estimates on ``cores`` cores.

    The estimate is the duration of the config's last build, else the average of its group, else that of all builds,
    else the assumption; separately for cold and warm builds.
    """
    cold, warm = ({}, {})  # type: tuple[dict[str, float], dict[str, float]]
    for build in history:
        (cold if build.cold else warm)[build.config] = build.seconds * assumptions.slowdown(cores, build.cores)
    default = assumptions.compile * assumptions.slowdown(cores, assumptions.cores)
    groups = {job.config: job.group for job in jobs}
    estimated = []
    for job in jobs:
        cold_seconds, source = expected_build_seconds(job.config, groups, cold)
        warm_seconds, warm_source = expected_build_seconds(job.config, groups, warm)
        if cold_seconds is None:
            cold_seconds, source = (default, DEFAULT)
            if warm_seconds is not None:
                cold_seconds, source = (max(default, warm_seconds), warm_source)
        warm_seconds = cold_seconds * assumptions.warm if warm_seconds is None else warm_seconds
        warm_seconds = min(cold_seconds, warm_seconds)
        estimated.append(dataclasses.replace(job, cold=cold_seconds, warm=warm_seconds, source=source))
    return tuple(estimated)


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
    groups: Mapping[str, str], durations: Mapping[str, float], *, shared: bool = True
) -> tuple[ConfigRun, ...]:
    """Order configs, given each one's group: the groups' cold builds first, then the warm ones, longest first.

    Without a ``shared`` cache, as in a rehearsal, no build is cold.
    """
    relevant = {config: seconds for config, seconds in durations.items() if config in groups}
    waiting = {
        config: ConfigRun(
            config=config,
            state=ConfigState.WAITING,
            group=group,
            estimate=expected_build_seconds(config, groups, relevant)[0],
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


ROUNDING = 1e-6  # seconds, or core-seconds, that count as nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCores:
    """The cores of a pool: ``parallel`` is the part of a build's work that runs there.

    ``transfer`` is the time that an action takes longer there, as a part of its own time.
    """

    cores: float
    parallel: float
    transfer: float

    def split_work(self, seconds: float, cores: float) -> tuple[float, float]:
        """Return the core-seconds of a build in the pool, and the seconds on its own worker.

        It would take ``seconds`` on that many ``cores`` without a pool.
        """
        alone = seconds / (1.0 - self.parallel + self.parallel / cores)  # on one core
        return alone * self.parallel * (1.0 + self.transfer), alone * (1.0 - self.parallel)


@dataclass(slots=True, kw_only=True)
class _BuildInProgress:
    """A build in progress: ``work`` is left in the pool, then ``local`` on its worker, from ``start`` on."""

    worker: int
    job: JobEstimate
    cold: bool
    start: float
    work: float
    local: float


def simulate_builds_in_pool(
    queue: BuildQueue,
    workers: Sequence[float],
    pool: PoolCores,
    *,
    startup: float = 0.0,
    types: Sequence[str] = (),
) -> tuple[Placement, ...]:
    """Return the placements of all configs, by their start; ``workers`` are the cores of the workers that build.

    A worker, as the pool itself, is ready ``startup`` after its request; it is requested when there is a config for it.
    ``types`` are the machine types of the workers, if the queue distinguishes them.
    """
    for worker, machine_type in enumerate(types):
        queue.set_worker_machine_type(str(worker), machine_type)
    unused, idle = list(range(len(workers))), []  # type: list[int], list[int]
    running: list[_BuildInProgress] = []
    done: list[Placement] = []
    now = 0.0

    def begin_next_build(worker: int, moment: float) -> bool:
        job = queue.begin_next_build(str(worker), moment)
        if job is not None:
            cold = queue.is_running_build_cold(str(worker))
            work, local = pool.split_work(queue.running_build_seconds(str(worker)), workers[worker])
            running.append(_BuildInProgress(worker=worker, job=job, cold=cold, start=moment, work=work, local=local))
        return job is not None

    while queue or running:
        idle = [worker for worker in sorted(idle) if not begin_next_build(worker, now)]
        unused = [worker for worker in unused if not begin_next_build(worker, now + startup)]
        now += _advance_to_next_change(running, now, pool.cores)
        for build in [build for build in running if build.work <= ROUNDING and build.local <= ROUNDING]:
            running.remove(build)
            queue.end_build(str(build.worker))
            idle.append(build.worker)
            done.append(
                Placement(
                    config=build.job.config,
                    group=build.job.group,
                    worker=build.worker,
                    start=build.start,
                    seconds=now - build.start,
                    cold=build.cold,
                )
            )
    return tuple(sorted(done, key=lambda placement: (placement.start, placement.worker)))


def estimate_from_placement(job: JobEstimate, placement: Placement) -> JobEstimate:
    """Return the estimate of a config whose build takes as long as its placement in a pool."""
    warm, seconds = (job.warm / job.cold if job.cold else 1.0), placement.seconds
    if placement.cold:
        return dataclasses.replace(job, cold=seconds, warm=seconds * warm)
    return dataclasses.replace(job, cold=seconds / (warm or 1.0), warm=seconds)


def _advance_to_next_change(running: Sequence[_BuildInProgress], now: float, cores: float) -> float:
    """Let all builds go on until one of them begins, leaves the pool, or ends; return the seconds until then."""
    begun = [build for build in running if build.start <= now + ROUNDING]
    compiling = [build for build in begun if build.work > ROUNDING]
    local = [build for build in begun if build.work <= ROUNDING]
    rate = cores / len(compiling) if compiling else 0.0
    steps = [build.start - now for build in running if build.start > now + ROUNDING]
    steps += [build.work / rate for build in compiling]
    steps += [build.local for build in local]
    step = min(steps)
    for build in compiling:
        build.work -= rate * step
        build.work = 0.0 if build.work <= ROUNDING else build.work
    for build in local:
        build.local -= step
    return step
