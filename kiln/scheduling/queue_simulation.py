"""Simulate a queue of builds: the placement of each config on a worker, if every build takes its estimated time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kiln.scheduling.queue import BuildQueue


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
