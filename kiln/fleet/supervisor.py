"""A fleet run under way: decides what is done next, writes it down, and gives every machine back at every end.

All is decided in one thread, from events and the time alone. What is asked of a provider or a machine is in the ledger
before it is asked, so a run that was killed is gone on with from there.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kiln.errors import (
    CredentialsRefused,
    DiskFull,
    FleetLimit,
    HashMismatch,
    KilnError,
    MachinesLeft,
    MachinesLost,
    MachinesRefused,
    OutOfMemory,
    kind_of,
)
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
    Line,
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
from kiln.fleet.queue import Queue
from kiln.fleet.yard import OVER, Yard
from kiln.model.fleet import FleetRun, JobState, MachineState
from kiln.model.run import CellRun, CellState, MatrixReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.fleet.mission import Mission
    from kiln.fleet.orders import Event, Hands, Order
    from kiln.fleet.yard import Book, Station
    from kiln.model.fleet import Work
    from kiln.model.watch import Watcher

LOOK = 30.0  # seconds between two looks at the money that is spent
RETRY = 20.0  # seconds before something is tried again that failed
TRIES = 3  # of the tear-down, and of bringing a cell home
FULL_DISKS = 2  # machines whose disk a cell may fill before it is the cell's own fault
SETTLE = 300.0  # seconds in which finished packages still come home when a run is stopped
DOWN = 900.0  # seconds that one try of the tear-down may take


class Supervisor:
    """One run of the fleet, from its first machine to the end of its last."""

    def __init__(self, mission: Mission, *, hands: Hands, book: Book, watcher: Watcher) -> None:
        self.mission = mission
        self.hands = hands
        self.book = book
        self.watcher = watcher
        self.yard = Yard(mission, book)
        self.queue = Queue((), cache=mission.cache is not None, patient=mission.patient)
        self.works = {work.config: work for work in mission.works}
        self.cells = {cell.config: cell for cell in (*mission.found, *map(_waits, mission.works))}
        self.errors: dict[str, KilnError] = {}
        self.stop: KilnError | None = None
        self.number = 0
        self.most = mission.most
        self.brought = 0
        self.died = 0
        self.full: float | None = None
        self.waiting: list[tuple[float, Order]] = []
        self.cache: str | None = None if mission.cache is not None else ""
        self.started = hands.now() if mission.before is None else mission.before.started

    def execute(self) -> MatrixReport:
        """Build all cells, bring them home and give all machines back; returns what became of every cell.

        Raises:
            KeyboardInterrupt: when the run was stopped; all is written down, and the machines are given back.
            KilnError: MachinesLeft when machines may be left, else what stopped the run: FleetLimit, MachinesLost,
                MachinesRefused, CredentialsRefused, or DiskFull when there was no room here for longer than a lease.
        """
        self.number = self.book.begin(self.report())
        self.book.begin_fleet(self._fleet())
        self.watcher.run_began(self.report())
        try:
            self._take_up()
            self._tend()
            while not self._over():
                event = self.hands.hear(self._alarm())
                if event is not None:
                    self._take(event)
                self._tend()
        finally:
            self._finish()
        if self.stop is not None:
            raise self.stop
        return self.report(finished=self.hands.now())

    def report(self, finished: float | None = None) -> MatrixReport:
        """Return the run as it stands."""
        flavour = self.mission.flavour
        return MatrixReport(
            run=self.number,
            command=self.mission.command,
            started=self.started,
            finished=finished,
            machine=f"{self.mission.most} x {flavour.name} ({flavour.provider})",
            cores=flavour.cores * self.mission.most,
            jobs=self.mission.most,
            engine="rattler-build",
            container=f"fleet {self.mission.id}",
            cells=tuple(self.cells.values()),
        )

    def _fleet(self) -> FleetRun:
        flavour = self.mission.flavour
        return FleetRun(
            id=self.mission.id,
            provider=flavour.provider,
            type=flavour.type,
            started=self.started,
            finished=None,
            number=self.number,
            lives=True,
            key=self.mission.key,
        )

    def _over(self) -> bool:
        return self.stop is not None or not (self.queue or any(station.work or station.bring for station in self.yard))

    # What an earlier process of the same run left

    def _take_up(self) -> None:
        now = self.hands.now()
        if self.mission.before is not None:
            self.yard.take_up(self.mission.before, now)
            self.brought = len(self.mission.before.machines)
        for work in self.mission.works:
            if not self._resumed(work):
                self.queue.add(work)
        for station in self.yard.builders:
            if station.work is None:
                self._reserve(station, now)
        self._order(Bring(machines=tuple(station.name for station in self.yard if station.alive)))
        for station in self.yard:
            station.again |= {} if station.alive else {"": now}

    def _resumed(self, work: Work) -> bool:
        """Take up a cell that a machine builds, or has built and not sent home yet."""
        job = self.yard.job(work.config)
        station = None if job is None else self.yard.stations.get(job.machine)
        if job is None or station is None or not station.alive or job.state in OVER:
            return False
        if job.state is JobState.ENDED:
            station.bring[work.config] = 0
            return True
        station.work, station.begun = work, True
        self.queue.resume(station.name, work, job.began)
        log = self.mission.log(work.config, job.attempt)
        cell = dataclasses.replace(self.cells[work.config], state=CellState.RUNNING, started=job.began, log=log)
        self._change(dataclasses.replace(cell, leader=job.leader, machine=station.name))
        return True

    def _reserve(self, station: Station, now: float) -> bool:
        """Keep a cell for a machine that is on its way."""
        work = self.queue.next(station.name, now + self.mission.up)
        if work is None:
            return False
        station.work = work
        self.queue.begin(station.name, work, now + self.mission.up)
        return True

    # Events

    def _take(self, event: Event) -> None:
        if isinstance(event, Line):
            self.watcher.cell_line(event.config, event.step, event.text)
        elif isinstance(event, NoRoom):
            self._no_room(event)
        elif not isinstance(event, AllGone | Left) and event.machine in self.yard.stations:
            self.full = None if isinstance(event, Up | Prepared | Began | Home) else self.full
            station = self.yard.stations[event.machine]
            if isinstance(event, Up | Refused | Prepared | Looked | Failed | Removed):
                self._of_machine(station, event)
            else:
                self._of_cell(station, event)

    def _no_room(self, event: NoRoom) -> None:
        """Carry an order out later: a full disk here is no machine's fault, and what they hold is worth waiting for."""
        now = self.hands.now()
        self.full = now if self.full is None else self.full
        self.waiting.append((now + RETRY, event.order))
        for cell in [cell for cell in self.cells.values() if _concerns(event.order, cell.config)]:
            self.watcher.cell_line(cell.config, f"waits for room on this computer's disk: {event.reason}", "")

    def _of_machine(self, station: Station, event: Up | Refused | Prepared | Looked | Failed | Removed) -> None:
        match event:
            case Up():
                self._up(station, event.id)
            case Refused():
                self._refused(station, event)
            case Prepared() if station.alive:
                self._ready(station, event.cache)
            case Looked():
                self._looked(station, event.jobs)
            case Failed() if station.alive:
                self._lose(station, event.reason)
            case Failed():
                station.again[""] = self.hands.now() + RETRY
            case Removed():
                self.yard.keep(station, state=MachineState.GONE, gone=self.hands.now())

    def _of_cell(self, station: Station, event: Began | Heard | Silent | Ended | Home | NotHome) -> None:
        match event:
            case Heard():
                station.silent = None
            case Silent():
                station.silent = self.hands.now() if station.silent is None else station.silent
            case Began() if _builds(station, event.config):
                self.yard.keep_job(event.config, state=JobState.RUNNING)
                self._watch(station, event.config)
            case Ended() if _builds(station, event.config):
                self._ended(station, event)
            case Home() if event.config in station.bring:
                self._home(station, event)
            case NotHome() if event.config in station.bring:
                self._not_home(station, event)

    def _up(self, station: Station, identity: str) -> None:
        """Go on with a machine that is there; one that was made anew under its old name has to be prepared.

        A cache always is: where it runs already nothing changes, and it is told where it can be reached.
        """
        if station.known and identity != station.machine.id:
            station.known, station.begun = False, False
            for config in tuple(station.bring):
                self._again(self.works[config], station, "the machine was gone")
            station.bring.clear()
        self.yard.keep(station, state=MachineState.PREPARING, id=identity, up=self.hands.now())
        station.renewed = self.hands.now()
        looks = station.known and not station.is_cache
        self._order(Look(machine=station.name) if looks else Prepare(machine=station.name))

    def _refused(self, station: Station, event: Refused) -> None:
        self.yard.keep(station, state=MachineState.REFUSED, reason=event.reason, gone=self.hands.now())
        self._release(station, event.reason)
        if station.is_cache:
            self._without_cache()
            return
        self.most -= 1
        if event.credentials:
            hint = "docs/how-to/fleet.md says what the provider needs, and where it is read from"
            self.stop = CredentialsRefused("the provider does not accept the credentials", why=event.reason, hint=hint)
        elif not self.yard.builders:
            self.stop = MachinesRefused(
                "the provider gives none of the machines that were asked for",
                why=event.reason,
                hint="another --type, a higher quota, or later",
            )

    def _ready(self, station: Station, cache: str) -> None:
        self.yard.keep(station, state=MachineState.READY)
        if station.is_cache:
            self.cache = cache
            self._order(Attend(machine=station.name))

    def _looked(self, station: Station, jobs: Mapping[str, str]) -> None:
        """Go on with what a machine of an earlier process of the run does, or has done."""
        self.yard.keep(station, state=MachineState.READY)
        for config in station.bring:
            self._order(Collect(machine=station.name, config=config))
        for job in self.yard.latest_jobs():
            if job.machine == station.name and job.state is JobState.HOME and job.config in self.cells:
                self.queue.has(station.name, self.cells[job.config].group)
        if station.work is None or not station.begun:
            return
        if jobs.get(station.work.config) in {"running", "ended"}:
            self._watch(station, station.work.config)
        else:
            self.yard.keep_job(station.work.config, state=JobState.LOST, reason="never begun, or lost")
            station.begun = False

    def _watch(self, station: Station, config: str) -> None:
        log = self.mission.log(config, self.yard.attempts(config))
        self._order(Watch(machine=station.name, config=config, log=log))

    def _ended(self, station: Station, event: Ended) -> None:
        """Let a machine go on at once; what it has built comes home meanwhile."""
        self.queue.end(station.name, well=event.exit_code == 0)
        station.work, station.begun = None, False
        if event.exit_code is None:
            self._again(self.works[event.config], station, event.reason or "its build is gone")
            return
        station.retired = event.exit_code == DiskFull.exit_code
        self.yard.keep_job(
            event.config,
            state=JobState.ENDED,
            ended=self.hands.now(),
            exit_code=event.exit_code,
            reason=event.reason,
        )
        station.bring[event.config] = 0
        self._order(Collect(machine=station.name, config=event.config))

    def _home(self, station: Station, event: Home) -> None:
        del station.bring[event.config]
        job = self.yard.job(event.config)
        code = 0 if job is None or job.exit_code is None else job.exit_code
        if code == DiskFull.exit_code:
            reason = ": ".join(("its disk is full", *filter(None, (event.reason,))))
            self._again(self.works[event.config], station, reason, error=DiskFull)
            return
        ended = self.yard.keep_job(event.config, state=JobState.FAILED if code else JobState.HOME).ended
        reason = "" if code == 0 else event.reason or f"kiln ended with exit code {code} on {station.name}"
        if code:
            self.errors[event.config] = kind_of(code)(reason)
        self._change(
            dataclasses.replace(
                self.cells[event.config],
                state=_state(code),
                finished=ended,
                reason=reason,
                packages=event.packages,
                steps=event.steps,
                peak_memory=event.peak_memory,
                log=event.log or self.cells[event.config].log,
            )
        )

    def _not_home(self, station: Station, event: NotHome) -> None:
        """Try again; what comes broken each time is a failure, a machine that sends nothing is as good as dead."""
        station.bring[event.config] += 1
        if station.bring[event.config] < TRIES:
            station.again[event.config] = self.hands.now() + RETRY
        elif event.corrupt:
            del station.bring[event.config]
            what = f"the packages of {event.config} came home broken, {TRIES} times"
            hint = "what the machine has is lost with it; build the cell again"
            self._fail(event.config, HashMismatch(what, why=event.reason, hint=hint))
        else:
            self._lose(station, event.reason)

    # Machines and cells given up

    def _lose(self, station: Station, reason: str) -> None:
        """Take a machine for dead: its cell is given to another, and what may be left of it removed."""
        self.yard.keep(station, state=MachineState.LOST, reason=reason)
        self._order(Remove(machine=station.name))
        unsent = tuple(station.bring)
        station.bring.clear()
        station.again.clear()
        self._release(station, reason)
        for config in unsent:
            self._again(self.works[config], station, reason)
        if station.is_cache:
            self._without_cache()
            return
        self.died += 1
        if self.died > self.mission.replacements:
            self.most = min(self.most, len(self.yard.builders))
        if not self.most and self.queue:
            what = f"{self.died} machines died, and no more are asked for"
            self.stop = MachinesLost(what, why=reason, hint="--replacements N allows for more")

    def _release(self, station: Station, reason: str) -> None:
        """Let the cell wait again that a machine builds, or was to build."""
        work, begun = station.work, station.begun
        station.work, station.begun = None, False
        self.queue.leave(station.name)
        if work is not None and begun:
            self._again(work, station, reason)
        elif work is not None:
            self.queue.add(work)

    def _without_cache(self) -> None:
        self.cache = ""
        self.queue.lose_cache()

    def _again(self, work: Work, station: Station, reason: str, error: type[KilnError] = MachinesLost) -> None:
        """Let a cell be built again, unless it was tried often enough."""
        tried, filled = self.yard.attempts(work.config), self.yard.ended_with(work.config, DiskFull.exit_code)
        self.yard.keep_job(work.config, state=JobState.LOST, reason=reason)
        if tried >= self.mission.attempts or filled >= FULL_DISKS:
            what = f"{work.config} was given to {tried} machines, and none has built it"
            self._fail(work.config, error(what, why=f"{station.name}: {reason}"))
            return
        self.queue.add(work)
        cell = dataclasses.replace(self.cells[work.config], state=CellState.WAITING, started=None)
        self._change(dataclasses.replace(cell, reason=f"waits again: {station.name}: {reason}"))

    def _fail(self, config: str, error: KilnError) -> None:
        self.errors[config] = error
        self.yard.keep_job(config, state=JobState.FAILED)
        state = CellState.DISK_FULL if isinstance(error, DiskFull) else CellState.FAILED
        cell = dataclasses.replace(self.cells[config], state=state, finished=self.hands.now())
        self._change(dataclasses.replace(cell, reason=f"{error.what}: {error.why}"))

    # What is due

    def _tend(self) -> None:
        """Do what the time, or what has become free, asks for."""
        now = self.hands.now()
        self._limits(now)
        self._carry_on(now)
        for station in self.yard:
            if self.stop is not None:
                return
            self._try_again(station, now)
            if station.alive and station.silent is not None and now >= station.silent + self.mission.patience:
                self._lose(station, f"no answer for {now - station.silent:.0f} s")
            elif station.alive:
                self._tend_to(station, now)
        if self.stop is None:
            self._bring(now)

    def _carry_on(self, now: float) -> None:
        """Give the orders again that had no room here; those to machines that were given up meanwhile are void."""
        due = [order for when, order in self.waiting if when <= now]
        self.waiting = [(when, order) for when, order in self.waiting if when > now]
        for order in due:
            if isinstance(order, Bring | Remove | Down) or self.yard.stations[order.machine].alive:
                self._order(order)

    def _try_again(self, station: Station, now: float) -> None:
        for config in station.due(now):
            name = station.name
            self._order(Collect(machine=name, config=config) if config else Remove(machine=name))

    def _tend_to(self, station: Station, now: float) -> None:
        """Renew a machine's lease, and give it something to do, or back."""
        if station.machine.state is not MachineState.ASKED and now >= station.renewed + self.mission.lease / 4:
            station.renewed = now
            self._order(Renew(machine=station.name, seconds=self.mission.lease))
        if station.machine.state is not MachineState.READY or station.begun:
            return
        if station.is_cache:
            if self.mission.cache is None:  # an earlier process of the run wanted it
                self._give_back(station)
            return
        if station.work is None and not station.retired and (work := self.queue.next(station.name, now)):
            station.work = work
            self.queue.begin(station.name, work, now)
        if station.work is not None:
            self._start(station, station.work, now)
        elif not station.bring and (station.retired or not (self.queue or self._nearly_over())):
            self._give_back(station)

    def _give_back(self, station: Station) -> None:
        self.yard.keep(station, state=MachineState.LEAVING)
        self.queue.leave(station.name)
        self._order(Remove(machine=station.name))

    def _nearly_over(self) -> bool:
        """Whether all that is left to do comes home now: the tear-down, soon, gives back all machines at once."""
        return not (self.queue or self.waiting or any(station.work for station in self.yard))

    def _start(self, station: Station, work: Work, now: float) -> None:
        """Write down that a machine builds a cell, and have it do so, once the cache that it uses is there."""
        if self.cache is None:
            return
        station.begun = True
        leader, seconds = self.queue.leads(station.name), self.queue.expected(station.name)
        job = self.yard.begin_job(work.config, machine=station.name, now=now, leader=leader)
        cell = dataclasses.replace(
            self.cells[work.config], state=CellState.RUNNING, started=now, finished=None, leader=leader, reason=""
        )
        log = self.mission.log(work.config, job.attempt)
        self._change(dataclasses.replace(cell, estimate=seconds, log=log, machine=station.name))
        self._order(Start(machine=station.name, config=work.config, cache=self.cache))

    def _bring(self, now: float) -> None:
        """Ask for machines for what waits and nobody who is there can take."""
        names: list[str] = []
        cache = self.mission.cache
        if cache is not None and self.cache is None and self.mission.machine_name(None) not in self.yard.stations:
            name = self.mission.machine_name(None)
            names.append(self.yard.ask(name, kind=cache.type, hourly=cache.hourly, now=now).name)
        while len(self.yard.builders) < self.most:
            name = self.mission.machine_name(self.brought + 1)
            if self.queue.next(name, now + self.mission.up) is None:
                break
            self.brought += 1
            kind = self.mission.flavour.type
            station = self.yard.ask(name, kind=kind, hourly=self.mission.hourly, now=now)
            self._reserve(station, now)
            names.append(name)
        self._order(Bring(machines=tuple(names)))

    def _limits(self, now: float) -> None:
        """Stop a run in time for its last machine to be gone within its limits, and one that waits for room in vain."""
        if self.full is not None and now >= self.full + self.mission.lease:
            self.stop = DiskFull(
                "the disk of this computer is full, and what was built found no room",
                why=f"it was waited for {(now - self.full) / 60:.0f} min; {len(self.waiting)} steps needed room",
                hint="free some room; what came home is kept, and the same command builds the rest",
            )
            return
        end, budget, limit = now + self.mission.down, self.mission.budget, self.mission.limit
        if limit is not None and end - self.started >= limit:
            hint = "what is finished is kept; the same command builds the rest"
            self.stop = FleetLimit(f"the run was to take {limit / 3600:.2f} h at most, and was stopped", hint=hint)
        elif budget is not None and self.yard.spent(end) > budget:
            currency = self.mission.flavour.currency
            self.stop = FleetLimit(
                f"the run was to cost {budget:.2f} {currency} at most, and was stopped",
                why=f"{self.yard.spent(now):.2f} {currency} are spent",
                hint="what is finished is kept; the same command builds the rest",
            )

    def _alarm(self) -> float:
        """Return when to look again if nothing is heard until then."""
        now = self.hands.now()
        due = [when for station in self.yard for when in station.again.values()]
        due += [when for when, _ in self.waiting]
        due += [] if self.full is None else [self.full + self.mission.lease]
        for station in self.yard:
            if station.alive:
                due.append(station.renewed + self.mission.lease / 4)
                due += [] if station.silent is None else [station.silent + self.mission.patience]
        if self.mission.limit is not None:
            due.append(self.started + self.mission.limit - self.mission.down)
        if self.mission.budget is not None:
            due.append(now + LOOK)
        return max(now, min(due, default=now + LOOK))

    # The end

    def _finish(self) -> None:
        """Bring home what is finished, give everything back, and write down how it all ended."""
        try:
            self._settle()
        finally:
            left = self._down()
            now = self.hands.now()
            for cell in [cell for cell in self.cells.values() if cell.state is CellState.RUNNING]:
                self._change(dataclasses.replace(cell, state=CellState.INTERRUPTED, finished=now))
            self.book.end(self.number)
            self.watcher.run_ended(self.report(finished=now))
            if left and self._never_let_in():
                for station in self.yard:
                    self.yard.keep(station, state=MachineState.REFUSED)
                self.book.end_fleet(self.mission.id)
            elif left:
                raise self._left(left)

    def _never_let_in(self) -> bool:
        """Whether the provider knew nobody from the start: it has made nothing, and will not say so either."""
        fresh = self.mission.before is None and all(station.machine.up is None for station in self.yard)
        return fresh and isinstance(self.stop, CredentialsRefused)

    def _settle(self) -> None:
        """Wait a while for what is on its way home."""
        until = self.hands.now() + SETTLE
        while self._on_their_way() and self.hands.now() < until:
            event = self.hands.hear(min(self._alarm(), until))
            if isinstance(event, Line | Ended | Home | NotHome | NoRoom):
                self._take(event)
            for station in self.yard:
                self._try_again(station, self.hands.now())

    def _on_their_way(self) -> bool:
        """Whether cells come home at this moment: those that find no room here do not."""
        stuck = {order.config for _, order in self.waiting if isinstance(order, Collect)}
        return any(config not in stuck for station in self.yard for config in station.bring)

    def _down(self) -> str:
        """Give everything back; returns why something may be left, nothing when all is gone."""
        reason = ""
        for _ in range(TRIES):
            reason = self._torn_down(until=self.hands.now() + DOWN)
            if not reason:
                for station in self.yard:
                    if station.machine.state not in {MachineState.GONE, MachineState.REFUSED}:
                        self.yard.keep(station, state=MachineState.GONE, gone=self.hands.now())
                self.book.end_fleet(self.mission.id)
            if not reason or self._never_let_in():
                break
        return reason

    def _torn_down(self, until: float) -> str:
        self._order(Down())
        while self.hands.now() < until:
            try:
                event = self.hands.hear(until)
            except KeyboardInterrupt:
                continue  # this very work is what was asked for
            if isinstance(event, AllGone):
                return ""
            if isinstance(event, Left):
                return event.reason
            self._take_late(event)
        return "the tear-down did not end"

    def _take_late(self, event: Event | None) -> None:
        """Note what is heard while everything is given back: that a machine never was one, or what came home yet."""
        if isinstance(event, Refused) and event.machine in self.yard.stations:
            station = self.yard.stations[event.machine]
            self.yard.keep(station, state=MachineState.REFUSED, reason=event.reason, gone=self.hands.now())
        elif isinstance(event, Home | Removed):
            self._take(event)

    def _left(self, reason: str) -> MachinesLeft:
        run = self.mission.id
        return MachinesLeft(
            f"machines of the fleet run {run} may be left running, and cost money",
            why=reason,
            hint=f"kiln fleet down {run}, or the provider's own console",
            others=() if self.stop is None else (self.stop,),
        )

    # Writing down

    def _order(self, order: Order) -> None:
        if not isinstance(order, Bring) or order.machines:
            self.hands.begin(order)

    def _change(self, cell: CellRun) -> None:
        self.cells[cell.config] = cell
        self.book.change(self.number, cell)
        self.watcher.cell_changed(cell)


def _waits(work: Work) -> CellRun:
    return CellRun(config=work.config, state=CellState.WAITING, group=work.group, estimate=work.full)


def _builds(station: Station, config: str) -> bool:
    return station.work is not None and station.work.config == config


def _concerns(order: Order, config: str) -> bool:
    return isinstance(order, Start | Watch | Collect) and order.config == config


def _state(exit_code: int) -> CellState:
    special = {DiskFull.exit_code: CellState.DISK_FULL, OutOfMemory.exit_code: CellState.OUT_OF_MEMORY}
    return CellState.DONE if exit_code == 0 else special.get(exit_code, CellState.FAILED)
