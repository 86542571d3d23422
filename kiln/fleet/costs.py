"""The cost of a fleet run: so far from its records, and in the end if its builds take their estimated times."""

from __future__ import annotations

import dataclasses
import heapq
from typing import TYPE_CHECKING

from kiln.fleet.plan import WorkerArrangement, WorkerTestPlan, worker_cost
from kiln.model.fleet_run import FleetRun, JobRecord, MachineType, WorkerRecord, WorkerState
from kiln.model.run import ControllerCharge, MatrixReport, RunCost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.fleet.fleet_run_settings import FleetRunConfig
    from kiln.fleet.worker_and_job_inventory import Inventory
    from kiln.scheduling.queue import BuildQueue

GB = 1e9


def workers_cost(workers: Iterable[WorkerRecord], jobs: Iterable[JobRecord], now: float) -> float:
    """Return the cost of workers until ``now``, each from its request on, and of what was collected from them."""
    records = {worker.name: worker for worker in workers if worker.state is not WorkerState.REFUSED}
    cost = sum(_worker_cost_until(worker, now) for worker in records.values())
    return cost + sum(job.traffic / GB * records[job.worker].egress for job in jobs if job.worker in records)


def _worker_cost_until(worker: WorkerRecord, now: float) -> float:
    end = now if worker.terminated is None else worker.terminated
    return worker_cost(worker.hourly, max(0.0, end - worker.requested), billed=worker.billed)


def controller_cost(charge: ControllerCharge | None, now: float) -> float:
    """Return the cost of the machine that controls a run until ``now``."""
    return 0.0 if charge is None else worker_cost(charge.hourly, max(0.0, now - charge.since), billed=charge.billed)


def recorded_run_cost(
    run: FleetRun, forecast: RunCost | None, now: float, *, is_controlled: bool = False
) -> RunCost | None:
    """Return the cost of a run in the ledger, with the last forecast while its process runs.

    A controller is charged for until the end of the run, and one that exists still (``is_controlled``) until ``now``.
    Without a forecast, as for tests on a worker, it is that of the workers so far; None where there is no worker.
    """
    if not run.workers:
        return None
    end = now if run.finished is None else run.finished
    cost = workers_cost(run.workers, run.jobs, end)
    if forecast is None:
        currencies = {worker.currency for worker in run.workers}
        currency = currencies.pop() if len(currencies) == 1 else ""
        return RunCost(spent=cost, expected=cost, currency=currency, end=run.finished or 0.0)
    cost += controller_cost(forecast.controller, now if is_controlled else end)
    if run.finished is None and run.lives:
        return dataclasses.replace(forecast, spent=cost)
    return dataclasses.replace(forecast, spent=cost, expected=cost, config_ends={}, config_starts={})


def recorded_run_costs(
    runs: Iterable[FleetRun], reports: Mapping[str, MatrixReport | None], now: float
) -> dict[str, RunCost]:
    """Return the costs of runs, by their ids; ``reports`` have the last forecasts."""
    forecasts = {name: report.cost for name, report in reports.items() if report is not None}
    known = {run.id: recorded_run_cost(run, forecasts.get(run.id), now) for run in runs}
    return {name: cost for name, cost in known.items() if cost is not None}


def planned_cost(
    way: WorkerArrangement,
    controller: MachineType | None,
    now: float,
    *,
    collect: float,
    tests: WorkerTestPlan | None = None,
) -> RunCost:
    """Return the cost of an arrangement that begins now, with the machine that would control it until its end.

    A config ends when it is collected, which takes so many seconds; the ``tests`` follow the last.
    """
    charge, end = None, now + way.seconds + (0.0 if tests is None else tests.seconds)
    is_priced = way.is_priced and (tests is None or tests.machine_type.is_priced)
    if controller is not None and controller.is_priced:
        charge = ControllerCharge(
            hourly=controller.hourly_price(spot=False),
            billed=controller.billed,
            since=now,
            currency=controller.currency,
            name=controller.name,
        )
    return RunCost(
        spent=0.0,
        expected=way.cost + controller_cost(charge, end) + (0.0 if tests is None else tests.cost),
        currency=way.machine_type.currency if is_priced else "",
        end=end,
        config_starts={place.config: now + place.start for place in way.placements},
        config_ends={place.config: now + place.start + place.seconds + collect for place in way.placements},
        controller=charge,
    )


def ended_run_cost(run_config: FleetRunConfig, inventory: Inventory, now: float) -> RunCost:
    """Return the cost of a run that has ended."""
    cost = inventory.total_cost_until(now)
    return RunCost(spent=cost, expected=cost, currency=run_config.currency, end=now, controller=run_config.controller)


