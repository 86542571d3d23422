"""A fleet's plan and what there is of fleets, for people and for programs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from kiln.console import duration, table
from kiln.fleet.works import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kiln.fleet.plan import Arrangement, FleetPlan, Placed
    from kiln.model.fleet import FleetRun

WIDTH = 48  # characters of the bars that show when a cell is built


def as_text(plan: FleetPlan) -> str:
    """Return a plan as a person wants it: which cell goes where and when, what it costs, what else there is."""
    return "\n".join([*_cells(plan), "", *_ways(plan), "", *_notes(plan)])


def as_json(plan: FleetPlan) -> dict[str, Any]:
    """Return a plan as plain JSON values: times in seconds, money in the currency that stands beside it."""
    return {
        "works": [dataclasses.asdict(work) for work in plan.works],
        "chosen": _way_as_json(plan.chosen),
        "cheapest": _way_as_json(plan.cheapest),
        "fastest": _way_as_json(plan.fastest),
        "without_cache": None if plan.without is None else _way_as_json(plan.without),
        "bounds": dataclasses.asdict(plan.bounds),
        "notes": list(plan.notes),
    }


def _way_as_json(way: Arrangement) -> dict[str, Any]:
    return {**dataclasses.asdict(way), "machines": way.machines, "currency": way.flavour.currency}


def _cells(plan: FleetPlan) -> Iterator[str]:
    way, known = plan.chosen, {work.config: work.known for work in plan.works}
    rows = [
        (
            f"{placed.machine + 1}",
            placed.config,
            "compiles " + placed.group if placed.leader else "follows",
            _hours(placed.start),
            f"{duration(placed.seconds)}{'?' if known[placed.config] == DEFAULT else ''}",
            _bar(placed, way.seconds),
        )
        for placed in sorted(way.placed, key=lambda each: (each.machine, each.start))
    ]
    yield table(("machine", "cell", "", "from", "takes", f"0 to {_hours(way.seconds)}"), rows, right=(0, 3, 4))


def _hours(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02d} h"


def _bar(placed: Placed, whole: float) -> str:
    begin = round(WIDTH * placed.start / whole)
    end = max(begin + 1, round(WIDTH * (placed.start + placed.seconds) / whole))
    return " " * begin + ("█" if placed.leader else "▒") * (end - begin)


def _ways(plan: FleetPlan) -> Iterator[str]:
    ways = [("chosen", plan.chosen), ("cheapest", plan.cheapest), ("fastest", plan.fastest)]
    ways += [] if plan.without is None else [("no cache", plan.without)]
    header = ("", "machines", "type", "cache", "time", "machine time", "cost")
    yield table(header, [_way(name, way) for name, way in ways], right=(1, 4, 5, 6))


def _way(name: str, way: Arrangement) -> tuple[str, ...]:
    kind = f"{way.flavour.type} ({way.flavour.name}{', spot' if way.spot else ''})"
    cache = "" if way.cache is None else way.cache.name
    cost = f"{way.cost:.2f} {way.flavour.currency}"
    return (name, str(way.machines), kind, cache, duration(way.seconds), duration(sum(way.paid)), cost)


def _notes(plan: FleetPlan) -> Iterator[str]:
    way = plan.chosen
    flavour = way.flavour
    hourly = flavour.spot_hourly if way.spot and flavour.spot_hourly is not None else flavour.hourly
    where = f" in {flavour.region}" if flavour.region else ""
    yield f"price   {hourly} {flavour.currency} an hour for {flavour.name}{where}: {flavour.source}, {flavour.date}"
    assumed = sum(work.known == DEFAULT for work in plan.works)
    if assumed:
        yield f"times   {assumed} of {len(plan.works)} cells were never built: '?' is assumed (kiln/fleet/assumed.yml)"
    yield from (f"note    {note}" for note in plan.notes)


def status(runs: Sequence[FleetRun]) -> str:
    """Return what there is of fleet runs, the latest first: a line each, then its machines and jobs."""
    return "\n\n".join(_status(run) for run in runs) if runs else "no fleet run is recorded here"


def _status(run: FleetRun) -> str:
    state = "ended" if run.finished is not None else "under way" if run.lives else "its controller is gone"
    lines = [f"{run.id}: {run.provider}, {run.type}, run {run.number}, {state}"]
    machines = [(each.name, each.state.value, each.id[:20], each.reason.partition("\n")[0]) for each in run.machines]
    jobs = [(job.config, job.state.value, job.machine, str(job.attempt)) for job in run.jobs]
    lines += [table(("machine", "state", "id", "why"), machines)] if machines else []
    lines += ["", table(("cell", "state", "machine", "attempt"), jobs, right=(3,))] if jobs else []
    if run.finished is None and not run.lives:
        lines += ["", f"kiln fleet run goes on with it; kiln fleet down {run.id} gives its machines back"]
    return "\n".join(lines)


def status_as_json(runs: Sequence[FleetRun]) -> list[dict[str, Any]]:
    """Return what there is of fleet runs as plain JSON values."""
    return [
        {
            **dataclasses.asdict(run),
            "machines": [{**dataclasses.asdict(each), "state": each.state.value} for each in run.machines],
            "jobs": [{**dataclasses.asdict(each), "state": each.state.value} for each in run.jobs],
        }
        for run in runs
    ]
