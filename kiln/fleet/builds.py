"""The cells of a fleet run: given to machines, built, brought home, or given up."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kiln.errors import DiskFull, HashMismatch, KilnError, MachinesLost, OutOfMemory, kind_of
from kiln.fleet.orders import Collect, Start, Watch
from kiln.fleet.state import RETRY, TRIES
from kiln.fleet.yard import OVER
from kiln.model.fleet import JobState
from kiln.model.run import CellState

if TYPE_CHECKING:
    from kiln.fleet.orders import Ended, Home, NotHome
    from kiln.fleet.state import State
    from kiln.fleet.yard import Station
    from kiln.model.fleet import Work

FULL_DISKS = 2  # machines whose disk a cell may fill before it is the cell's own fault


class Builds:
    """What becomes of cells."""

    def __init__(self, run: State) -> None:
        self.run = run

    def reserve(self, station: Station, now: float) -> bool:
        """Keep a cell for a machine that is on its way."""
        work = self.run.queue.next(station.name, now + self.run.mission.up)
        if work is None:
            return False
        station.work = work
        self.run.queue.begin(station.name, work, now + self.run.mission.up)
        return True

    def resumed(self, work: Work) -> bool:
        """Take up a cell that a machine builds, or has built and not sent home yet."""
        job = self.run.yard.job(work.config)
        station = None if job is None else self.run.yard.stations.get(job.machine)
        if job is None or station is None or not station.alive or job.state in OVER:
            return False
        if job.state is JobState.ENDED:
            station.bring[work.config] = 0
            return True
        station.work, station.begun = work, True
        self.run.queue.resume(station.name, work, job.began)
        log = self.run.mission.log(work.config, job.attempt)
        cell = dataclasses.replace(self.run.cells[work.config], state=CellState.RUNNING, started=job.began, log=log)
        self.run.change(dataclasses.replace(cell, leader=job.leader, machine=station.name))
        return True

    def start(self, station: Station, work: Work, now: float, *, cache: str) -> None:
        """Write down that a machine builds a cell, and have it do so; ``cache`` is the one that it uses, or empty."""
        station.begun = True
        leader, seconds = self.run.queue.leads(station.name), self.run.queue.expected(station.name)
        job = self.run.yard.begin_job(work.config, machine=station.name, now=now, leader=leader)
        cell = dataclasses.replace(
            self.run.cells[work.config], state=CellState.RUNNING, started=now, finished=None, leader=leader, reason=""
        )
        log = self.run.mission.log(work.config, job.attempt)
        self.run.change(dataclasses.replace(cell, estimate=seconds, log=log, machine=station.name))
        self.run.order(Start(machine=station.name, config=work.config, cache=cache))

    def watch(self, station: Station, config: str) -> None:
        """Have a build followed."""
        log = self.run.mission.log(config, self.run.yard.attempts(config))
        self.run.order(Watch(machine=station.name, config=config, log=log))

    def ended(self, station: Station, event: Ended) -> None:
        """Let a machine go on at once; what it has built comes home meanwhile."""
        self.run.queue.end(station.name, well=event.exit_code == 0)
        station.work, station.begun = None, False
        if event.exit_code is None:
            self.again(self.run.works[event.config], station, event.reason or "its build is gone")
            return
        station.retired = event.exit_code == DiskFull.exit_code
        self.run.yard.keep_job(
            event.config,
            state=JobState.ENDED,
            ended=self.run.hands.now(),
            exit_code=event.exit_code,
            reason=event.reason,
        )
        station.bring[event.config] = 0
        self.run.order(Collect(machine=station.name, config=event.config))

    def home(self, station: Station, event: Home) -> None:
        """Take note of what a build left, which is here and checked."""
        del station.bring[event.config]
        job = self.run.yard.job(event.config)
        code = 0 if job is None or job.exit_code is None else job.exit_code
        if code == DiskFull.exit_code:
            reason = ": ".join(("its disk is full", *filter(None, (event.reason,))))
            self.again(self.run.works[event.config], station, reason, error=DiskFull)
            return
        ended = self.run.yard.keep_job(event.config, state=JobState.FAILED if code else JobState.HOME).ended
        reason = "" if code == 0 else event.reason or f"kiln ended with exit code {code} on {station.name}"
        if code:
            self.run.errors[event.config] = kind_of(code)(reason)
        self.run.change(
            dataclasses.replace(
                self.run.cells[event.config],
                state=_state(code),
                finished=ended,
                reason=reason,
                packages=event.packages,
                steps=event.steps,
                peak_memory=event.peak_memory,
                log=event.log or self.run.cells[event.config].log,
            )
        )

    def not_home(self, station: Station, event: NotHome) -> bool:
        """Try again; what comes broken each time is a failure.

        Returns whether the machine is as good as dead, since it sends nothing.
        """
        station.bring[event.config] += 1
        if station.bring[event.config] < TRIES:
            station.again[event.config] = self.run.hands.now() + RETRY
        elif event.corrupt:
            del station.bring[event.config]
            what = f"the packages of {event.config} came home broken, {TRIES} times"
            hint = "what the machine has is lost with it; build the cell again"
            self._fail(event.config, HashMismatch(what, why=event.reason, hint=hint))
        else:
            return True
        return False

    def again(self, work: Work, station: Station, reason: str, error: type[KilnError] = MachinesLost) -> None:
        """Let a cell be built again, unless it was tried often enough."""
        tried, filled = self.run.yard.attempts(work.config), self.run.yard.ended_with(work.config, DiskFull.exit_code)
        self.run.yard.keep_job(work.config, state=JobState.LOST, reason=reason)
        if tried >= self.run.mission.attempts or filled >= FULL_DISKS:
            what = f"{work.config} was given to {tried} machines, and none has built it"
            self._fail(work.config, error(what, why=f"{station.name}: {reason}"))
            return
        self.run.queue.add(work)
        cell = dataclasses.replace(self.run.cells[work.config], state=CellState.WAITING, started=None)
        self.run.change(dataclasses.replace(cell, reason=f"waits again: {station.name}: {reason}"))

    def _fail(self, config: str, error: KilnError) -> None:
        self.run.errors[config] = error
        self.run.yard.keep_job(config, state=JobState.FAILED)
        state = CellState.DISK_FULL if isinstance(error, DiskFull) else CellState.FAILED
        cell = dataclasses.replace(self.run.cells[config], state=state, finished=self.run.hands.now())
        self.run.change(dataclasses.replace(cell, reason=f"{error.what}: {error.why}"))

    def release(self, station: Station, reason: str) -> None:
        """Let the cell wait again that a machine builds, or was to build."""
        work, begun = station.work, station.begun
        station.work, station.begun = None, False
        self.run.queue.leave(station.name)
        if work is not None and begun:
            self.again(work, station, reason)
        elif work is not None:
            self.run.queue.add(work)


def _state(exit_code: int) -> CellState:
    special = {DiskFull.exit_code: CellState.DISK_FULL, OutOfMemory.exit_code: CellState.OUT_OF_MEMORY}
    return CellState.DONE if exit_code == 0 else special.get(exit_code, CellState.FAILED)
