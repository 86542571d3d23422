"""Plan a fleet run: assign configs to workers, and compute the schedule and the cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.errors import FleetLimit, UsageError
from kiln.scheduling.queue import Queue
from kiln.scheduling.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kiln.model.fleet import JobEstimate, MachineType
    from kiln.scheduling.simulation import Placement

MOST_TRIED = 16  # numbers of workers that are compared, besides the maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Seconds besides building: to provision and prepare a worker, to collect a config, to terminate a worker.

    ``packages`` is the size of a config's packages in GB.
    """

    startup: float
    collect: float
    teardown: float
    packages: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """One way to build all configs: ``cache`` is the type of the worker that holds the shared cache, if any.

    ``seconds`` is from the first request to the last worker's end; each worker is charged for its ``worker_seconds``.
    With ``wait_for_cold`` warm builds wait for a cold build of their group.
    """

    machine_type: MachineType
    spot: bool
    cache: MachineType | None
    wait_for_cold: bool
    placements: tuple[Placement, ...]
    worker_seconds: tuple[float, ...]
    seconds: float
    cost: float

    @property
    def workers(self) -> int:
        """The number of workers that build."""
        return len(self.worker_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetBounds:
    """The limits of a run: workers, money in the provider's currency, seconds."""

    workers: int
    cost: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """The arrangements to choose from, and the selection, with the estimates of its configs.

    ``without_cache`` is the best arrangement without the cache that was requested.
    """

    estimates: tuple[JobEstimate, ...]
    cheapest: Arrangement
    fastest: Arrangement
    selection: Arrangement
    bounds: FleetBounds
    without_cache: Arrangement | None = None


def arrange(
    estimates: Sequence[JobEstimate],
    *,
    workers: int,
    machine_type: MachineType,
    overheads: Overheads,
    cache: MachineType | None = None,
    wait_for_cold: bool = True,
    spot: bool = False,
) -> Arrangement:
    """Return the schedule of configs on a number of workers, if every build takes its estimated time.

    A worker is provisioned when there is a config for it, and terminated after its last.
    """
    queue = Queue(estimates, cache=cache is not None, wait_for_cold=wait_for_cold)
    placements = tuple(simulate(queue, workers, startup=overheads.startup))
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for config in placements:
        first.setdefault(config.worker, config.start - overheads.startup)
        last[config.worker] = config.start + config.seconds + overheads.collect + overheads.teardown
    worker_seconds = tuple(last[worker] - first[worker] for worker in sorted(first))
    seconds = max(last.values(), default=0.0)
    hourly = machine_type.price(spot=spot)
    cost = sum(price(hourly, duration, billed=machine_type.billed) for duration in worker_seconds)
    cost += machine_type.egress * overheads.packages * len(placements)
    if cache is not None:
        cost += price(cache.price(spot=False), seconds, billed=cache.billed)
    return Arrangement(
        machine_type=machine_type,
        spot=spot,
        cache=cache,
        wait_for_cold=wait_for_cold,
        placements=placements,
        worker_seconds=worker_seconds,
        seconds=seconds,
        cost=cost,
    )


def price(hourly: float, seconds: float, *, billed: float) -> float:
    """Return the cost of a worker for some seconds, rounded up to billing increments of ``billed`` seconds."""
    steps = math.ceil(round(seconds / billed, 6))
    return hourly * steps * billed / 3600.0


def plan(
    estimates: Mapping[MachineType, Sequence[JobEstimate]],
    *,
    overheads: Overheads,
    bounds: FleetBounds,
    cache: MachineType | None = None,
    spot: bool = False,
    optimize: str = "cost",
) -> FleetPlan:
    """Return the cheapest and the fastest arrangement within the bounds, and the one to use (``time`` or ``cost``).

    ``estimates`` are those of the same configs on each machine type; ``cache`` is the type of a worker that holds a
    shared cache, used wherever more than one worker builds.

    Raises:
        FleetLimit: when no arrangement is within the bounds.
        UsageError: no config is selected, or no worker; a spot price is unknown; or no machine type is large enough.
    """
    unpriced = [machine_type for machine_type in estimates if spot and machine_type.spot_hourly is None]
    if unpriced:
        raise _spot_error(unpriced[0])
    if not all(estimates.values()) or not estimates or bounds.workers < 1:
        raise UsageError("a fleet needs at least one config and one worker")
    estimates = _fitting(estimates)
    arrangements = [
        arrangement
        for machine_type, configs in estimates.items()
        for arrangement in _arrangements(
            configs, machine_type, overheads=overheads, max_workers=bounds.workers, cache=cache, spot=spot
        )
    ]
    within = [arrangement for arrangement in arrangements if _within(arrangement, bounds)]
    if not within:
        raise _limit_error(arrangements, bounds)
    candidates = [arrangement for arrangement in within if arrangement.cache is not None] or within
    uncached = [arrangement for arrangement in within if arrangement.cache is None]
    cheapest, fastest = min(candidates, key=_cost), min(candidates, key=_time)
    selection = fastest if optimize == "time" else cheapest
    return FleetPlan(
        estimates=tuple(estimates[selection.machine_type]),
        cheapest=cheapest,
        fastest=fastest,
        selection=selection,
        bounds=bounds,
        without_cache=min(uncached, key=_time if optimize == "time" else _cost) if cache and uncached else None,
    )


def _fitting(
    estimates: Mapping[MachineType, Sequence[JobEstimate]],
) -> dict[MachineType, Sequence[JobEstimate]]:
    """Return the machine types that are large enough for every config, with their estimates."""
    fitting = {kind: jobs for kind, jobs in estimates.items() if all(job.size.fits(kind) for job in jobs)}
    if fitting:
        return fitting
    kind, jobs = next(iter(estimates.items()))
    largest = next(job for job in jobs if not job.size.fits(kind))
    offers = "; ".join(f"{other.type} has {_size_text(other)}" for other in estimates)
    raise UsageError(
        f"no machine type is large enough for {largest.config}",
        why=f"it needs {largest.size}, and {offers}",
        hint="choose a larger --type, or change fleet-sizes.yml",
    )


def _size_text(kind: MachineType) -> str:
    return f"{kind.cores} cores, {kind.memory:g} GB of memory, {kind.disk:g} GB of disk, {kind.gpus} GPUs"


def _spot_error(machine_type: MachineType) -> UsageError:
    name, region = machine_type.name, machine_type.region
    history = f"aws ec2 describe-spot-price-history --region {region} --instance-types {name} --output json"
    return UsageError(
        f"no spot price of {name} in {region or machine_type.provider} is known, so --spot cannot be planned",
        why="spot prices change by the hour, so kiln has none of its own",
        hint=f"{history} > spot.json && kiln fleet prices --from spot.json"
        if machine_type.provider == "aws"
        else "leave out --spot: this provider has no spot workers",
    )


def _cost(way: Arrangement) -> tuple[float, float, int]:
    return (round(way.cost, 6), way.seconds, way.workers)


def _time(way: Arrangement) -> tuple[float, float, int]:
    return (round(way.seconds, 3), round(way.cost, 6), way.workers)


def _arrangements(
    estimates: Sequence[JobEstimate],
    machine_type: MachineType,
    *,
    overheads: Overheads,
    max_workers: int,
    cache: MachineType | None,
    spot: bool,
) -> Iterator[Arrangement]:
    kinds = [(None, True)] if cache is None else [(None, True), (cache, True), (cache, False)]
    for kind, wait_for_cold in kinds:
        for workers in numbers(len(estimates), max_workers):
            if kind is None or workers > 1:
                yield arrange(
                    estimates,
                    workers=workers,
                    machine_type=machine_type,
                    overheads=overheads,
                    cache=kind,
                    wait_for_cold=wait_for_cold,
                    spot=spot,
                )


def numbers(configs: int, max_workers: int) -> tuple[int, ...]:
    """Return the numbers of workers worth comparing: the fewest for each number of rounds, thinned out."""
    max_workers = min(max_workers, configs)
    useful = sorted(
        {math.ceil(configs / rounds) for rounds in range(1, configs + 1) if math.ceil(configs / rounds) <= max_workers}
    )
    if len(useful) > MOST_TRIED:
        useful = [useful[round(index * (len(useful) - 1) / (MOST_TRIED - 1))] for index in range(MOST_TRIED)]
    return tuple(sorted({*useful, max_workers}))


def _within(arrangement: Arrangement, bounds: FleetBounds) -> bool:
    in_time = bounds.seconds is None or arrangement.seconds <= bounds.seconds
    return in_time and (bounds.cost is None or arrangement.cost <= bounds.cost)


def _limit_error(arrangements: Sequence[Arrangement], bounds: FleetBounds) -> FleetLimit:
    cheapest, fastest = min(arrangements, key=_cost), min(arrangements, key=_time)
    limits = [f"{bounds.cost:.2f} {cheapest.machine_type.currency}"] if bounds.cost is not None else []
    limits += [f"{bounds.seconds / 3600:.1f} h"] if bounds.seconds is not None else []
    return FleetLimit(
        f"no arrangement builds these configs within {' and '.join(limits)}",
        why=f"the cheapest costs {cheapest.cost:.2f} {cheapest.machine_type.currency} and takes"
        f" {cheapest.seconds / 3600:.1f} h,"
        f" the fastest {fastest.cost:.2f} {fastest.machine_type.currency} and {fastest.seconds / 3600:.1f} h",
        hint="raise --budget or --time-limit, or build fewer configs",
    )
