"""The fleet in simulation: the real planner and supervisor, on made-up machines under a clock of their own."""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING

from kiln.fleet.mission import Mission
from kiln.fleet.plan import Bounds, Overheads, plan
from kiln.fleet.supervisor import Supervisor
from kiln.model.fleet import Work
from tests.fleets import FLAVOUR, HOUR, Faults, Nobody, NoBook, World, works

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.bench.timing import Row

CELLS, HOURS = 15, 3.0
OFFERED = tuple(range(1, 61))
SHOWN = (1, 2, 4, 8, 15, 60)
PREEMPTION = (0.05, 0.1, 0.2)  # of the machines, in an hour
SEEDS = 25
OVERHEADS = Overheads(up=240.0, home=60.0, down=30.0)


def rows() -> list[Row]:
    """Fifteen cells on 1 to 60 machines, next to the lower bound; the same with machines that die; a large plan."""
    return [*undisturbed(), *preempted(), *large()]


def undisturbed() -> Iterator[Row]:
    """The makespan over max(longest cell, total / machines brought up), over 1 to 60 machines that may be used."""
    ratios = {}
    for offered in OFFERED:
        used, seconds, _ = simulated(works(CELLS, hours=HOURS), offered)
        ratios[offered] = seconds / bound(used)
        if offered in SHOWN:
            what = f"{CELLS} cells x {HOURS:.0f} h, up to {offered} machines: {used} used, {seconds / HOUR:.2f} h"
            yield what, f"{ratios[offered]:.3f} of the bound", "1.1"
    yield "  the worst of 1 to 60 machines", f"{max(ratios.values()):.3f} of the bound", "1.1"


def preempted() -> Iterator[Row]:
    """The median over many fates, next to the same run undisturbed."""
    for rate in PREEMPTION:
        for offered in (5, 15):
            calm = simulated(works(CELLS, hours=HOURS), offered)[1]
            fates = [simulated(works(CELLS, hours=HOURS), offered, rate=rate, seed=seed) for seed in range(SEEDS)]
            times = statistics.median(seconds for _, seconds, _ in fates)
            costs = statistics.median(cost for _, _, cost in fates)
            what = f"  {offered} machines, {rate:.0%} of them die in an hour: {times / HOUR:.1f} h, {costs:.0f} EUR"
            yield what, f"{times / calm:.2f} of undisturbed", ""


def large() -> Iterator[Row]:
    """A thousand cells on up to 200 machines, of three types, with and without a cache machine."""
    chance = random.Random(0)
    cells = [
        Work(
            config=f"cell{number:04d}",
            group=f"cuda{number % 12}",
            full=chance.uniform(2.0, 4.0) * HOUR,
            follower=chance.uniform(0.3, 0.8) * HOUR,
        )
        for number in range(1000)
    ]
    for what, cache in (("a plan of 1,000 cells on up to 200 machines", None), ("  the same with a cache", FLAVOUR)):
        began = time.monotonic()
        plan({FLAVOUR: cells}, overheads=OVERHEADS, bounds=Bounds(machines=200), cache=cache)
        yield what, f"{time.monotonic() - began:.2f} s", "2 s"


def simulated(cells: Sequence[Work], offered: int, *, rate: float = 0.0, seed: int = 0) -> tuple[int, float, float]:
    """Plan for so many machines and run that; returns the machines used, the seconds, and what was paid."""
    bounds = Bounds(machines=offered)
    chosen = plan({FLAVOUR: cells}, overheads=OVERHEADS, bounds=bounds, aim="fastest").chosen
    mission = Mission(
        id="bench",
        command="",
        flavour=FLAVOUR,
        works=tuple(cells),
        most=chosen.machines,
        up=OVERHEADS.up,
        attempts=1000,
        replacements=100_000,
    )
    world = World(cells, faults=Faults(preemption=rate), seed=seed, up=240.0, home=60.0, down=30.0)
    report = Supervisor(mission, hands=world, book=NoBook(), watcher=Nobody()).execute()
    assert report.finished is not None
    paid = sum(end - begin for _, begin, end in world.paid) / HOUR * FLAVOUR.hourly
    return chosen.machines, report.finished - report.started, paid


def bound(machines: int) -> float:
    """The time that no arrangement on so many machines can stay below."""
    return max(HOURS, CELLS * HOURS / machines) * HOUR
