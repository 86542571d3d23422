"""The fleet's part of the ledger: runs, workers and jobs, each stored before it is requested."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import time
from typing import TYPE_CHECKING, Any

from kiln.container.owner_labels import OwnerProcess
from kiln.ledger import Ledger, schema
from kiln.ledger.damage_repair import connect_read_only, decoding_errors_as_damage, retry_after_repair
from kiln.model.fleet_run import GONE, FleetRun, JobRecord, JobState, WorkerRecord, WorkerState
from kiln.serialization import from_json_values, to_json

if TYPE_CHECKING:
    from pathlib import Path

RESERVE = 4 << 20  # bytes that a run may store while the disk is full
UNFINISHED = frozenset({JobState.REQUESTED, JobState.RUNNING, JobState.FINISHED})
COLUMNS = ("id", "provider", "type", "started", "finished", "number", "key", "owner")
SELECT = f"SELECT {', '.join(COLUMNS)} FROM fleet"  # noqa: S608 - constants
INSERT = f"INSERT OR REPLACE INTO fleet ({', '.join(COLUMNS)}) VALUES (:{', :'.join(COLUMNS)})"  # noqa: S608 - constants


class FleetLedger(Ledger):
    """The ledger with the fleet's tables."""

    def __init__(self, path: Path) -> None:
        """Open or create the file; see `Ledger`."""
        super().__init__(path)
        self._create_tables(schema.FLEET)

    def begin_fleet(self, run: FleetRun) -> None:
        """Store that a fleet run begins in this process, or is resumed, with the workers and jobs that it has."""
        row = {name: getattr(run, name) for name in COLUMNS[:-1]} | {"owner": str(OwnerProcess.of_this_process())}
        with self._write_transaction() as connection:
            connection.execute(INSERT, row)
            # The file and its journal keep the space that this takes, so the states of workers can still be stored
            # when something else has filled the disk.
            connection.execute("CREATE TABLE reserve (bytes BLOB)")
            connection.execute("INSERT INTO reserve VALUES (zeroblob(?))", (RESERVE,))
            connection.execute("DROP TABLE reserve")
        for worker in run.workers:
            self.store_worker(run.id, worker)
        for job in run.jobs:
            self.store_job(run.id, job)

    def end_fleet(self, run: str) -> None:
        """Store that nothing of a fleet run remains: its workers are terminated, unfinished jobs are lost."""
        now, stored = time.time(), self.fleet_run(run)
        for worker in () if stored is None else stored.workers:
            if worker.state not in GONE:
                gone = dataclasses.replace(worker, state=WorkerState.TERMINATED, terminated=worker.terminated or now)
                self.store_worker(run, gone)
        for job in () if stored is None else stored.jobs:
            if job.state in UNFINISHED:
                reason = job.reason or "its worker was terminated"
                self.store_job(run, dataclasses.replace(job, state=JobState.LOST, reason=reason))
        with self._write_transaction() as connection:
            connection.execute("UPDATE fleet SET finished = ? WHERE id = ?", (now, run))

    def store_worker(self, run: str, worker: WorkerRecord) -> None:
        """Store the state of a worker, or the state that it is about to have."""
        row = (run, worker.name, json.dumps(to_json(worker)))
        with self._write_transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO worker VALUES (?, ?, ?)", row)

    def store_job(self, run: str, job: JobRecord) -> None:
        """Store the state of a job, or the state that it is about to have."""
        row = (run, job.config, job.attempt, json.dumps(to_json(job)))
        with self._write_transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO job VALUES (?, ?, ?, ?)", row)

    @retry_after_repair
    def fleet_run(self, run: str) -> FleetRun | None:
        """Return a fleet run with its workers and jobs, or None."""
        row = self._fetch_row(f"{SELECT} WHERE id = ?", run)
        return None if row is None else self._fleet_run_from_row(row)

    @retry_after_repair
    def fleet_runs(self) -> tuple[FleetRun, ...]:
        """Return all fleet runs, the latest first."""
        rows = self._fetch_rows(f"{SELECT} ORDER BY started DESC, id")
        return tuple(self._fleet_run_from_row(row) for row in rows)

    def _fleet_run_from_row(self, row: Any) -> FleetRun:
        fields = dict(zip(COLUMNS, row, strict=True))
        owner = fields.pop("owner")
        workers = self._fetch_rows("SELECT detail FROM worker WHERE fleet = ? ORDER BY name", fields["id"])
        jobs = self._fetch_rows("SELECT detail FROM job WHERE fleet = ? ORDER BY config, attempt", fields["id"])
        with decoding_errors_as_damage():
            worker_records = tuple(from_json_values(WorkerRecord, json.loads(detail)) for (detail,) in workers)
            job_records = tuple(from_json_values(JobRecord, json.loads(detail)) for (detail,) in jobs)
        return FleetRun(
            **fields,
            lives=fields["finished"] is None and self._is_owner_process_alive(owner),
            workers=worker_records,
            jobs=job_records,
        )


def is_fleet_run_unfinished(path: Path, run: str) -> bool:
    """Return whether a ledger has a fleet run as unfinished; assume so when it cannot be read.

    It is only read, for it may be another feedstock's: neither migrated nor repaired.
    """
    try:
        with contextlib.closing(connect_read_only(path)) as connection:
            row = connection.execute("SELECT finished FROM fleet WHERE id = ?", (run,)).fetchone()
    except sqlite3.Error:
        return True
    return row is not None and row[0] is None
