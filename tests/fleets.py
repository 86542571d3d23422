"""A fleet that is simulated: machines that come, build, die and go under a clock of their own, with chosen faults.

What decides is kiln's own planner and supervisor; only what they give orders to is made up here.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln.fleet.orders import (
    AllGone,
    Attend,
    Began,
    Bring,
    Collect,
    Down,
    Ended,
    Failed,
    Heard,
    Home,
    Left,
    Look,
    Looked,
    NoRoom,
    NotHome,
    Prepare,
    Prepared,
    Refused,
    Remove,
    Removed,
    Renew,
    Silent,
    Start,
    Up,
    Watch,
)
from kiln.model.fleet import Flavour, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kiln.fleet.orders import Event, Order
    from kiln.model.compile import Progress
    from kiln.model.run import CellRun, MatrixReport

HOUR = 3600.0
POLL = 15.0
NEVER = float("inf")

FLAVOUR = Flavour(
    provider="local",
    type="compute-16",
    name="made-up.16",
    cores=16,
    memory=64,
    disk=200,
    hourly=0.8,
    spot_hourly=0.3,
    currency="EUR",
    billed=1,
    region="",
    source="made up for tests",
    date="2026-11-21",
)


def works(cells: int, *, hours: float = 3.0, follower: float = 1.0, groups: int = 3) -> tuple[Work, ...]:
    """Cells that all take as long, or less after the first of their group."""
    return tuple(
        Work(
            config=f"cell{number:02d}",
            group=f"cuda{number % groups}",
            full=hours * HOUR,
            follower=hours * HOUR * follower,
        )
        for number in range(cells)
    )


class Killed(BaseException):
    """The controller is killed: nothing of it runs after this."""


@dataclass(slots=True, kw_only=True)
class Box:
    """A machine of the simulation; ``jobs`` are until when each cell is built, ``disk`` the groups that it compiled."""

    born: float
    dies: float
    lease: float
    serial: int
    jobs: dict[str, float] = field(default_factory=dict)
    disk: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class Faults:
    """What goes wrong: each by the name of a machine or a cell, how often, or at what second of the run.

    ``preemption`` is the share of machines that die in an hour; ``codes`` are the exit codes of cells that fail,
    ``full`` the machines whose disk is full, ``no_room`` from when to when the controller's is; ``stopped`` when Ctrl-C
    is pressed.
    """

    preemption: float = 0.0
    dies: Mapping[str, float] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    credentials: bool = False
    unprepared: frozenset[str] = frozenset()
    codes: Mapping[str, int] = field(default_factory=dict)
    full: frozenset[str] = frozenset()
    no_room: tuple[float, float] = (NEVER, NEVER)
    corrupt: Mapping[str, int] = field(default_factory=dict)
    stays: int = 0
    killed: float = NEVER
    stopped: Sequence[float] = ()


class World:
    """The machines, and the controller's hands on them: see `kiln.fleet.orders.Hands`."""

    def __init__(
        self,
        works: Sequence[Work],
        *,
        faults: Faults | None = None,
        up: float = 240.0,
        home: float = 60.0,
        down: float = 30.0,
        seed: int = 0,
        cache: bool = False,
    ) -> None:
        self.works = {work.config: work for work in works}
        self.faults = faults or Faults()
        self.up, self.home, self.down, self.cache = up, home, down, cache
        self.cached: set[str] = set()
        self.random = random.Random(seed)
        self.clock = self.began = 1_790_000_000.0
        self.boxes: dict[str, Box] = {}
        self.paid: list[tuple[str, float, float]] = []
        self.orders: list[Order] = []
        self.built: list[tuple[str, str]] = []
        self._due: list[tuple[float, int, Event | Callable[[], Event | None]]] = []
        self._serial = itertools.count(1)
        self._stops = list(self.faults.stopped)
        self._corrupt = dict(self.faults.corrupt)
        self._stays = self.faults.stays
        self._unwatched: set[str] = set()

    # The hands

    def now(self) -> float:
        return self.clock

    def hear(self, until: float) -> Event | None:
        while True:
            when = min(until, self._due[0][0] if self._due else NEVER)
            self._interrupt(when)
            if not self._due or self._due[0][0] > until:
                self.clock = max(self.clock, until)
                return None
            when, _, what = heapq.heappop(self._due)
            self.clock = max(self.clock, when)
            event = what() if callable(what) else what
            if event is not None:
                return event

    def _interrupt(self, when: float) -> None:
        if when - self.began >= self.faults.killed:
            self.clock = max(self.clock, self.began + self.faults.killed)
            raise Killed
        if self._stops and when - self.began >= self._stops[0]:
            self.clock = max(self.clock, self.began + self._stops.pop(0))
            raise KeyboardInterrupt

    def revive(self) -> None:
        """Let another controller take the place of one that was killed; what goes on without it, has gone on."""
        self.faults.killed = NEVER
        self._due.clear()

    def begin(self, order: Order) -> None:
        if self.clock - self.began >= self.faults.killed:
            raise Killed
        self.orders.append(order)
        if isinstance(order, Bring):
            for name in order.machines:
                self._bring(name)
        elif isinstance(order, Renew):
            self._renew(order)
        elif isinstance(order, Attend):
            self._soon(0.0, lambda: self._attended(order.machine))
        elif isinstance(order, Down):
            self._due = [due for due in self._due if isinstance(due[2], Refused)]  # what a provider says, it says
            heapq.heapify(self._due)
            self._soon(self.down, self._all_gone)
        else:
            since, until = self.faults.no_room
            if isinstance(order, Prepare | Start | Collect) and since <= self.clock - self.began < until:
                self._soon(1.0, NoRoom(order=order, reason="0 B are free"))
                return
            seconds, what = self._carried_out(order)
            self._soon(seconds, what)

    def _renew(self, order: Renew) -> None:
        if (box := self._box(order.machine)) is not None:
            box.lease = self.clock + order.seconds

    def _carried_out(
        self, order: Prepare | Look | Start | Watch | Collect | Remove
    ) -> tuple[float, Callable[[], Event | None]]:
        """How long an order to one machine takes, and what becomes of it then."""
        match order:
            case Prepare():
                return self.up / 2, lambda: self._prepared(order.machine)
            case Look():
                return 2.0, lambda: self._looked(order.machine)
            case Start():
                return 2.0, lambda: self._started(order.machine, order.config)
            case Watch():
                return 0.0, lambda: self._watched(order.machine, order.config)
            case Collect():
                return self.home, lambda: self._collected(order.machine, order.config)
            case Remove():
                self._unwatched.add(order.machine)
                return self.down, lambda: self._removed(order.machine)

    # What becomes of orders

    def _soon(self, seconds: float, what: Event | Callable[[], Event | None]) -> None:
        heapq.heappush(self._due, (self.clock + seconds, next(self._serial), what))

    def _box(self, name: str) -> Box | None:
        """A machine that lives: dead ones, and those whose lease is over, do not."""
        box = self.boxes.get(name)
        if box is not None and self.clock >= min(box.dies, box.lease):
            self._bury(name, min(box.dies, box.lease))
            return None
        return box

    def _bury(self, name: str, when: float) -> None:
        box = self.boxes.pop(name)
        self.paid.append((name, box.born, when))

    def _bring(self, name: str) -> None:
        if self._box(name) is not None:
            self._soon(5.0, Up(machine=name, id=str(self.boxes[name].serial)))
        elif self.faults.credentials:
            self._soon(2.0, Refused(machine=name, reason="not authorized", credentials=True))
        elif name in self.faults.refused:
            self._soon(10.0, Refused(machine=name, reason="quota exceeded"))
        else:
            rate = self.faults.preemption
            life = self.random.expovariate(rate / HOUR) if rate else NEVER
            dies = self.faults.dies.get(name)
            self.boxes[name] = Box(
                born=self.clock,
                dies=self.clock + life if dies is None else self.began + dies,
                lease=self.clock + HOUR,
                serial=next(self._serial),
            )
            self._soon(self.up / 2, lambda: self._is_up(name))

    def _is_up(self, name: str) -> Event:
        box = self._box(name)
        return Failed(machine=name, reason="never came up") if box is None else Up(machine=name, id=str(box.serial))

    def _prepared(self, name: str) -> Event:
        if self._box(name) is None or name in self.faults.unprepared:
            return Failed(machine=name, reason="cannot be prepared")
        return Prepared(machine=name, cache="http://cache" if name.endswith("cache") else "")

    def _attended(self, name: str) -> Event | None:
        box = self._box(name)
        if name in self._unwatched:
            return None
        soon = POLL if box is None else min(box.dies, box.lease, self.clock + HOUR / 4) - self.clock
        self._soon(max(soon, 0.001), lambda: self._attended(name))
        return Silent(machine=name, reason="no route to host") if box is None else Heard(machine=name)

    def _looked(self, name: str) -> Event:
        box = self._box(name)
        if box is None:
            return Failed(machine=name, reason="no answer")
        states = {config: "running" if end > self.clock else "ended" for config, end in box.jobs.items()}
        return Looked(machine=name, jobs=states)

    def _started(self, name: str, config: str) -> Event:
        box = self._box(name)
        if box is None:
            return Failed(machine=name, reason="no answer")
        work = self.works[config]
        quick = work.group in (box.disk | self.cached) and work.follower < work.full
        seconds = 600.0 if name in self.faults.full else work.follower if quick else work.full
        box.jobs.setdefault(config, self.clock + seconds)
        return Began(machine=name, config=config)

    def _watched(self, name: str, config: str) -> Event | None:
        box = self._box(name)
        if name in self._unwatched:
            return None
        if box is None:
            self._soon(POLL, lambda: self._watched(name, config))
            return Silent(machine=name, reason="no route to host")
        if box.jobs[config] > self.clock:
            sooner = min(box.jobs[config], box.dies, box.lease, self.clock + HOUR / 4)
            self._soon(max(sooner - self.clock, 0.001), lambda: self._watched(name, config))
            return Heard(machine=name)
        return self._ended(name, box, config)

    def _ended(self, name: str, box: Box, config: str) -> Event:
        code = 16 if name in self.faults.full else self.faults.codes.get(config, 0)
        if code == 0:
            self.built.append((config, name))
            box.disk.add(self.works[config].group)
            self.cached |= {self.works[config].group} if self.cache else set()
        return Ended(machine=name, config=config, exit_code=code)

    def _collected(self, name: str, config: str) -> Event:
        if self._box(name) is None:
            return NotHome(machine=name, config=config, reason="no route to host")
        if self._corrupt.get(config, 0) > 0:
            self._corrupt[config] -= 1
            return NotHome(machine=name, config=config, reason="its hash is another", corrupt=True)
        return Home(machine=name, config=config)

    def _removed(self, name: str) -> Event:
        if self._box(name) is not None:
            self._bury(name, self.clock)
        return Removed(machine=name)

    def _all_gone(self) -> Event:
        if self._stays > 0:
            self._stays -= 1
            return Left(reason="the provider does not answer")
        for name in list(self.boxes):
            self._removed(name)
        return AllGone()


class NoBook:
    """A ledger that forgets, for when many runs are simulated."""

    def begin(self, report: MatrixReport) -> int:
        return 1

    def change(self, run: int, cell: CellRun) -> None: ...
    def end(self, run: int) -> None: ...
    def begin_fleet(self, run: object) -> None: ...
    def end_fleet(self, run: str) -> None: ...
    def keep_machine(self, run: str, machine: object) -> None: ...
    def keep_job(self, run: str, job: object) -> None: ...


class Nobody:
    """A watcher that looks away."""

    def run_began(self, report: MatrixReport) -> None: ...
    def cell_changed(self, cell: CellRun) -> None: ...
    def cell_line(self, config: str, step: str, line: str) -> None: ...
    def cell_progress(self, config: str, progress: Progress) -> None: ...
    def run_ended(self, report: MatrixReport) -> None: ...
