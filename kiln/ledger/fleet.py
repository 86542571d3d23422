"""What the ledger remembers of the fleet: its machines and jobs, each written down before it is asked for."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.container.owner import Owner
from kiln.ledger import Ledger
from kiln.model.fleet import FleetRun, Job, JobState, Machine, MachineState
from kiln.model.run import CellState

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS fleet (
    id TEXT PRIMARY KEY,
    provider TEXT NOT NULL,
    type TEXT NOT NULL,
    started REAL NOT NULL,
    finished REAL,
    owner TEXT NOT NULL,
    number INTEGER NOT NULL,
    key TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS machine (
    fleet TEXT NOT NULL REFERENCES fleet (id),
    name TEXT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (fleet, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS job (
    fleet TEXT NOT NULL REFERENCES fleet (id),
    config TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (fleet, config, attempt)
) WITHOUT ROWID;
COMMIT;
"""
ROOM = 4 << 20  # bytes that a run may write down while the disk is full
COLUMNS = "id, provider, type, started, finished, owner, number, key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """How long a cell took when it was built: as its group's ``leader``, or after it; on how many cores, 0 unknown."""

    config: str
    leader: bool
    seconds: float
    cores: float


class FleetLedger(Ledger):
    """The ledger with the fleet's tables."""

    def __init__(self, path: Path) -> None:
        """Open the file, or begin one."""
        super().__init__(path)
        with self._lock:
            self._open.executescript(SCHEMA)

    def __enter__(self) -> FleetLedger:
        return self

    def begin_fleet(self, run: FleetRun) -> None:
        """Write down that a fleet run begins, or goes on, in this process."""
        row = (run.id, run.provider, run.type, run.started, run.finished, str(Owner.here()), run.number, run.key)
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO fleet VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            # The file and its journal keep the room that this takes, so what is done to machines can be written down
            # when something else has filled the disk, too.
            connection.execute("CREATE TABLE room (bytes BLOB)")
            connection.execute("INSERT INTO room VALUES (zeroblob(?))", (ROOM,))
            connection.execute("DROP TABLE room")

    def end_fleet(self, run: str) -> None:
        """Write down that nothing is left of a fleet run."""
        with self._writing() as connection:
            connection.execute("UPDATE fleet SET finished = ? WHERE id = ?", (time.time(), run))

    def keep_machine(self, run: str, machine: Machine) -> None:
        """Write down a machine as it is now, or as it is about to be."""
        row = (run, machine.name, json.dumps(dataclasses.asdict(machine)))
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO machine VALUES (?, ?, ?)", row)

    def keep_job(self, run: str, job: Job) -> None:
        """Write down a job as it is now, or as it is about to be."""
        row = (run, job.config, job.attempt, json.dumps(dataclasses.asdict(job)))
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO job VALUES (?, ?, ?, ?)", row)

    def fleet(self, run: str) -> FleetRun | None:
        """Return a fleet run with its machines and jobs."""
        row = self._row(f"SELECT {COLUMNS} FROM fleet WHERE id = ?", run)  # noqa: S608 - a constant
        return None if row is None else self._fleet(row)

    def fleets(self) -> tuple[FleetRun, ...]:
        """Return all fleet runs, the latest first."""
        rows = self._rows(f"SELECT {COLUMNS} FROM fleet ORDER BY started DESC, id")  # noqa: S608 - a constant
        return tuple(self._fleet(row) for row in rows)

    def took(self) -> tuple[Took, ...]:
        """Return how long each cell took when it was last built to its end, as a leader and as a follower."""
        rows = self._rows(
            "SELECT cell.config, cell.detail, cell.finished - cell.started, run.detail FROM cell"
            " JOIN run ON run.id = cell.run WHERE cell.state = ? AND cell.started IS NOT NULL ORDER BY run.id",
            CellState.DONE.value,
        )
        latest = {}
        for config, cell, seconds, run in rows:
            leader, told = bool(json.loads(cell)["leader"]), json.loads(run)
            cores = float(told["cores"]) and max(1.0, float(told["cores"]) / max(1, int(told["jobs"])))
            latest[config, leader] = Took(config=config, leader=leader, seconds=seconds, cores=cores)
        return tuple(latest.values())

    def _fleet(self, row: Any) -> FleetRun:
        number, provider, kind, started, finished, owner, report, key = row
        machines = self._rows("SELECT detail FROM machine WHERE fleet = ? ORDER BY name", number)
        jobs = self._rows("SELECT detail FROM job WHERE fleet = ? ORDER BY config, attempt", number)
        return FleetRun(
            id=number,
            provider=provider,
            type=kind,
            started=started,
            finished=finished,
            number=report,
            lives=finished is None and self._lives(owner),
            key=key,
            machines=tuple(_machine(json.loads(detail)) for (detail,) in machines),
            jobs=tuple(_job(json.loads(detail)) for (detail,) in jobs),
        )


def _machine(told: dict[str, Any]) -> Machine:
    return Machine(**{**told, "state": MachineState(told["state"])})


def _job(told: dict[str, Any]) -> Job:
    return Job(**{**told, "state": JobState(told["state"])})