def forecast_run_cost(
    run_config: FleetRunConfig, inventory: Inventory, queue: BuildQueue, *, max_workers: int, now: float
) -> RunCost:
    """Return the cost of a run so far and in the end, if builds take their estimated times and no worker is lost.

    Free workers take their next configs by the rule of the run itself, and are terminated after their last.
    """
    kinds = {kind.type: kind for kind in run_config.max_workers_by_type}
    starts = _expected_starts_of_assigned_configs(inventory, queue, now)
    ends, first, last = _simulate_remaining_builds(run_config, inventory, queue, max_workers, now, starts)
    after = run_config.collect + run_config.teardown
    end = max([now, *(moment + after for moment in last.values())])
    further = 0.0
    for worker in inventory.present_workers:  # the cost of others does not change any more
        stop = last.get(worker.name, now) + after if worker.builds_configs else end
        further += _worker_cost_until(worker.record, stop) - _worker_cost_until(worker.record, now)
    for name, (kind, requested) in first.items():
        hourly = kind.hourly_price(spot=run_config.spot)
        further += worker_cost(hourly, last[name] + after - requested, billed=kind.billed)
    tests_cost, tests_seconds = (0.0, 0.0) if (tests := run_config.tests) is None else (tests.cost, tests.seconds)
    end += tests_seconds
    further += controller_cost(run_config.controller, end) - controller_cost(run_config.controller, now) + tests_cost
    built = [kinds.get(job.type, run_config.machine_type) for job in run_config.estimates if job.config in ends]
    further += sum(kind.egress for kind in built) * run_config.packages
    so_far = inventory.total_cost_until(now)
    return RunCost(
        spent=so_far,
        expected=so_far + max(0.0, further),
        currency=run_config.currency,
        end=end,
        config_ends={config: moment + run_config.collect for config, moment in ends.items()},
        controller=run_config.controller,
        config_starts=starts,
    )


def _simulate_remaining_builds(
    run_config: FleetRunConfig,
    inventory: Inventory,
    queue: BuildQueue,
    max_workers: int,
    now: float,
    starts: dict[str, float],
) -> tuple[Mapping[str, float], Mapping[str, tuple[MachineType, float]], Mapping[str, float]]:
    """Return when each unfinished config would be built, and when each worker would build its last.

    For each further worker, return its machine type and the time of its request. ``starts`` gets when each waiting
    config would start.
    """
    building = _running_build_ends(inventory, queue, now)
    queue = queue.copy() if queue else queue  # an empty one is not changed
    ends: dict[str, float] = {}
    first: dict[str, tuple[MachineType, float]] = {}
    last: dict[str, float] = {}

    def begin_next_build(worker: str, moment: float) -> bool:
        job = queue.begin_next_build(worker, moment)
        if job is not None:
            starts[job.config] = queue.expected_start(worker)
            heapq.heappush(building, (queue.expected_end(worker), worker, job.config))
        return job is not None

    moment = now
    idle = [worker.name for worker in inventory.alive_builders if worker.assignment is None and not worker.is_retired]
    further = _names_of_requestable_workers(run_config, inventory, queue, max_workers)
    while queue:
        idle = [worker for worker in idle if not begin_next_build(worker, moment)]
        for kind, names in further.items():
            while names and begin_next_build(names[-1], moment + run_config.startup):
                first[names.pop()] = (kind, moment)
        if not building:  # what still waits is held back
            return ends, first, last
        moment, name, config = heapq.heappop(building)
        ends[config] = last[name] = moment
        queue.end_build(name)
        idle.append(name)
    while building:  # the last builds, after which nothing begins
        moment, name, config = heapq.heappop(building)
        ends[config] = last[name] = moment
    return ends, first, last


def _names_of_requestable_workers(
    run_config: FleetRunConfig, inventory: Inventory, queue: BuildQueue, max_workers: int
) -> dict[MachineType, list[str]]:
    names: dict[MachineType, list[str]] = {}
    more = max_workers - len(inventory.alive_builders) if queue else 0
    existing = [queue.worker_machine_type(worker.name) for worker in inventory.alive_builders]
    for kind, count in run_config.max_workers_by_type.items():
        numbers = range(min(more, count - existing.count(kind.type)))
        names[kind] = [f"{run_config.id} more {kind.type} {number}" for number in numbers]
        more -= len(names[kind])
        for name in names[kind]:
            queue.set_worker_machine_type(name, kind.type)
    return names


def _expected_starts_of_assigned_configs(inventory: Inventory, queue: BuildQueue, now: float) -> dict[str, float]:
    """Return the expected starts of configs whose worker is not ready yet, or whose job waits for another."""
    starts = {}
    for worker in inventory.alive_builders:
        if worker.assignment is not None:
            start = queue.expected_start(worker.name)
            if start > now or not worker.is_building:
                starts[worker.assignment.config] = max(now, start)
    return starts


def _running_build_ends(inventory: Inventory, queue: BuildQueue, now: float) -> list[tuple[float, str, str]]:
    """Return a heap of the expected ends of the builds that run, with their workers and configs."""
    building = [
        (max(now, queue.expected_end(worker.name)), worker.name, worker.assignment.config)
        for worker in inventory.alive_builders
        if worker.assignment is not None
    ]
    heapq.heapify(building)
    return building
