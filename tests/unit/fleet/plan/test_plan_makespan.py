"""The schedule is nearly as short as any schedule can be."""

from __future__ import annotations

import itertools

import pytest

from kiln.fleet.plan.plan import schedule_builds
from tests.fleets import HOUR, MACHINE, assumed_overheads, estimates, lower_bound

FREE = assumed_overheads(startup=0.0, collect=0.0, teardown=0.0)


@pytest.mark.parametrize("warm", [0.05, 0.1, 0.2])
@pytest.mark.parametrize(
    ("configs", "workers", "groups"),
    [(15, 15, 3), (15, 6, 3), (15, 6, 5), (15, 4, 1), (15, 4, 3), (15, 4, 5), (200, 50, 12), (200, 50, 48)],
)
def test_a_schedule_is_within_a_tenth_of_the_lower_bound(configs: int, workers: int, groups: int, warm: float) -> None:
    jobs = estimates(configs, hours=3, warm=warm, groups=groups)
    sizes = [len(range(group, configs, groups)) for group in range(groups)]
    least = lower_bound(3 * HOUR, 3 * warm * HOUR, sizes, workers)
    seconds = schedule_builds(jobs, types=[MACHINE] * workers, assumptions=FREE).seconds
    assert least <= seconds * (1 + 1e-6)
    assert seconds <= 1.1001 * least


def shortest(cold: float, warm: float, groups: tuple[int, ...], workers: int) -> float:
    """Return the shortest of all schedules: every distribution of the configs over the workers."""
    configs = [group for group, size in enumerate(groups) for _ in range(size)]
    return min(
        max(
            len(mine) * warm + len(set(mine)) * (cold - warm)
            for worker in range(workers)
            for mine in [[group for group, other in zip(configs, owners, strict=True) if other == worker]]
        )
        for owners in itertools.product(range(workers), repeat=len(configs))
    )


@pytest.mark.parametrize("groups", [(3,), (2, 2), (3, 2), (1, 1, 1), (2, 2, 2), (4, 1, 1)])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("warm", [1.0, 2.0, 4.0])
def test_no_schedule_at_all_is_shorter_than_the_bound(groups: tuple[int, ...], workers: int, warm: float) -> None:
    assert lower_bound(10.0, warm, groups, workers) <= shortest(10.0, warm, groups, workers) + 1e-6
