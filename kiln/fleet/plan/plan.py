"""Plan a fleet run: assign configs to workers within quotas, and compute the schedule and the cost."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import FleetLimit, UsageError
from kiln.base.text import duration
from kiln.fleet.model import MachineType, Offer
from kiln.fleet.plan import choice
from kiln.fleet.plan.prices import require_price
from kiln.run.queue import BuildQueue
from kiln.run.simulation import DEFAULT, CompileAssumptions, Placement, simulate_queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kiln.fleet.plan.choice import MachineTypesOfConfigs
    from kiln.state.results import JobEstimate


ASSUMED = Path(__file__).with_name("assumed.yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions(CompileAssumptions):
    """The assumptions of a plan; assumed.yml has the meaning and the source of each row."""

    startup: float
    collect: float
    packages: float
    teardown: float
    gpu_test: float

    @classmethod
    def read(cls) -> Assumptions:
        """Read kiln's own table."""
        from kiln.base import yaml

        rows = yaml.load(ASSUMED.read_text(encoding="utf-8"))
        return cls(**{row["name"]: float(row["value"]) for row in rows})


UNITS = {"cores": "vCPUs", "memory": "GB of memory", "disk": "GB of disk", "machines": "machines"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A limit of an account and its use: ``cores``, GB of ``memory`` or ``disk``, or ``machines`` (``measure``).

    With ``spot`` it counts spot machines, with False those on demand, with None all; so with ``gpu`` those with a GPU.
    The machine that will control the run gets what is ``reserved``.
    """

    name: str
    measure: str
    limit: float
    used: float = 0.0
    spot: bool | None = None
    gpu: bool | None = None
    reserved: float = 0.0

    @classmethod
    def from_provider_answer(cls, row: Mapping[str, Any], controller: MachineType | None = None) -> Quota:
        """Return a quota from the answer of ``quota.yml``, of which a ``controller`` to be provisioned needs a part."""
        quota = cls(**row)
        machines = () if controller is None else ((controller, False),)
        return dataclasses.replace(quota, reserved=quota.units_needed_by(machines))

    @property
    def free_units(self) -> float:
        """The units that may be used besides."""
        return max(0.0, self.limit - self.used - self.reserved)

    def units_needed_by(self, machines: Iterable[tuple[MachineType, bool]]) -> float:
        """Return what machines need of it; each is a type, and whether it is spot."""
        counted = [kind for kind, spot in machines if self.spot in {None, spot} and self.gpu in {None, kind.gpus > 0}]
        return (
            float(len(counted)) if self.measure == "machines" else sum(getattr(kind, self.measure) for kind in counted)
        )


def fits_quotas(quotas: Iterable[Quota], way: WorkerArrangement) -> bool:
    """Return whether an arrangement stays within quotas."""
    machines = way.machines
    return all(quota.units_needed_by(machines) <= quota.free_units for quota in quotas)


def quota_warnings(plan: FleetPlan, offers: Iterable[Sequence[Offer]] = ()) -> Iterator[str]:
    """Yield what to request for all that a plan within quotas leaves out, or may need later.

    That is its selection without them, its tests after the builds, and ``offers`` that replace a planned machine type,
    which is the first of each: all workers of that type may be replaced.
    """
    way, wanted, tests = plan.selection, plan.without_quotas, plan.bounds.tests
    machines = way.machines
    wishes: list[tuple[str, list[tuple[MachineType, bool]]]] = []
    if wanted is not None:
        what = f"limits this plan to {way.worker_count} workers; for {wanted.worker_count}"
        wishes.append((what, wanted.machines))
    for first, *others in offers:
        planned, count = (first.machine_type, way.spot), way.worker_types.count(first.machine_type)
        for kind, spot in dict.fromkeys((offer.machine_type, offer.spot) for offer in others):
            mixed = [(kind, spot) if machine == planned else machine for machine in machines[: way.worker_count]]
            name = Offer(machine_type=kind, spot=spot)  # zones have no quotas of their own
            wishes.append((f"too small for {count} of the fall-back {name};", mixed + machines[way.worker_count :]))
    if tests is not None:
        wishes.append(("too small for the tests after the builds;", [(tests.machine_type, tests.spot)]))
    for what, needed in wishes:
        for quota in plan.bounds.quotas:
            if request := quota_request_text(quota, needed):
                yield f"quota   {what} {request}"


def quota_request_text(quota: Quota, machines: Sequence[tuple[MachineType, bool]]) -> str:
    """Return what to request of the provider so that machines fit; empty if they do."""
    need = quota.units_needed_by(machines)
    if need <= quota.free_units:
        return ""
    request = quota.used + quota.reserved + need
    return f"request {request:g} {UNITS[quota.measure]} of {quota.name}, which is {quota.limit:g}"


MOST_TRIED = 16  # numbers of workers that are compared, besides the maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerArrangement:
    """One way to build all configs: ``cache`` is the type of the worker that holds the shared cache, if any.

    ``worker_types`` are the machine types of the workers, in their order; ``machine_type`` is that of most of them.
    ``seconds`` is from the first request to the last worker's end; each worker is charged for its ``worker_seconds``.
    With ``wait_for_cold`` warm builds wait for a cold build of their group.
    """

    machine_type: MachineType
    worker_types: tuple[MachineType, ...]
    spot: bool
    cache: MachineType | None
    wait_for_cold: bool
    placements: tuple[Placement, ...]
    worker_seconds: tuple[float, ...]
    seconds: float
    cost: float

    @property
    def worker_count(self) -> int:
        """The number of workers that build."""
        return len(self.worker_seconds)

    @property
    def machine_types(self) -> tuple[MachineType, ...]:
        """The machine types that are used, that of most workers first."""
        return tuple(dict.fromkeys((self.machine_type, *self.worker_types)))

    @property
    def machines(self) -> list[tuple[MachineType, bool]]:
        """All machines at once, those that build first, and whether each is spot."""
        machines = [(kind, self.spot) for kind in self.worker_types]
        machines += [] if self.cache is None else [(self.cache, False)]
        return machines

    @property
    def is_priced(self) -> bool:
        """True when the prices of all machine types are known."""
        return all(kind.is_priced for kind, _ in self.machines)

    @property
    def cost_text(self) -> str:
        """The cost, for people."""
        return f"{self.cost:.2f} {self.machine_type.currency}" if self.is_priced else "price unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTestPlan:
    """The tests of built packages of configs, one after the other, on one worker: from its request to its end."""

    configs: tuple[str, ...]
    machine_type: MachineType
    spot: bool
    seconds: float
    cost: float

    @classmethod
    def plan_for_configs(cls, configs: Sequence[str], machine_type: MachineType, *, spot: bool) -> WorkerTestPlan:
        """Return the plan, if the tests of each config take the assumed time."""
        assumptions = Assumptions.read()
        seconds = assumptions.startup + len(configs) * assumptions.gpu_test + assumptions.teardown
        cost = worker_cost(machine_type.hourly_price(spot=spot), seconds, billed=machine_type.billed)
        return cls(configs=tuple(configs), machine_type=machine_type, spot=spot, seconds=seconds, cost=cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLimits:
    """The limits of a run: workers, money in the provider's currency, seconds; ``tests`` after it are within them.

    ``controller`` is the price of an hour of the machine that controls the run, which the money has to pay for, too.
    All machines are within ``quotas``.
    """

    workers: int
    cost: float | None = None
    seconds: float | None = None
    tests: WorkerTestPlan | None = None
    controller: float = 0.0
    quotas: tuple[Quota, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """The arrangements to choose from, and the selection, with the estimates of its configs.

    ``front`` are those than which none is both cheaper and faster, the fastest first; where prices are unknown, the
    fastest alone. ``without_cache`` is the best arrangement without the cache that was requested.
    """

    estimates: tuple[JobEstimate, ...]
    front: tuple[WorkerArrangement, ...]
    selection: WorkerArrangement
    bounds: FleetLimits
    without_cache: WorkerArrangement | None = None
    without_quotas: WorkerArrangement | None = None

    @property
    def fastest(self) -> WorkerArrangement:
        """The fastest arrangement."""
        return self.front[0]

    @property
    def cheapest(self) -> WorkerArrangement:
        """The cheapest arrangement."""
        return self.front[-1]


def schedule_builds(
    estimates: Sequence[JobEstimate],
    *,
    types: Sequence[MachineType],
    assumptions: Assumptions,
    cache: MachineType | None = None,
    wait_for_cold: bool = True,
    spot: bool = False,
    dependent: bool = False,
) -> WorkerArrangement:
    """Return the schedule of configs on workers of some machine types, if every build takes its estimated time.

    A worker is provisioned when there is a config for it, and terminated after its last. With ``dependent`` a scheduler
    has warm builds wait for the cold one.
    """
    queue = BuildQueue(estimates, cache=cache is not None, wait_for_cold=wait_for_cold, dependent=dependent)
    names = [kind.type for kind in types]
    placements = tuple(simulate_queue(queue, names, startup=assumptions.startup))
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for config in placements:
        first.setdefault(config.worker, config.start - assumptions.startup)
        last[config.worker] = config.start + config.seconds + assumptions.collect + assumptions.teardown
    used = sorted(first)
    kinds = tuple(types[worker] for worker in used)
    worker_seconds = tuple(last[worker] - first[worker] for worker in used)
    seconds = max(last.values(), default=0.0)
    cost = sum(
        worker_cost(kind.hourly_price(spot=spot), duration, billed=kind.billed)
        for kind, duration in zip(kinds, worker_seconds, strict=True)
    )
    cost += sum(types[config.worker].egress * assumptions.packages for config in placements)
    if cache is not None:
        cost += worker_cost(cache.hourly_price(spot=False), seconds, billed=cache.billed)
    numbers = {worker: number for number, worker in enumerate(used)}
    return WorkerArrangement(
        machine_type=max(kinds, key=kinds.count, default=types[0]),
        worker_types=kinds,
        spot=spot,
        cache=cache,
        wait_for_cold=wait_for_cold,
        placements=tuple(dataclasses.replace(config, worker=numbers[config.worker]) for config in placements),
        worker_seconds=worker_seconds,
        seconds=seconds,
        cost=cost,
    )


def worker_cost(hourly: float, seconds: float, *, billed: float) -> float:
    """Return the cost of a worker for some seconds, rounded up to billing increments of ``billed`` seconds."""
    steps = math.ceil(round(seconds / billed, 6))
    return hourly * steps * billed / 3600.0


def plan_fleet(
    estimates: Mapping[MachineType, Sequence[JobEstimate]],
    *,
    assumptions: Assumptions,
    bounds: FleetLimits,
    cache: MachineType | None = None,
    spot: bool = False,
    optimize: str = "both",
    dependent: bool = False,
) -> FleetPlan:
    """Return the arrangements within the bounds to choose from, and the one to use.

    That is the fastest for ``time``, the cheapest for ``cost``, and the knee of the front for ``both``.
    ``estimates`` are those of the same configs on each machine type; a run uses one type for all, or one for each
    group of configs that share a compile. ``cache`` is the type of a worker that holds a shared cache, used wherever
    more than one worker builds. With ``dependent`` a scheduler has warm builds wait for the cold one. No limit of time
    or cost refuses a plan whose times are assumed. What quotas have kept from the plan is its ``without_quotas``.
    """
    if not all(estimates.values()) or not estimates or bounds.workers < 1:
        raise UsageError("a fleet needs at least one config and one worker")
    option = "--cost-limit" if bounds.cost is not None else "--optimize cost" if optimize == "cost" else ""
    for kind in (*estimates, *([bounds.tests.machine_type] if bounds.tests else [])):
        require_price(kind, option, spot=spot)
    if cache is not None:  # which is on demand
        require_price(cache, option)
    assignments = choice.candidate_assignments(estimates, spot=spot)
    caches = [(None, True), *([(cache, True), (cache, False)] if cache else [])]
    arrange = functools.partial(schedule_builds, assumptions=assumptions, spot=spot, dependent=dependent)
    arrangements = [
        arrange(assignment.estimates, types=types, cache=kind, wait_for_cold=wait_for_cold)
        for assignment in assignments
        for kind, wait_for_cold in caches
        for workers in worker_counts_to_compare(len(assignment.estimates), bounds.workers)
        if (kind is None or workers > 1) and (types := assignment.worker_types(workers))
    ]
    if not arrangements:
        raise choice.too_few_workers_error(assignments[0], bounds.workers)
    is_assumed = any(job.source == DEFAULT for jobs in estimates.values() for job in jobs)

    def plan_of(ways: Sequence[WorkerArrangement]) -> FleetPlan | None:
        within, order = [way for way in ways if is_within_limits(way, bounds)], optimize
        if not within and is_assumed:  # nobody knows these times: the run itself stops at its limits
            within, order = list(ways), optimize if bounds.cost is None else "cost"
        if not within:
            return None
        choose = {"time": itemgetter(0), "cost": itemgetter(-1)}.get(order, knee)
        front = pareto_front([way for way in within if way.cache is not None] or within)
        selection, uncached = choose(front), [way for way in within if way.cache is None]
        return FleetPlan(
            estimates=_estimates_in_arrangement(selection, assignments),
            front=front,
            selection=selection,
            bounds=bounds,
            without_cache=choose(pareto_front(uncached)) if cache and uncached else None,
        )

    whole = plan_of(arrangements)
    if whole is None:
        cheapest = min(arrangements, key=lambda way: (not way.is_priced, round(way.cost, 6), *_time_sort_key(way)))
        fastest = min(arrangements, key=_time_sort_key)
        limits = [f"{bounds.cost:.2f} {cheapest.machine_type.currency}"] if bounds.cost is not None else []
        limits += [duration(bounds.seconds)] if bounds.seconds is not None else []
        raise FleetLimit(
            f"no arrangement builds these configs within {' and '.join(limits)}",
            why=f"the cheapest costs {cheapest.cost_text} and takes {duration(cheapest.seconds)}, the fastest"
            f" {fastest.cost_text} and {duration(fastest.seconds)}",
            hint="raise --cost-limit or --time-limit, or build fewer configs",
        )
    plan = plan_of([way for way in arrangements if fits_quotas(bounds.quotas, way)])
    if plan is None:
        requests = (quota_request_text(quota, whole.cheapest.machines) for quota in bounds.quotas)
        free = (f"{quota.free_units:g} {UNITS[quota.measure]} are free: {quota.name}" for quota in bounds.quotas)
        raise FleetLimit(
            "no arrangement builds these configs within the quotas of the account",
            why="; ".join(free),
            hint="; ".join(filter(None, requests)) or "raise --cost-limit or --time-limit, or build fewer configs",
        )
    is_kept = not fits_quotas(bounds.quotas, whole.selection)
    return dataclasses.replace(plan, without_quotas=whole.selection if is_kept else None)


def pareto_front(arrangements: Iterable[WorkerArrangement]) -> tuple[WorkerArrangement, ...]:
    """Return the arrangements than which none is both cheaper and faster, the fastest first."""
    front: list[WorkerArrangement] = []
    for way in sorted(arrangements, key=_time_sort_key):
        if not front or (way.is_priced and round(way.cost, 2) < round(front[-1].cost, 2)):
            front.append(way)
    return tuple(front)


def knee(front: Sequence[WorkerArrangement]) -> WorkerArrangement:
    """Return the arrangement of a front that lies farthest below the line between its ends, the first of several.

    Times and costs count by their logarithms, as shares of the way from one end to the other: what matters is by how
    much per cent one falls while the other rises.
    """
    if len(front) < 3:
        return front[0]
    first, last = front[0], front[-1]
    times, costs = math.log(last.seconds / first.seconds), math.log(first.cost / last.cost)

    def sum_of_shares(way: WorkerArrangement) -> float:
        return math.log(way.seconds / first.seconds) / times + math.log(way.cost / last.cost) / costs

    return min(front, key=lambda way: round(sum_of_shares(way), 9))


def _estimates_in_arrangement(
    way: WorkerArrangement, assignments: Sequence[MachineTypesOfConfigs]
) -> tuple[JobEstimate, ...]:
    """Return the estimates of the configs on the machine types that an arrangement gives them."""
    types = {config.config: way.worker_types[config.worker].type for config in way.placements}
    return next(
        assignment.estimates
        for assignment in assignments
        if all(types[estimate.config] == estimate.type for estimate in assignment.estimates)
    )


def _time_sort_key(way: WorkerArrangement) -> tuple[float, float, int]:
    return (round(way.seconds, 3), round(way.cost, 6), way.worker_count)


def worker_counts_to_compare(configs: int, max_workers: int) -> tuple[int, ...]:
    """Return the numbers of workers worth comparing: the fewest for each number of rounds, thinned out."""
    max_workers = min(max_workers, configs)
    useful = sorted(
        {math.ceil(configs / rounds) for rounds in range(1, configs + 1) if math.ceil(configs / rounds) <= max_workers}
    )
    if len(useful) > MOST_TRIED:
        useful = [useful[round(index * (len(useful) - 1) / (MOST_TRIED - 1))] for index in range(MOST_TRIED)]
    return tuple(sorted({*useful, max_workers}))


def is_within_limits(arrangement: WorkerArrangement, bounds: FleetLimits) -> bool:
    """Return whether an arrangement, with the tests and the controller, stays within the time and the cost of a run."""
    seconds, cost = (0.0, 0.0) if bounds.tests is None else (bounds.tests.seconds, bounds.tests.cost)
    cost += bounds.controller * arrangement.seconds / 3600
    in_time = bounds.seconds is None or arrangement.seconds + seconds <= bounds.seconds
    return in_time and (bounds.cost is None or arrangement.cost + cost <= bounds.cost)
