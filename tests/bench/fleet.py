"""The fleet in simulation: the real planner and supervisor, on made-up machines under a clock of their own."""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING

from kiln.fleet.plan.plan import FleetLimits, plan_fleet
from kiln.fleet.supervisor import Supervisor
from kiln.state.results import JobEstimate
from tests.fleets import (
    HOUR,
    MACHINE,
    Faults,
    Simulation,
    assumed_overheads,
    estimates,
    lower_bound,
    null_recorder,
    run_config,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.bench.timing import Row

CONFIGS, HOURS = 15, 3.0
OFFERED = tuple(range(1, 61))
SHOWN = (1, 2, 4, 8, 15, 60)
PREEMPTION = (0.05, 0.1, 0.2)  # of the machines, in an hour
SEEDS = 25
WARM = 0.2  # of a cold build
SHARED = ((15, 15, 3), (15, 6, 3), (15, 4, 3), (15, 4, 5), (200, 50, 12), (200, 50, 48))  # configs, machines, groups
OVERHEADS = assumed_overheads(startup=240.0, collect=60.0, teardown=30.0)


def rows() -> list[Row]:
    """Fifteen configs on 1 to 60 machines, by the lower bound; with machines that die; a large plan."""
    return [*undisturbed(), *shared(), *preempted(), *large()]


def undisturbed() -> Iterator[Row]:
    """Yield the makespan over max(longest config, total / provisioned machines), for at most 1 to 60 machines."""
    ratios = {}
    for offered in OFFERED:
        used, seconds, _ = simulated(estimates(CONFIGS, hours=HOURS), offered)
        ratios[offered] = seconds / bound(used)
        if offered in SHOWN:
            what = f"{CONFIGS} configs x {HOURS:.0f} h, up to {offered} machines: {used} used, {seconds / HOUR:.2f} h"
            yield what, f"{ratios[offered]:.3f} of the bound", "1.1"
    yield "  the worst of 1 to 60 machines", f"{max(ratios.values()):.3f} of the bound", "1.1"


def shared() -> Iterator[Row]:
    """Yield the makespan of configs that share compiles over the bound of `tests.fleets.lower_bound`."""
    for configs, workers, groups in SHARED:
        sizes = [len(range(group, configs, groups)) for group in range(groups)]
        jobs = estimates(configs, hours=HOURS, warm=WARM, groups=groups)
        _, seconds, _ = simulated(jobs, workers)
        least = lower_bound(HOURS * HOUR, WARM * HOURS * HOUR, sizes, workers)
        what = (
            f"  {configs} configs in {groups} groups that share a compile, {workers} machines: {seconds / HOUR:.2f} h"
        )
        yield what, f"{seconds / least:.3f} of the bound", "1.1"


def preempted() -> Iterator[Row]:
    """Yield the median over many fates, next to the same run undisturbed."""
    for rate in PREEMPTION:
        for offered in (5, 15):
            calm = simulated(estimates(CONFIGS, hours=HOURS), offered)[1]
            fates = [simulated(estimates(CONFIGS, hours=HOURS), offered, rate=rate, seed=seed) for seed in range(SEEDS)]
            times = statistics.median(seconds for _, seconds, _ in fates)
            costs = statistics.median(cost for _, _, cost in fates)
            what = f"  {offered} machines, {rate:.0%} of them die in an hour: {times / HOUR:.1f} h, {costs:.0f} EUR"
            yield what, f"{times / calm:.2f} of undisturbed", ""


def large() -> Iterator[Row]:
    """Yield the time of planning a thousand configs, with and without a cache machine, and of a run of two thousand."""
    for what, cache in (("a plan of 1,000 configs on up to 200 machines", None), ("  the same with a cache", MACHINE)):
        began = time.process_time()
        bounds = FleetLimits(workers=200)
        plan_fleet({MACHINE: many_configs(1000)}, assumptions=OVERHEADS, bounds=bounds, cache=cache)
        yield what, f"{time.process_time() - began:.2f} s", "2 s"
    began = time.process_time()
    simulated(many_configs(2000), 200)
    yield "  the controller of 2,000 configs on 200 machines", f"{time.process_time() - began:.1f} s", "60 s"


def many_configs(count: int) -> list[JobEstimate]:
    """Return configs of twelve groups that share a compile, of two to four hours each, and of half an hour after it."""
    chance = random.Random(0)
    return [
        JobEstimate(
            config=f"config{number:04d}",
            group=f"cuda{number % 12}",
            cold=chance.uniform(2.0, 4.0) * HOUR,
            warm=chance.uniform(0.3, 0.8) * HOUR,
        )
        for number in range(count)
    ]


def simulated(
    configs: Sequence[JobEstimate], offered: int, *, rate: float = 0.0, seed: int = 0
) -> tuple[int, float, float]:
    """Plan for so many machines and run that; returns the machines used, the seconds, and what was paid."""
    bounds = FleetLimits(workers=offered)
    selection = plan_fleet({MACHINE: configs}, assumptions=OVERHEADS, bounds=bounds, optimize="time").selection
    config = run_config(
        configs,
        max_workers=selection.worker_count,
        startup=OVERHEADS.startup,
        attempts=1000,
        replacements=100_000,
    )
    simulation = Simulation(configs, faults=Faults(preemption=rate), seed=seed, up=240.0, home=60.0, down=30.0)
    report = Supervisor(config, executor=simulation, recorder=null_recorder()).execute_run()
    assert report.finished is not None
    paid = sum(end - begin for _, begin, end in simulation.paid) / HOUR * MACHINE.hourly
    return selection.worker_count, report.finished - report.started, paid


def bound(workers: int) -> float:
    """Return the time that no arrangement on so many machines can stay below."""
    return max(HOURS, CONFIGS * HOURS / workers) * HOUR
