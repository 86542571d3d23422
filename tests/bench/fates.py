"""Random fates of fleet runs in simulation: workers die, and the controller has no network for a while.

KILN_BENCH_FATES sets the number of fates of each case, by default 1,000.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import random
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.base.errors import KilnError
from kiln.fleet.options import FleetOptions
from kiln.fleet.plan.plan import FleetLimits, plan_fleet
from kiln.fleet.run_config import FleetRunConfig
from kiln.fleet.supervisor import Supervisor
from kiln.state.results import ConfigState
from tests.fleets import HOUR, MACHINE, Faults, Simulation, assumed_overheads, estimates, null_recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.fleet.plan.plan import WorkerArrangement
    from kiln.state.results import JobEstimate
    from tests.bench.timing import Row

FATES = int(os.environ.get("KILN_BENCH_FATES", "1000"))
CASES = ((15, 15), (15, 6), (200, 50))  # configs, workers
DEATHS = (0.0, 0.05, 0.1, 0.2)  # of a worker, in an hour
OUTAGES = (0, 10, 60)  # minutes
HOURS = 3.0  # of a build
OVERHEADS = assumed_overheads(startup=240.0, collect=60.0, teardown=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """The outcome of a run: whether every config was built, the seconds, and the money."""

    finished: bool
    seconds: float
    cost: float


class SilentSupervisor(Supervisor):
    """A supervisor without forecasts of the cost, which decide nothing."""

    def _update_cost_forecast(self, now: float) -> None:
        """Forecast nothing, at no time."""
        self._forecast_at = math.inf


def rows() -> Iterator[Row]:
    """Yield for each case the finished runs, and their medians of time and money over those of an undisturbed run."""
    for configs, workers in CASES:
        calm = fate(configs, workers)
        for rate in DEATHS:
            for minutes in OUTAGES:
                fates = [
                    fate(configs, workers, rate=rate, minutes=minutes, length=calm.seconds, seed=seed)
                    for seed in range(FATES)
                ]
                what = f"{configs} configs on {workers} workers, {rate:.0%} die in an hour, {minutes} minutes offline"
                times = _ratios([each.seconds / calm.seconds for each in fates])
                money = _ratios([each.cost / calm.cost for each in fates])
                finished = sum(each.finished for each in fates)
                yield what, f"{finished} finished, time {times}, money {money}", f"{FATES} finished"


def _ratios(values: list[float]) -> str:
    """Return the median of values, and what one in twenty exceeds."""
    ordered = sorted(values)
    return f"{statistics.median(ordered):.2f} ({ordered[int(0.95 * len(ordered))]:.2f})"


@functools.cache
def planned(configs: int, workers: int) -> tuple[tuple[JobEstimate, ...], WorkerArrangement]:
    """Return the configs and what is planned for them, which is the same for all fates."""
    jobs = estimates(configs, hours=HOURS)
    bounds = FleetLimits(workers=workers)
    return jobs, plan_fleet({MACHINE: jobs}, assumptions=OVERHEADS, bounds=bounds, optimize="time").selection


def fate(
    configs: int, workers: int, *, rate: float = 0.0, minutes: int = 0, length: float = 0.0, seed: int = 0
) -> Fate:
    """Run with kiln's own limits of losses; the outage begins at a random moment of an undisturbed run's ``length``."""
    jobs, selection = planned(configs, workers)
    attempts, replacements = FleetOptions().loss_limits(
        workers=selection.worker_count, worker_seconds=sum(selection.worker_seconds)
    )
    run_config = FleetRunConfig(
        id="bench",
        command="",
        machine_type=MACHINE,
        estimates=jobs,
        max_workers=selection.worker_count,
        startup=OVERHEADS.startup,
        attempts=attempts,
        is_strict=False,
        replacements=replacements,
    )
    begin = random.Random(seed).uniform(0.0, length)
    offline = ((begin, begin + 60.0 * minutes),) if minutes else ()
    faults = Faults(preemption=rate, offline=offline)
    simulation = Simulation(jobs, faults=faults, seed=seed, up=240.0, home=60.0, down=30.0)
    supervisor = SilentSupervisor(run_config, executor=simulation, recorder=null_recorder())
    report = None
    with contextlib.suppress(KilnError):  # the run ended otherwise
        report = supervisor.execute_run()
    simulation.bury()
    paid = sum(end - begin for _, begin, end in simulation.paid) / HOUR * MACHINE.hourly
    done = report is not None and all(config.state is ConfigState.DONE for config in report.configs)
    return Fate(finished=done, seconds=simulation.clock - simulation.began, cost=paid)
