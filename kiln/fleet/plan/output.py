"""The plan and the status of fleet runs, as text and as JSON, with the terms for refusals and losses."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kiln.base.serialization import to_json
from kiln.base.text import count_text, duration, table
from kiln.fleet import inventory
from kiln.fleet.model import FleetRun, JobState, MachineType
from kiln.fleet.plan import plan as plan_plan
from kiln.fleet.plan.choice import EXISTING_HOSTS
from kiln.fleet.plan.plan import Assumptions
from kiln.fleet.plan.prices import FREE, price_row_hint
from kiln.fleet.records import config_of_job
from kiln.fleet.run_config import greatest_cost_text
from kiln.run.report.page import cost_as_json
from kiln.run.report.text import cost_text
from kiln.run.simulation import DEFAULT, STATED
from kiln.run.view.state import expected_period_text, time_of_day_text
from kiln.state.results import JobSize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kiln.fleet.model import Offer
    from kiln.fleet.plan.plan import FleetPlan, WorkerArrangement
    from kiln.run.simulation import Placement
    from kiln.state.results import RunCost


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTerms:
    """The terms of a run: ``offers`` in the order in which they are asked for, ``lifetime`` of a worker in seconds.

    A run of several machine types has the offers of the first one, and in ``other_offers`` those of the others.

    A detached run has a ``controller``, where its packages wait for up to ``keep`` seconds.

    ``replacements`` lost workers are replaced, ``joint_replacements`` that are lost together with others, and a config
    is tried on ``attempts``; ``losses`` is what the lost ones cost at most.
    """

    offers: tuple[Offer, ...]
    attempts: int
    replacements: int
    joint_replacements: int
    losses: float
    lifetime: float
    other_offers: tuple[tuple[Offer, ...], ...] = ()
    controller: MachineType | None = None
    keep: float = 0.0


def greatest_cost_of_lost_workers(
    plan: FleetPlan, offers: Iterable[Offer], replacements: int, joint_replacements: int, startup: float
) -> float:
    """Return what lost workers cost at most: each the longest build by the dearest offer, lost at its end.

    Besides those that are lost one by one there are those that are lost together, and of spot workers as many again
    as the former that the provider takes back after a notice.
    """
    offers = tuple(offers)
    hourly = max(offer.hourly_price for offer in offers)
    replacements *= 2 if any(offer.spot for offer in offers) else 1
    return (replacements + joint_replacements) * hourly * (startup + max(job.cold for job in plan.estimates)) / 3600


def run_terms_lines(terms: RunTerms, way: WorkerArrangement) -> Iterator[str]:
    """Yield the lines of the plan about the terms."""
    currency = way.machine_type.currency
    for first, *others in (offers for offers in (terms.offers, *terms.other_offers) if len(offers) > 1):
        yield f"first   {first}"
        yield from (f"else    {offer}, {_offer_price_text(offer)}" for offer in others)
    if way.cost:
        most = terms.replacements * (2 if way.spot else 1) + terms.joint_replacements
        yield (
            f"losses  a lost worker is replaced, {most} times at most; were all lost at the end of their builds, that"
            f" would cost {terms.losses:.2f} {currency} more: --cost-limit sets the most that the run may cost"
        )
    if (kind := terms.controller) is not None and kind.is_priced:
        hourly, currency = kind.hourly_price(spot=False), kind.currency
        yield (
            f"control 1 {kind.name}, {hourly:.3f} {currency} an hour: {hourly * way.seconds / 3600:.2f} {currency} more"
            f" for the run, and {hourly * terms.keep / 3600:.2f} {currency} at most while its packages wait (--keep)"
        )
    elif kind is not None:
        yield f"control 1 {kind.name}, price unknown: it is not counted"
    what = "machines stop building" if way.machine_type.provider == EXISTING_HOSTS else "workers end themselves"
    yield f"life    {what} after {terms.lifetime / 3600:.0f} h, even in the middle of a build"


def _offer_price_text(offer: Offer) -> str:
    kind = offer.machine_type
    return f"{offer.hourly_price:.3f} {kind.currency} an hour" if kind.is_priced else "price unknown"


WIDTH = 32  # characters of the bars of the schedule
MOST_SHOWN = 9  # arrangements in the table
ON_WORKER = frozenset({JobState.REQUESTED, JobState.RUNNING})


def plan_as_text(
    plan: FleetPlan, terms: RunTerms | None = None, labels: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return a plan as text: the schedule, the cost, the alternatives, the terms; ``labels`` are names of configs."""
    notes = [
        *_plan_notes(plan),
        *(() if terms is None else run_terms_lines(terms, plan.selection)),
        *_quota_warnings(plan, terms),
    ]
    named = {"selected": plan.selection, "fastest": plan.fastest, "cheapest": plan.cheapest}
    step = max(1, -(-len(plan.front) // MOST_SHOWN))  # the front is thinned out, but for its ends and the selection
    ways = [
        (", ".join(name for name, other in named.items() if other is way), way)
        for number, way in enumerate(plan.front)
        if not number % step or way in {plan.selection, plan.cheapest}
    ]
    ways += [] if plan.without_cache is None else [("no cache", plan.without_cache)]
    header = ("", "workers", "type", "cache", "time", "worker time", "cost")
    arrangements = table(header, [_arrangement_row(name, way) for name, way in ways], right=(1, 4, 5, 6))
    return "\n".join([*_schedule_table(plan, labels), "", arrangements, "", *notes])


def plan_as_json(plan: FleetPlan, terms: RunTerms | None = None) -> dict[str, Any]:
    """Return a plan as plain JSON values: durations in seconds, the costs and times as of a run that begins now."""
    now, controller = time.time(), None if terms is None else terms.controller

    def optional_arrangement_as_json(way: WorkerArrangement | None) -> dict[str, Any] | None:
        if way is None:
            return None
        data = {**to_json(way), "worker_types": [kind.type for kind in way.worker_types]}
        data["machine_types"] = to_json(way.machine_types)
        collect, tests = Assumptions.read().collect, plan.bounds.tests
        cost = inventory.planned_cost(way, controller, now, collect=collect, tests=tests)
        return {**data, "workers": way.worker_count, "cost": cost_as_json(cost, start=now, running={})}

    return {
        "estimates": to_json(plan.estimates),
        "chosen": optional_arrangement_as_json(plan.selection),
        "cheapest": optional_arrangement_as_json(plan.cheapest),
        "fastest": optional_arrangement_as_json(plan.fastest),
        "front": [
            {"workers": way.worker_count, "seconds": way.seconds, "cost": way.cost if way.is_priced else None}
            | {"types": [kind.type for kind in way.machine_types]}
            for way in plan.front
        ],
        "without_cache": optional_arrangement_as_json(plan.without_cache),
        "without_quotas": optional_arrangement_as_json(plan.without_quotas),
        "quotas": [
            {**to_json(quota), "needed": quota.units_needed_by(plan.selection.machines)} for quota in plan.bounds.quotas
        ],
        "quota_warnings": [text.removeprefix("quota").strip() for text in _quota_warnings(plan, terms)],
        "bounds": to_json(plan.bounds),
        "bound": greatest_cost_text(plan.selection),
        "terms": to_json(terms),
    }


def choice_reason(plan: FleetPlan) -> str:
    """Return why the selection was chosen, by what the ends of the front have more of."""
    way, fastest, cheapest = plan.selection, plan.fastest, plan.cheapest
    if fastest is cheapest:
        return "no other arrangement is faster, or cheaper" if way.is_priced else "the fastest: its price is unknown"
    reasons = [] if way is not fastest else ["the fastest"]
    reasons += [] if way is not cheapest else ["the cheapest"]
    if way is not fastest:
        reasons.append(f"{way.seconds / fastest.seconds:.1f} times as long as the fastest, {_cheaper(way, fastest)}")
    if way is not cheapest:
        reasons.append(f"{cheapest.seconds / way.seconds:.1f} times as fast as the cheapest, {_cheaper(way, cheapest)}")
    return "; ".join(reasons)


def _cheaper(way: WorkerArrangement, other: WorkerArrangement) -> str:
    change = way.cost / other.cost - 1
    return f"for {abs(change):.0%} {'more' if change > 0 else 'less'}"


def _schedule_table(plan: FleetPlan, labels: Mapping[str, str]) -> Iterator[str]:
    way, source = plan.selection, {estimate.config: estimate.source for estimate in plan.estimates}
    mixed = len(way.machine_types) > 1
    needs = {estimate.config: _job_needs_text(estimate.size) for estimate in plan.estimates}
    sized = any(needs.values())
    rows = [
        (
            f"{placement.worker + 1}",
            *([way.worker_types[placement.worker].type] if mixed else []),
            labels.get(placement.config, placement.config),
            *([needs[placement.config]] if sized else []),
            f"cold, {placement.group}" if placement.cold else "warm",
            _hours_text(placement.start),
            f"{duration(placement.seconds)}{'?' if source[placement.config] == DEFAULT else ''}",
            _timeline_bar(placement, way.seconds),
        )
        for placement in sorted(way.placements, key=lambda placement: (placement.worker, placement.start))
    ]
    names = ("worker", *(["type"] if mixed else []), "config", *(["needs"] if sized else []), "build", "from", "takes")
    yield table((*names, f"0 to {_hours_text(way.seconds)}"), rows, right=(0, len(names) - 2, len(names) - 1))


def _job_needs_text(size: JobSize) -> str:
    """Return what a config needs of its worker, and its time limit; empty for neither."""
    limit = [] if size.time_limit is None else [f"at most {duration(size.time_limit)}"]
    return ", ".join([*([] if str(size) == str(JobSize()) else [str(size)]), *limit])


def _hours_text(seconds: float) -> str:
    minutes = round(seconds) // 60  # as in `duration`
    return f"{minutes // 60}:{minutes % 60:02d} h"


def _timeline_bar(placement: Placement, whole: float) -> str:
    begin = round(WIDTH * placement.start / whole)
    end = max(begin + 1, round(WIDTH * (placement.start + placement.seconds) / whole))
    return " " * begin + ("█" if placement.cold else "▒") * (end - begin)


def _arrangement_row(name: str, way: WorkerArrangement) -> tuple[str, ...]:
    kinds = way.machine_types
    texts = [
        _machine_type_text(kind, way.worker_types.count(kind) if len(kinds) > 1 else 0, spot=way.spot) for kind in kinds
    ]
    cache = "" if way.cache is None else way.cache.name
    worker_time = duration(sum(way.worker_seconds))
    return (name, str(way.worker_count), " + ".join(texts), cache, duration(way.seconds), worker_time, way.cost_text)


def arrangement_text(way: WorkerArrangement) -> str:
    """Return the workers of an arrangement, ``3 compute-16 (c7i.4xlarge)``."""
    kinds = (_machine_type_text(kind, way.worker_types.count(kind), spot=way.spot) for kind in way.machine_types)
    return " + ".join(filter(None, [*kinds, *([] if way.cache is None else [f"a cache ({way.cache.name})"])]))


def _machine_type_text(kind: MachineType, count: int, *, spot: bool) -> str:
    names = [kind.name] if kind.name != kind.type else []
    notes = ", ".join([*names, *(["spot"] if spot else [])])
    text = f"{kind.type} ({notes})" if notes else kind.type
    return f"{count} {text}" if count else text


def _plan_notes(plan: FleetPlan) -> Iterator[str]:
    way, now, tests = plan.selection, time.time(), plan.bounds.tests
    after = 0.0 if tests is None else tests.seconds
    yield f"chosen  {choice_reason(plan)} (--optimize)"
    yield f"end     at about {time_of_day_text(now + way.seconds + after, now)}, if the run starts now"
    for kind in way.machine_types:
        yield f"price   {_price_text(kind, spot=way.spot)}"
        if extras := _extra_charges_text(kind):
            yield f"with    {extras}"
        if kind.not_counted:
            yield f"without {', '.join(kind.not_counted)}: no price is known"
    if stated := sum(estimate.source == STATED for estimate in plan.estimates):
        yield f"times   those of {count_text(stated, 'config')} are stated in fleet-sizes.yml or conda-forge.yml"
    assumed = sum(estimate.source == DEFAULT for estimate in plan.estimates)
    if assumed:
        verb = "was" if assumed == 1 else "were"
        count = f"{assumed} of {count_text(len(plan.estimates), 'config')}"
        yield (
            f"times   {count} {verb} never built: times with '?' are assumed (kiln/fleet/plan/assumed.yml); 'hours' in"
            " fleet-sizes.yml states them"
        )
        if not plan_plan.is_within_limits(way, plan.bounds):
            yield "limit   if they are true, the run will be stopped at its limit of time or cost"
    if tests is not None:  # that follow the run
        kind, priced = tests.machine_type, tests.machine_type.is_priced
        cost = f"{tests.cost:.2f} {kind.currency}" if priced else "price unknown"
        both = f", {tests.cost + way.cost:.2f} {kind.currency} with the builds" if priced and way.is_priced else ""
        worker = _machine_type_text(kind, 0, spot=tests.spot)
        text = f"{len(tests.configs)} configs on 1 {worker}, {duration(tests.seconds)}?, {cost}"
        yield f"gpu     {text}{both}, after the builds"
        yield f"price   {_price_text(kind, spot=tests.spot)}"
    limits = {estimate.config: estimate.size.time_limit for estimate in plan.estimates}
    for placement in way.placements:
        limit = limits[placement.config]
        if limit is not None and placement.seconds > limit:
            text = f"{duration(placement.seconds)} are expected, and it is ended after {duration(limit)}"
            yield f"limit   {placement.config}: {text}"
    for quota in plan.bounds.quotas:
        if need := quota.units_needed_by(way.machines):
            controller = f", {quota.reserved:g} for the controller" if quota.reserved else ""
            use = f"{quota.name}, {quota.used:g} of {quota.limit:g} in use{controller}"
            yield f"quota   {need:g} of {quota.free_units:g} free {plan_plan.UNITS[quota.measure]}: {use}"
    yield f"bound   {greatest_cost_text(way)}"


def _quota_warnings(plan: FleetPlan, terms: RunTerms | None) -> Iterator[str]:
    return plan_plan.quota_warnings(plan, () if terms is None else (terms.offers, *terms.other_offers))


def _price_text(kind: MachineType, *, spot: bool) -> str:
    hourly, origin = kind.hourly, (kind.source, kind.date)
    if spot and kind.spot_hourly is not None:
        hourly, origin = kind.spot_hourly, (kind.spot_source, kind.spot_date)
    where = f" in {kind.region}" if kind.region else ""
    if kind.provider in FREE and not kind.hourly_price(spot=spot):
        return f"nothing: {kind.source}"
    if not kind.is_priced:
        return f"unknown for {kind.name}{where}: {price_row_hint(kind, 'on-demand')}"
    source = ", ".join(filter(None, origin))
    return f"{hourly:g} {kind.currency} an hour for {kind.name}{where}{' (spot)' if spot else ''}: {source}"


def _extra_charges_text(kind: MachineType) -> str:
    """Return what is charged besides the machine, and is part of the cost."""
    parts = [f"{kind.disk_hourly:.3f} an hour for {kind.disk:g} GB of disk"] if kind.disk_hourly else []
    parts += [f"{kind.address_hourly:g} an hour for its public address"] if kind.address_hourly else []
    parts += [f"{kind.egress:g} for each GB of packages"] if kind.egress else []
    return ", ".join(parts)


def status_as_text(runs: Sequence[FleetRun], costs: Mapping[str, RunCost]) -> str:
    """Return the status of fleet runs, the latest first: each with its workers and jobs, and its cost."""
    return "\n\n".join(_run_status_text(run, costs.get(run.id)) for run in runs) or "the ledger has no fleet runs"


def ledger_damage_note(backups: Sequence[Path]) -> str:
    """Return a note for a ledger that was repaired: the workers of lost runs have to be looked for."""
    return (
        f"note: the ledger was damaged and repaired ({', '.join(path.name for path in backups)}): runs may be missing."
        "\n  'kiln fleet sweep --provider PROVIDER' terminates their expired workers, with --all those that still run;"
        f"\n  delete {backups[0].parent}/*.broken* when none remain"
    )


def _run_status_text(run: FleetRun, cost: RunCost | None) -> str:
    state = "ended" if run.finished is not None else "running" if run.lives else "its controller is gone"
    what = f"run {run.number}" if run.number else "tests"
    lines = [f"{run.id}: {run.provider}, {run.type}, {what}, {state}"]
    lines += [] if cost is None else [*_run_cost_lines(run, cost)]
    workers = [
        (
            *(worker.name, worker.state.value),
            worker.type + (" spot" if worker.spot else "") + (f" in {worker.zone}" if worker.zone else ""),
            f"{worker.hourly:.3f}",
            *(worker.id[:20], worker.reason.partition("\n")[0]),
        )
        for worker in run.workers
    ]
    jobs = _job_table_rows(run, cost)
    lines += ["", table(("worker", "state", "type", "hourly", "id", "reason"), workers, right=(3,))] if workers else []
    lines += (
        ["", table(("config", "state", "worker", "attempt", "expected", "reason"), jobs, right=(3,))] if jobs else []
    )
    if run.finished is None and not run.lives:
        lines += ["", f"'kiln fleet resume {run.id}' continues it, 'kiln fleet down {run.id}' terminates its workers"]
    return "\n".join(lines)


def _job_table_rows(run: FleetRun, cost: RunCost | None) -> list[tuple[str, ...]]:
    """Return a row for each job, and for each config that waits, perhaps again, when it is expected."""
    starts, ends = ({}, {}) if cost is None else (cost.config_starts, cost.config_ends)
    now = time.time()
    rows: list[tuple[str, ...]] = [
        (
            *(job.config, job.state.value, job.worker, str(job.attempt)),
            expected_period_text(None, ends.get(config_of_job(job.config)), now) if job.state in ON_WORKER else "",
            job.reason.partition("\n")[0] if job.state in {JobState.LOST, JobState.FAILED} else "",
        )
        for job in run.jobs
    ]
    running = {config_of_job(job.config) for job in run.jobs if job.state in ON_WORKER}
    waiting = sorted((starts.get(config, end), config) for config, end in ends.items() if config not in running)
    return rows + [
        (config, "waiting", "", "", expected_period_text(starts.get(config), ends[config], now), "")
        for _, config in waiting
    ]


def _run_cost_lines(run: FleetRun, cost: RunCost) -> Iterator[str]:
    """Yield the cost of a run and its expected end, and until when the controller is part of it."""
    text, is_open = f"cost {cost_text(cost)}", run.finished is None and run.lives
    if is_open:
        text += f", the end at about {time_of_day_text(cost.end, time.time())}" if cost.end else " so far"
    yield text
    if cost.controller is not None:
        charge = cost.controller
        until = (
            "the end of the run, and then for each hour that its packages wait"
            if is_open
            else "its packages are collected"
        )
        yield f"with {charge.hourly:.3f} {charge.currency} an hour for the controller, a {charge.name}, until {until}"


def status_as_json(runs: Sequence[FleetRun], costs: Mapping[str, RunCost]) -> list[dict[str, Any]]:
    """Return the status of fleet runs as plain JSON values; the cost is None where it is unknown."""
    return [{**to_json(run), "cost": run_cost_as_json(run, costs.get(run.id))} for run in runs]


def run_cost_as_json(run: FleetRun, cost: RunCost | None) -> dict[str, Any] | None:
    """Return the cost and the expected times of a run in the ledger."""
    running = {config_of_job(job.config): job.started for job in run.jobs if job.state in ON_WORKER}
    return cost_as_json(cost, start=run.started, running=running)
