"""A fleet run under way: decides what is done next, writes it down, and gives every machine back at every end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import DiskFull, FleetLimit
from kiln.fleet.builds import Builds
from kiln.fleet.ending import Ending
from kiln.fleet.machines import Machines
from kiln.fleet.orders import (
    AllGone,
    Began,
    Bring,
    Collect,
    Down,
    Ended,
    Failed,
    Heard,
    Home,
    Left,
    Line,
    Looked,
    NoRoom,
    NotHome,
    Prepared,
    Refused,
    Remove,
    Removed,
    Silent,
    Start,
    Up,
    Watch,
)
from kiln.fleet.state import RETRY, State
from kiln.model.fleet import JobState, MachineState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.errors import KilnError
    from kiln.fleet.mission import Mission
    from kiln.fleet.orders import Event, Hands, Order
    from kiln.fleet.yard import Book, Station
    from kiln.model.run import MatrixReport
    from kiln.model.watch import Watcher

LOOK = 30.0  # seconds between two looks at the money that is spent


class Supervisor:
    """One run of the fleet, from its first machine to the end of its last."""

    def __init__(self, mission: Mission, *, hands: Hands, book: Book, watcher: Watcher) -> None:
        self.run = State(mission, hands=hands, book=book, watcher=watcher)
        self.builds = Builds(self.run)
        self.machines = Machines(self.run, self.builds)
        self.ending = Ending(self.run, self.machines, take=self._take, alarm=self._alarm)

    @property
    def errors(self) -> Mapping[str, KilnError]:
        """Why cells failed that did."""
        return self.run.errors

    def execute(self) -> MatrixReport:
        """Build all cells, bring them home and give all machines back; returns what became of every cell.

        Raises:
            KeyboardInterrupt: when the run was stopped; all is written down, and the machines are given back.
            KilnError: MachinesLeft when machines may be left, else what stopped the run: FleetLimit, MachinesLost,
                MachinesRefused, CredentialsRefused, or DiskFull when there was no room here for longer than a lease.
        """
        self.run.number = self.run.book.begin(self.run.report())
        self.run.book.begin_fleet(self.run.fleet())
        self.run.watcher.run_began(self.run.report())
        try:
            self._take_up()
            self._tend()
            while not self._over():
                event = self.run.hands.hear(self._alarm())
                if event is not None:
                    self._take(event)
                self._tend()
        finally:
            self.ending.finish()
        if self.run.stop is not None:
            raise self.run.stop
        return self.run.report(finished=self.run.hands.now())

    def _over(self) -> bool:
        return self.run.stop is not None or not (
            self.run.queue or any(station.work or station.bring for station in self.run.yard)
        )

    def _take_up(self) -> None:
        now = self.run.hands.now()
        if self.run.mission.before is not None:
            self.run.yard.take_up(self.run.mission.before, now)
            self.machines.brought = len(self.run.mission.before.machines)
        for work in self.run.mission.works:
            if not self.builds.resumed(work):
                self.run.queue.add(work)
        for station in self.run.yard.builders:
            if station.work is None:
                self.builds.reserve(station, now)
        self.run.order(Bring(machines=tuple(station.name for station in self.run.yard if station.alive)))
        for station in self.run.yard:
            station.again |= {} if station.alive else {"": now}

    def _take(self, event: Event) -> None:
        if isinstance(event, Line):
            self.run.watcher.cell_line(event.config, event.step, event.text)
        elif isinstance(event, NoRoom):
            self._no_room(event)
        elif not isinstance(event, AllGone | Left) and event.machine in self.run.yard.stations:
            self.run.full = None if isinstance(event, Up | Prepared | Began | Home) else self.run.full
            station = self.run.yard.stations[event.machine]
            if isinstance(event, Up | Refused | Prepared | Looked | Failed | Removed):
                self._of_machine(station, event)
            else:
                self._of_cell(station, event)

    def _no_room(self, event: NoRoom) -> None:
        """Carry an order out later: a full disk here is no machine's fault, and what they hold is worth waiting for."""
        now = self.run.hands.now()
        self.run.full = now if self.run.full is None else self.run.full
        self.run.waiting.append((now + RETRY, event.order))
        for cell in [cell for cell in self.run.cells.values() if _concerns(event.order, cell.config)]:
            self.run.watcher.cell_line(cell.config, f"waits for room on this computer's disk: {event.reason}", "")

    def _of_machine(self, station: Station, event: Up | Refused | Prepared | Looked | Failed | Removed) -> None:
        match event:
            case Up():
                self.machines.up(station, event.id)
            case Refused():
                self.machines.refused(station, event)
            case Prepared() if station.alive:
                self.machines.ready(station, event.cache)
            case Looked():
                self.machines.looked(station, event.jobs)
            case Failed() if station.alive:
                self.machines.lose(station, event.reason)
            case Failed():
                station.again[""] = self.run.hands.now() + RETRY
            case Removed():
                self.run.yard.keep(station, state=MachineState.GONE, gone=self.run.hands.now())

    def _of_cell(self, station: Station, event: Began | Heard | Silent | Ended | Home | NotHome) -> None:
        match event:
            case Heard():
                station.silent = None
            case Silent():
                station.silent = self.run.hands.now() if station.silent is None else station.silent
            case Began() if _builds(station, event.config):
                self.run.yard.keep_job(event.config, state=JobState.RUNNING)
                self.builds.watch(station, event.config)
            case Ended() if _builds(station, event.config):
                self.builds.ended(station, event)
            case Home() if event.config in station.bring:
                self.builds.home(station, event)
            case NotHome() if event.config in station.bring:
                if self.builds.not_home(station, event):
                    self.machines.lose(station, event.reason)

    def _tend(self) -> None:
        """Do what the time, or what has become free, asks for."""
        now = self.run.hands.now()
        self._limits(now)
        self._carry_on(now)
        for station in self.run.yard:
            if self.run.stop is not None:
                return
            self.machines.try_again(station, now)
            if station.alive and station.silent is not None and now >= station.silent + self.run.mission.patience:
                self.machines.lose(station, f"no answer for {now - station.silent:.0f} s")
            elif station.alive:
                self.machines.tend_to(station, now)
        if self.run.stop is None:
            self.machines.bring(now)

    def _carry_on(self, now: float) -> None:
        """Give the orders again that had no room here; those to machines that were given up meanwhile are void."""
        due = [order for when, order in self.run.waiting if when <= now]
        self.run.waiting = [(when, order) for when, order in self.run.waiting if when > now]
        for order in due:
            if isinstance(order, Bring | Remove | Down) or self.run.yard.stations[order.machine].alive:
                self.run.order(order)

    def _limits(self, now: float) -> None:
        """Stop a run in time for its last machine to be gone within its limits, and one that waits for room in vain."""
        if self.run.full is not None and now >= self.run.full + self.run.mission.lease:
            self.run.stop = DiskFull(
                "the disk of this computer is full, and what was built found no room",
                why=f"it was waited for {(now - self.run.full) / 60:.0f} min;"
                f" {len(self.run.waiting)} steps needed room",
                hint="free some room; what came home is kept, and the same command builds the rest",
            )
            return
        end, budget, limit = now + self.run.mission.down, self.run.mission.budget, self.run.mission.limit
        if limit is not None and end - self.run.started >= limit:
            hint = "what is finished is kept; the same command builds the rest"
            self.run.stop = FleetLimit(f"the run was to take {limit / 3600:.2f} h at most, and was stopped", hint=hint)
        elif budget is not None and self.run.yard.spent(end) > budget:
            currency = self.run.mission.flavour.currency
            self.run.stop = FleetLimit(
                f"the run was to cost {budget:.2f} {currency} at most, and was stopped",
                why=f"{self.run.yard.spent(now):.2f} {currency} are spent",
                hint="what is finished is kept; the same command builds the rest",
            )

    def _alarm(self) -> float:
        """Return when to look again if nothing is heard until then."""
        now = self.run.hands.now()
        due = [when for station in self.run.yard for when in station.again.values()]
        due += [when for when, _ in self.run.waiting]
        due += [] if self.run.full is None else [self.run.full + self.run.mission.lease]
        for station in self.run.yard:
            if station.alive:
                due.append(station.renewed + self.run.mission.lease / 4)
                due += [] if station.silent is None else [station.silent + self.run.mission.patience]
        if self.run.mission.limit is not None:
            due.append(self.run.started + self.run.mission.limit - self.run.mission.down)
        if self.run.mission.budget is not None:
            due.append(now + LOOK)
        return max(now, min(due, default=now + LOOK))


def _builds(station: Station, config: str) -> bool:
    return station.work is not None and station.work.config == config


def _concerns(order: Order, config: str) -> bool:
    return isinstance(order, Start | Watch | Collect) and order.config == config
