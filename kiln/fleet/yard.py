"""The machines and jobs of a fleet run as its supervisor knows them, each change written down at once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kiln.fleet.mission import CACHE
from kiln.model.fleet import Job, JobState, Machine, MachineState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.fleet.mission import Mission
    from kiln.model.fleet import FleetRun, Work
    from kiln.model.run import CellRun, MatrixReport

ALIVE = frozenset({MachineState.ASKED, MachineState.PREPARING, MachineState.READY})
OVER = frozenset({JobState.HOME, JobState.FAILED, JobState.LOST})


class Book(Protocol):
    """Where everything is written down: the ledger, see `kiln.ledger.fleet`."""

    def begin(self, report: MatrixReport) -> int:
        """Write down a run, and return its number."""

    def change(self, run: int, cell: CellRun) -> None:
        """Write down a cell as it is now."""

    def end(self, run: int) -> None:
        """Write down that a run is over."""

    def begin_fleet(self, run: FleetRun) -> None:
        """Write down that a fleet run begins, or goes on."""

    def end_fleet(self, run: str) -> None:
        """Write down that nothing is left of a fleet run."""

    def keep_machine(self, run: str, machine: Machine) -> None:
        """Write down a machine as it is now."""

    def keep_job(self, run: str, job: Job) -> None:
        """Write down a job as it is now."""


@dataclass(slots=True, kw_only=True)
class Station:
    """A machine, and what it is there for.

    ``work`` is what it builds, or will build once it can (``begun``); ``bring`` are the cells that it still has to
    send home, each with how often that failed; ``again`` says when to try once more, and with the key '' when to try
    again to remove it. ``silent`` is since when it does not answer, ``renewed`` when its lease was renewed last;
    ``known`` is a machine that an earlier process of the run has prepared, ``retired`` one that gets no more cells.
    """

    machine: Machine
    work: Work | None = None
    begun: bool = False
    bring: dict[str, int] = field(default_factory=dict)
    again: dict[str, float] = field(default_factory=dict)
    silent: float | None = None
    renewed: float = 0.0
    known: bool = False
    retired: bool = False

    @property
    def name(self) -> str:
        """The machine's name."""
        return self.machine.name

    @property
    def alive(self) -> bool:
        """Whether the machine is there or on its way, and not given up."""
        return self.machine.state in ALIVE

    @property
    def is_cache(self) -> bool:
        """Whether the machine holds the others' cache."""
        return self.name.endswith(CACHE)

    def due(self, now: float) -> list[str]:
        """Return what is to be tried again now, once."""
        names = [name for name, when in self.again.items() if when <= now]
        for name in names:
            del self.again[name]
        return names


class Yard:
    """All stations and jobs."""

    def __init__(self, mission: Mission, book: Book) -> None:
        self._mission = mission
        self._book = book
        self.stations: dict[str, Station] = {}
        self._jobs: dict[tuple[str, int], Job] = {}
        self._attempts: dict[str, int] = {}

    def __iter__(self) -> Iterator[Station]:
        return iter(tuple(self.stations.values()))

    @property
    def builders(self) -> list[Station]:
        """The machines that are alive and build."""
        return [station for station in self if station.alive and not station.is_cache]

    def spent(self, now: float) -> float:
        """Return what all machines have cost until ``now``."""
        paid = (station.machine for station in self if station.machine.state is not MachineState.REFUSED)
        return sum(self._mission.cost(machine, now) for machine in paid)

    # Machines

    def ask(self, name: str, *, kind: str, hourly: float, now: float) -> Station:
        """Write down a machine that is about to be asked for."""
        machine = Machine(name=name, type=kind, state=MachineState.ASKED, asked=now, hourly=hourly)
        station = self.stations[name] = Station(machine=machine, renewed=now)
        self.keep(station)
        return station

    def take_up(self, before: FleetRun, now: float) -> None:
        """Take over the machines and jobs of an earlier process of the run."""
        for machine in before.machines:
            if machine.state not in {MachineState.GONE, MachineState.REFUSED}:
                known = machine.state is MachineState.READY
                self.stations[machine.name] = Station(machine=machine, known=known, renewed=now)
        for job in before.jobs:
            self._remember(job)

    def keep(self, station: Station, **changed: object) -> None:
        """Write down a machine as it is now."""
        station.machine = dataclasses.replace(station.machine, **changed)  # type: ignore[arg-type] # fields by name
        self._book.keep_machine(self._mission.id, station.machine)

    # Jobs

    def attempts(self, config: str) -> int:
        """Return how often a cell's build was begun."""
        return self._attempts.get(config, 0)

    def ended_with(self, config: str, exit_code: int) -> int:
        """Return how many of a cell's builds ended with an exit code."""
        attempts = range(1, self.attempts(config) + 1)
        return sum(self._jobs[config, attempt].exit_code == exit_code for attempt in attempts)

    def job(self, config: str) -> Job | None:
        """Return the latest job of a cell."""
        return self._jobs.get((config, self.attempts(config)))

    def latest_jobs(self) -> list[Job]:
        """Return the latest job of each cell."""
        return [self._jobs[key] for key in self._attempts.items()]

    def begin_job(self, config: str, *, machine: str, now: float, leader: bool) -> Job:
        """Write down a job that a machine is about to be told of."""
        attempt = self.attempts(config) + 1
        job = Job(config=config, machine=machine, attempt=attempt, state=JobState.ASKED, began=now, leader=leader)
        self._remember(job)
        return self.keep_job(config)

    def keep_job(self, config: str, **changed: object) -> Job:
        """Write down a cell's latest job as it is now."""
        job = self.job(config)
        assert job is not None, f"{config} was never begun"
        job = dataclasses.replace(job, **changed)  # type: ignore[arg-type] # fields by name
        self._jobs[config, job.attempt] = job
        self._book.keep_job(self._mission.id, job)
        return job

    def _remember(self, job: Job) -> None:
        self._jobs[job.config, job.attempt] = job
        self._attempts[job.config] = max(self.attempts(job.config), job.attempt)
