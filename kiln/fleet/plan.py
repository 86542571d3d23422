"""What a fleet would do: which cell on which machine, when, and at what price; decided before anything is paid for."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.errors import FleetLimit, UsageError
from kiln.fleet.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kiln.model.fleet import Flavour, Work

MOST_TRIED = 16  # numbers of machines that are compared, besides the most that there may be


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A cell on a machine (counted from 0): ``start`` and ``seconds`` count from the beginning of the run."""

    config: str
    group: str
    machine: int
    start: float
    seconds: float
    leader: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Seconds that a machine takes besides building: to come up and be prepared, to send a cell home, to go."""

    up: float
    home: float
    down: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """One way to build all cells: ``cache`` is the flavour of the machine that holds the others' cache, if any.

    ``seconds`` is from the first request to the last machine's end, ``paid`` what each machine is paid for.
    """

    flavour: Flavour
    spot: bool
    cache: Flavour | None
    patient: bool
    placed: tuple[Placed, ...]
    paid: tuple[float, ...]
    seconds: float
    cost: float

    @property
    def machines(self) -> int:
        """How many machines build."""
        return len(self.paid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a run may take: machines, money in the provider's currency, seconds."""

    machines: int
    cost: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """The arrangements to choose between, and the one that was chosen, with its cells' times.

    ``without`` is what would have been chosen without the cache that was asked for.
    """

    works: tuple[Work, ...]
    cheapest: Arrangement
    fastest: Arrangement
    chosen: Arrangement
    bounds: Bounds
    without: Arrangement | None = None
    notes: tuple[str, ...] = ()


def arrange(
    works: Sequence[Work],
    *,
    machines: int,
    flavour: Flavour,
    overheads: Overheads,
    cache: Flavour | None = None,
    patient: bool = True,
    spot: bool = False,
) -> Arrangement:
    """Return what becomes of cells on so many machines, if all take as long as they should.

    A machine is brought up when there is a cell for it, and given back after its last.
    """
    placed = tuple(_placed(Queue(works, cache=cache is not None, patient=patient), machines, overheads))
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for cell in placed:
        first.setdefault(cell.machine, cell.start - overheads.up)
        last[cell.machine] = cell.start + cell.seconds + overheads.home + overheads.down
    paid = tuple(last[machine] - first[machine] for machine in sorted(first))
    seconds = max(last.values(), default=0.0)
    hourly = flavour.spot_hourly if spot and flavour.spot_hourly is not None else flavour.hourly
    cost = sum(price(hourly, each, billed=flavour.billed) for each in paid)
    if cache is not None:
        cost += price(cache.hourly, seconds, billed=cache.billed)
    return Arrangement(
        flavour=flavour,
        spot=spot,
        cache=cache,
        patient=patient,
        placed=placed,
        paid=paid,
        seconds=seconds,
        cost=cost,
    )


def _placed(queue: Queue, machines: int, overheads: Overheads) -> Iterator[Placed]:
    """Run the queue forward in time."""
    up = 0
    idle: list[int] = []
    building: list[tuple[float, int]] = []
    now = 0.0
    while queue:
        waiting = []
        for machine in sorted(idle):
            cell = _begun(queue, machine, now)
            if cell is None:
                waiting.append(machine)
            else:
                yield cell
                heapq.heappush(building, (cell.start + cell.seconds, machine))
        idle = waiting
        while up < machines and (cell := _begun(queue, up, now + overheads.up)):
            yield cell
            heapq.heappush(building, (cell.start + cell.seconds, up))
            up += 1
        now, machine = heapq.heappop(building)
        queue.end(str(machine))
        idle.append(machine)


def _begun(queue: Queue, machine: int, now: float) -> Placed | None:
    work = queue.next(str(machine), now)
    if work is None:
        return None
    leader, seconds = queue.compiles(str(machine), work), queue.seconds(str(machine), work)
    queue.begin(str(machine), work, now)
    return Placed(config=work.config, group=work.group, machine=machine, start=now, seconds=seconds, leader=leader)


def price(hourly: float, seconds: float, *, billed: float) -> float:
    """Return what a machine costs for some seconds, charged in steps of ``billed`` seconds that are begun."""
    steps = math.ceil(round(seconds / billed, 6))
    return hourly * steps * billed / 3600.0


