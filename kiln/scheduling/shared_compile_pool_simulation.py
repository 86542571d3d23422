"""Simulate builds whose compiles share the workers of a pool: each of those that compile gets the same part of it.

The model is a fluid one. A build is the work of its compile, which is done by the cores of the pool, and then what is
left to its own worker: Bazel's analysis, the last links, packaging and tests (the serial part of Amdahl's law). Work is
divisible at will: neither the longest action nor the order of actions counts, so real pools are slower at the end.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.scheduling.queue_simulation import Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kiln.model.job_estimate import JobEstimate
    from kiln.scheduling.queue import BuildQueue

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
