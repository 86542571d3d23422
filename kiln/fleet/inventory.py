"""The workers and jobs of a fleet run as its supervisor knows them, and what they cost."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from kiln.fleet.model import GONE, FleetRun, JobRecord, JobState, MachineType, Offer, WorkerRecord, WorkerState
from kiln.fleet.plan.plan import WorkerArrangement, WorkerTestPlan, worker_cost
from kiln.fleet.protocol import ProvisionWorkers, TerminateWorker
from kiln.fleet.run_config import CACHE, SURPLUS, FleetRunConfig
from kiln.run.simulation import simulate_queue
from kiln.state.results import ControllerCharge, RunCost

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from kiln.fleet.records import RunRecorder
    from kiln.run.queue import BuildQueue
    from kiln.state.results import JobEstimate


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


def forecast_run_cost(
    run_config: FleetRunConfig, inventory: Inventory, queue: BuildQueue, *, max_workers: int, now: float
) -> RunCost:
    """Return the cost of a run so far and in the end, if builds take their estimated times and no worker is lost.

    Free workers take their next configs by the rule of the run itself, and are terminated after their last.
    """
    kinds = {kind.type: kind for kind in run_config.max_workers_by_type}
    starts: dict[str, float] = {}  # of configs whose worker is not ready yet, or whose job waits for another
    for worker in inventory.alive_builders:
        if worker.assignment is not None:
            start = queue.expected_start(worker.name)
            if start > now or not worker.is_building:
                starts[worker.assignment.config] = max(now, start)
    builders = inventory.alive_builders
    busy = [(worker.name, worker.assignment.config) for worker in builders if worker.assignment is not None]
    building = [(max(now, queue.expected_end(name)), name) for name, _ in busy]
    ends = {config: end for (_, config), (end, _) in zip(busy, building, strict=True)}
    last = {name: end for end, name in building}  # when each worker would build its last
    idle = [worker.name for worker in builders if worker.assignment is None and not worker.is_retired]
    startup = run_config.assumptions.startup
    types: list[str] = []  # of workers that would be requested
    for kind, count in run_config.max_workers_by_type.items():
        existing = sum(queue.worker_machine_type(worker.name) == kind.type for worker in builders)
        most = min(max_workers - len(builders) - len(types), count - existing) if queue else 0
        types += [kind.type] * most
    names = [*idle, *last, *map(str, range(len(types)))]
    requested: dict[str, tuple[MachineType, float]] = {}
    queue = queue.copy() if queue else queue  # an empty one is not changed
    for place in simulate_queue(queue, types, startup=startup, now=now, idle=idle, building=building):
        name = names[place.worker]
        starts[place.config] = place.start
        ends[place.config] = last[name] = place.start + place.seconds
        if place.worker >= len(idle) + len(building):
            requested.setdefault(name, (kinds[types[int(name)]], place.start - startup))
    after = run_config.assumptions.collect + run_config.assumptions.teardown
    end = max([now, *(moment + after for moment in last.values())])
    further = 0.0
    for worker in inventory.present_workers:  # the cost of others does not change any more
        stop = end if worker.is_cache_worker else last.get(worker.name, now) + after
        further += _worker_cost_until(worker.record, stop) - _worker_cost_until(worker.record, now)
    for name, (kind, begin) in requested.items():
        hourly = kind.hourly_price(spot=run_config.options.spot)
        further += worker_cost(hourly, last[name] + after - begin, billed=kind.billed)
    tests_cost, tests_seconds = (0.0, 0.0) if (tests := run_config.tests) is None else (tests.cost, tests.seconds)
    end += tests_seconds
    controller = run_config.options.own_charge
    further += controller_cost(controller, end) - controller_cost(controller, now) + tests_cost
    built = [kinds.get(job.type, run_config.machine_type) for job in run_config.estimates if job.config in ends]
    further += sum(kind.egress for kind in built) * run_config.assumptions.packages
    so_far = inventory.total_cost_until(now)
    return RunCost(
        spent=so_far,
        expected=so_far + max(0.0, further),
        currency=run_config.currency,
        end=end,
        config_ends={config: moment + run_config.assumptions.collect for config, moment in ends.items()},
        controller=controller,
        config_starts=starts,
    )


OVER = frozenset({JobState.COLLECTED, JobState.FAILED, JobState.LOST})


@dataclass(slots=True, kw_only=True)
class Worker:
    """A worker and its assignment.

    ``assignment`` is the config that it builds (``is_building``) or will build. ``uncollected`` are the configs whose
    packages it still holds, each with the number of failed collections; ``retries`` are the times of the next attempts
    to collect them, with the key '' for the next attempt to terminate the worker. ``silent_since`` is set while it does
    not answer. ``renewed_at`` and ``renewal_tried_at`` are the times of its last lease renewal and of the last attempt.
    ``next_check`` is the time until which nothing is due for it while it builds.
    ``unreached_requests`` counts the requests for it that did not reach the provider, ``failed_preparations`` the
    preparations that failed. ``is_prepared`` marks a worker that an earlier process of the run prepared, ``is_retired``
    one that gets no more configs, ``is_reclaimed`` one that its provider takes back, ``reclaimed_at`` this time.
    ``handover`` is the config of which what it has built is being saved. ``is_witness`` marks a worker that was
    requested to see whether a silent one, which ``has_witness``, is the only one that does not answer.
    ``exists_since`` is the time since when its provider is known to have it, infinite while it is requested.
    """

    record: WorkerRecord
    assignment: JobEstimate | None = None
    is_building: bool = False
    uncollected: dict[str, int] = field(default_factory=dict)
    retries: dict[str, float] = field(default_factory=dict)
    silent_since: float | None = None
    renewed_at: float = 0.0
    renewal_tried_at: float = 0.0
    next_check: float = 0.0
    unreached_requests: int = 0
    failed_preparations: int = 0
    is_prepared: bool = False
    is_retired: bool = False
    is_reclaimed: bool = False
    reclaimed_at: float = 0.0
    handover: str = ""
    is_witness: bool = False
    has_witness: bool = False
    exists_since: float = math.inf

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.record.name

    @property
    def is_alive(self) -> bool:
        """True while the worker exists or is being provisioned, and is not given up."""
        state = self.record.state  # compared by identity, as this is asked for every worker after every event
        return state is WorkerState.READY or state is WorkerState.PREPARING or state is WorkerState.REQUESTED

    @property
    def is_surplus_machine(self) -> bool:
        """True for a machine that is no worker's, and is terminated by its id: its tag may be another worker's name."""
        return SURPLUS.fullmatch(self.name) is not None

    @property
    def termination_command(self) -> TerminateWorker:
        """The command that terminates it."""
        return TerminateWorker(worker=self.name, id=self.record.id if self.is_surplus_machine else "")

    @property
    def is_cache_worker(self) -> bool:
        """True for the worker that holds the shared cache."""
        return self.name.endswith(CACHE)


class Inventory:
    """All workers and jobs of a run."""

    def __init__(self, run_config: FleetRunConfig, recorder: RunRecorder) -> None:
        self._run_config = run_config
        self._recorder = recorder
        self.workers: dict[str, Worker] = {}
        self._present: dict[str, Worker] = {}
        self._terminated: tuple[WorkerRecord, ...] = ()  # by an earlier process of the run
        self._jobs: dict[tuple[str, int], JobRecord] = {}
        self._attempts: dict[str, int] = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(tuple(self.workers.values()))

    @cached_property
    def present_workers(self) -> tuple[Worker, ...]:
        """The workers that exist or may exist: neither terminated nor refused."""
        return tuple(self._present.values())

    @cached_property
    def alive_workers(self) -> tuple[Worker, ...]:
        """The workers that exist or are being provisioned, and are not given up."""
        return tuple(worker for worker in self.present_workers if worker.is_alive)

    @cached_property
    def alive_builders(self) -> tuple[Worker, ...]:
        """The workers that are alive and build."""
        return tuple(worker for worker in self.alive_workers if not worker.is_cache_worker)

    def _forget_cached_worker_lists(self) -> None:
        """Have the lists, which are read after every event, made anew when they are read next."""
        for name in ("present_workers", "alive_workers", "alive_builders"):
            self.__dict__.pop(name, None)

    def total_cost_until(self, now: float) -> float:
        """Return the cost of all workers, of what was fetched from them, and of the controller, until ``now``."""
        records = [*self._terminated, *(worker.record for worker in self)]
        own = controller_cost(self._run_config.options.own_charge, now)
        return workers_cost(records, self._jobs.values(), now) + own

    # Workers

    def add_requested_worker(self, name: str, offer: Offer, *, now: float) -> Worker:
        """Add and store a worker that is about to be requested."""
        return self.add_worker_record(self.new_worker_record(name, offer, now=now))

    @staticmethod
    def new_worker_record(name: str, offer: Offer, *, now: float) -> WorkerRecord:
        """Return the record of a worker that is requested."""
        kind = offer.machine_type
        return WorkerRecord(
            name=name,
            type=kind.type,
            state=WorkerState.REQUESTED,
            requested=now,
            spot=offer.spot,
            zone=offer.zone,
            hourly=offer.hourly_price,
            egress=kind.egress,
            billed=kind.billed,
            currency=kind.currency,
        )

    def add_worker_record(self, record: WorkerRecord) -> Worker:
        """Add and store a worker that exists or may exist, in the place of an earlier one of its name."""
        worker = Worker(record=record, renewed_at=record.requested)
        self.workers[record.name] = self._present[record.name] = worker
        self.update_worker(worker)
        return worker

    def next_free_worker_number(self, number: int) -> int:
        """Return the first number from this one on that is in no worker's name."""
        names = self.used_worker_names
        return next(each for each in itertools.count(number) if self._run_config.worker_name(each) not in names)

    def new_surplus_machine_name(self) -> str:
        """Return a name for a machine that is no worker's."""
        names = self.used_worker_names
        candidates = (f"kiln-{self._run_config.id}-surplus-{number}" for number in itertools.count(1))
        return next(name for name in candidates if name not in names)

    @property
    def used_worker_names(self) -> set[str]:
        """The names of all workers of this and of earlier processes of the run."""
        previous = () if self._run_config.previous_run is None else self._run_config.previous_run.workers
        return self.workers.keys() | {record.name for record in previous}

    def provision_command(self, names: Iterable[str]) -> ProvisionWorkers:
        """Return the command that creates workers as they were requested, or finds them again."""
        workers = tuple(names)
        for name in workers:
            self.workers[name].exists_since = math.inf
        chosen = [self.workers[name] for name in workers]
        return ProvisionWorkers(
            workers=workers,
            offers={worker.name: worker.record.offer_key for worker in chosen},
            configs={worker.name: worker.assignment.config for worker in chosen if worker.assignment is not None},
        )

    def take_over_previous_run(self, previous: FleetRun, now: float) -> None:
        """Take over the workers and jobs of an earlier process of the run."""
        self._terminated = tuple(worker for worker in previous.workers if worker.state is WorkerState.TERMINATED)
        for record in previous.workers:
            if record.state not in GONE:
                is_prepared = record.state is WorkerState.READY
                worker = Worker(record=record, is_prepared=is_prepared, renewed_at=now)
                self.workers[record.name] = self._present[record.name] = worker
        self._forget_cached_worker_lists()
        for job in previous.jobs:
            self._register_job(job)

    def update_worker(self, worker: Worker, **changes: object) -> None:
        """Change and store the record of a worker."""
        worker.record = dataclasses.replace(worker.record, **changes)  # type: ignore[arg-type] # fields by name
        self._recorder.store_worker(self._run_config.id, worker.record)
        if worker.record.state in GONE:
            self._present.pop(worker.name, None)
        self._forget_cached_worker_lists()

    # Jobs

    def jobs_of(self, configs: Container[str]) -> list[JobRecord]:
        """Return all jobs of some configs."""
        return [job for job in self._jobs.values() if job.config in configs]

    def attempt_count(self, config: str) -> int:
        """Return the number of builds of a config that were begun."""
        return self._attempts.get(config, 0)

    def latest_job(self, config: str) -> JobRecord | None:
        """Return the latest job of a config."""
        return self._jobs.get((config, self.attempt_count(config)))

    def latest_jobs(self) -> list[JobRecord]:
        """Return the latest job of each config."""
        return [self._jobs[key] for key in self._attempts.items()]

    def add_job(self, config: str, *, worker: str, now: float, cold: bool) -> JobRecord:
        """Add and store a job that is about to be started on a worker."""
        attempt = self.attempt_count(config) + 1
        state = JobState.REQUESTED
        self._register_job(
            JobRecord(config=config, worker=worker, attempt=attempt, state=state, started=now, cold=cold)
        )
        return self.update_job(config)

    def update_job(self, config: str, **changes: object) -> JobRecord:
        """Change and store the latest job of a config."""
        job = self.latest_job(config)
        assert job is not None, f"{config} was never begun"
        job = dataclasses.replace(job, **changes)  # type: ignore[arg-type] # fields by name
        self._jobs[config, job.attempt] = job
        self._recorder.store_job(self._run_config.id, job)
        return job

    def _register_job(self, job: JobRecord) -> None:
        self._jobs[job.config, job.attempt] = job
        self._attempts[job.config] = max(self.attempt_count(job.config), job.attempt)