def plan(
    works: Mapping[Flavour, Sequence[Work]],
    *,
    overheads: Overheads,
    bounds: Bounds,
    cache: Flavour | None = None,
    spot: bool = False,
    aim: str = "cheapest",
    notes: Iterable[str] = (),
) -> FleetPlan:
    """Return the cheapest and the fastest way to build cells within bounds, and the one that fits the aim.

    ``works`` are the same cells for each kind of machine, with the seconds that they take there; ``cache`` is a machine
    that all others use, taken wherever more than one of them builds.

    Raises:
        FleetLimit: when none stays within the bounds.
        UsageError: when nothing is to be built, or on no machine.
    """
    if not all(works.values()) or not works or bounds.machines < 1:
        raise UsageError("a fleet needs at least one cell to build and one machine to build on")
    every = [
        each
        for flavour, cells in works.items()
        for each in _ways(cells, flavour, overheads=overheads, most=bounds.machines, cache=cache, spot=spot)
    ]
    within = [each for each in every if _within(each, bounds)]
    if not within:
        raise _beyond(every, bounds)
    wanted = [each for each in within if each.cache is not None] or within
    others = [each for each in within if each.cache is None]
    cheapest, fastest = min(wanted, key=_cost), min(wanted, key=_time)
    chosen = fastest if aim == "fastest" else cheapest
    return FleetPlan(
        works=tuple(works[chosen.flavour]),
        cheapest=cheapest,
        fastest=fastest,
        chosen=chosen,
        bounds=bounds,
        without=min(others, key=_time if aim == "fastest" else _cost) if cache is not None and others else None,
        notes=tuple(notes),
    )


def _cost(way: Arrangement) -> tuple[float, float, int]:
    return (round(way.cost, 6), way.seconds, way.machines)


def _time(way: Arrangement) -> tuple[float, float, int]:
    return (round(way.seconds, 3), round(way.cost, 6), way.machines)


def _ways(
    works: Sequence[Work],
    flavour: Flavour,
    *,
    overheads: Overheads,
    most: int,
    cache: Flavour | None,
    spot: bool,
) -> Iterator[Arrangement]:
    kinds = [(None, True)] if cache is None else [(None, True), (cache, True), (cache, False)]
    for kind, patient in kinds:
        for machines in numbers(len(works), most):
            if kind is None or machines > 1:
                yield arrange(
                    works,
                    machines=machines,
                    flavour=flavour,
                    overheads=overheads,
                    cache=kind,
                    patient=patient,
                    spot=spot,
                )


def numbers(cells: int, most: int) -> tuple[int, ...]:
    """Return the numbers of machines worth a comparison: the fewest for each number of rounds, thinned out."""
    most = min(most, cells)
    useful = sorted({math.ceil(cells / rounds) for rounds in range(1, cells + 1) if math.ceil(cells / rounds) <= most})
    if len(useful) > MOST_TRIED:
        useful = [useful[round(index * (len(useful) - 1) / (MOST_TRIED - 1))] for index in range(MOST_TRIED)]
    return tuple(sorted({*useful, most}))


def _within(arrangement: Arrangement, bounds: Bounds) -> bool:
    in_time = bounds.seconds is None or arrangement.seconds <= bounds.seconds
    return in_time and (bounds.cost is None or arrangement.cost <= bounds.cost)


def _beyond(every: Sequence[Arrangement], bounds: Bounds) -> FleetLimit:
    least = min(every, key=lambda each: each.cost)
    quickest = min(every, key=lambda each: each.seconds)
    limits = [f"{bounds.cost:.2f} {least.flavour.currency}"] if bounds.cost is not None else []
    limits += [f"{bounds.seconds / 3600:.1f} h"] if bounds.seconds is not None else []
    return FleetLimit(
        f"no arrangement builds these cells within {' and '.join(limits)}",
        why=f"the cheapest costs {least.cost:.2f} {least.flavour.currency} and takes {least.seconds / 3600:.1f} h,"
        f" the fastest {quickest.cost:.2f} {quickest.flavour.currency} and {quickest.seconds / 3600:.1f} h",
        hint="raise --budget or --time-limit, or name fewer cells",
    )
