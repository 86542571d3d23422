"""Builds whose compiles share the cores of a pool, in a fluid model."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.run.queue import BuildQueue
from kiln.run.simulation import PoolCores, simulate_builds_in_pool
from kiln.state.results import JobEstimate

HALF = PoolCores(cores=10.0, parallel=0.5, transfer=0.0)


def jobs(count: int, *, seconds: float = 100.0, warm: float = 1.0, groups: int = 100) -> list[JobEstimate]:
    return [
        JobEstimate(config=f"c{number:02d}", group=f"g{number % groups}", cold=seconds, warm=seconds * warm)
        for number in range(count)
    ]


def ends(queue: BuildQueue, workers: int, pool: PoolCores) -> dict[str, float]:
    return {item.config: item.start + item.seconds for item in simulate_builds_in_pool(queue, [1.0] * workers, pool)}


def test_the_parallel_part_of_a_build_runs_in_the_pool_and_the_rest_on_its_worker() -> None:
    assert HALF.split_work(100.0, 1.0) == (50.0, 50.0)
    assert dataclasses.replace(HALF, transfer=0.1).split_work(100.0, 1.0) == pytest.approx((55.0, 50.0))
    work, local = HALF.split_work(60.0, 5.0)  # 0.5 + 0.5 / 5 of the time on one core
    assert (work, local) == pytest.approx((50.0, 50.0))
    assert ends(BuildQueue(jobs(1), cache=True), 1, HALF) == {"c00": pytest.approx(55.0)}


def test_builds_share_the_pool_equally_and_the_rest_is_done_side_by_side() -> None:
    assert [*ends(BuildQueue(jobs(4), cache=True), 4, HALF).values()] == [pytest.approx(70.0)] * 4
    assert max(ends(BuildQueue(jobs(4), cache=True), 2, HALF).values()) == pytest.approx(120.0), "two after the other"


def test_a_build_that_begins_later_takes_its_part_from_the_others() -> None:
    queue = BuildQueue([*jobs(1, seconds=100.0), JobEstimate(config="d", group="h", cold=20.0, warm=20.0)], cache=True)
    result = ends(queue, 2, HALF)
    assert result["d"] == pytest.approx(2.0 + 10.0), "its 10 core-seconds at half of the pool"
    assert result["c00"] == pytest.approx(2.0 + 4.0 + 50.0), "40 left, with the whole pool"


def test_warm_builds_wait_for_the_cold_one_and_workers_for_their_start() -> None:
    placements = simulate_builds_in_pool(
        BuildQueue(jobs(3, warm=0.1, groups=1), cache=True), [1.0] * 3, HALF, startup=7.0
    )
    assert [(item.cold, item.start) for item in placements] == [
        (True, 7.0),
        (False, pytest.approx(62.0)),
        (False, pytest.approx(69.0)),
    ]


@given(
    count=st.integers(1, 12),
    workers=st.integers(1, 12),
    groups=st.integers(1, 5),
    cores=st.floats(1.0, 500.0),
    parallel=st.floats(0.05, 0.99),
)
def test_no_work_is_lost_and_the_pool_does_no_more_than_it_can(
    count: int, workers: int, groups: int, cores: float, parallel: float
) -> None:
    pool = PoolCores(cores=cores, parallel=parallel, transfer=0.1)
    configs = jobs(count, warm=0.3, groups=groups)
    placements = simulate_builds_in_pool(BuildQueue(configs, cache=True), [8.0] * workers, pool)
    assert sorted(item.config for item in placements) == [job.config for job in configs]
    seconds = {job.config: (job.cold, job.warm) for job in configs}
    parts = [pool.split_work(seconds[item.config][0 if item.cold else 1], 8.0) for item in placements]
    end = max(item.start + item.seconds for item in placements)
    assert end >= sum(work for work, _ in parts) / cores * (1 - 1e-6)
    assert end >= sum(local for _, local in parts) / workers * (1 - 1e-6)
    for item, (work, local) in zip(placements, parts, strict=True):
        assert item.seconds >= (work / cores + local) * (1 - 1e-6)
