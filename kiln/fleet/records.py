"""The records of fleet runs, their workers and jobs, in the ledger and in a view."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import time
from typing import TYPE_CHECKING, Any

from kiln.base.serialization import from_json_values, to_json
from kiln.container.images import OwnerProcess
from kiln.fleet.model import GONE, FleetRun, JobRecord, JobState, WorkerRecord, WorkerState
from kiln.state.ledger import schema
from kiln.state.ledger.database import connect_read_only, decoding_errors_as_damage, retry_after_repair
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import GOOD, ConfigRun, ConfigState, MatrixReport, RunCost

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from kiln.state.results import RunObserver


TESTS_SUFFIX = " (tests)"  # of the names of jobs, which differ from those of the builds of the same configs


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

    It is only read, for it may be another feedstock's: not repaired.
    """
    try:
        with contextlib.closing(connect_read_only(path)) as connection:
            row = connection.execute("SELECT finished FROM fleet WHERE id = ?", (run,)).fetchone()
    except sqlite3.Error:
        return True
    return row is not None and row[0] is None


PENDING = "built; its packages wait for their tests on a worker"


class RunRecorder:
    """Stores each change of a run in the ledger, and then shows it.

    Nothing but the jobs is stored of a run without a number: tests that are no part of one.
    """

    def __init__(self, ledger: FleetLedger, observer: RunObserver) -> None:
        self.ledger = ledger
        self.observer = observer
        self.fleet_run = ledger.fleet_run
        self.end_fleet = ledger.end_fleet
        self.store_worker = ledger.store_worker

    def combined_run_report(self, report: MatrixReport) -> MatrixReport:
        """Return the report of the run that is stored and shown."""
        return dataclasses.replace(report, configs=tuple(map(self._config_with_test_state, report.configs)))

    def _config_with_test_state(self, config: ConfigRun) -> ConfigRun:
        return config

    def _cost_with_config_names(self, cost: RunCost) -> RunCost:
        return cost

    def begin_run(self, report: MatrixReport) -> int:
        """Store a run, and return its number."""
        return self.ledger.begin_run(self.combined_run_report(report))

    def begin_fleet(self, run: FleetRun) -> None:
        """Store that a fleet run begins or is resumed."""
        self.ledger.begin_fleet(run)

    def show_run(self, report: MatrixReport) -> None:
        """Show that a run begins, which is stored."""
        self.observer.run_began(self.combined_run_report(report))

    def store_job(self, run: str, job: JobRecord) -> None:
        """Store the state of a job."""
        self.ledger.store_job(run, job)

    def update_config(self, run: int, config: ConfigRun) -> None:
        """Store and show the state of a config."""
        config = self._config_with_test_state(config)
        if run:
            self.ledger.update_config(run, config)
        self.observer.config_changed(config)

    def show_output_line(self, config: str, step: str, line: str) -> None:
        """Show a line of output of a config's step; it is empty when the step begins."""
        self.observer.output_line_received(config_of_job(config), step, line)

    def update_cost(self, run: int, cost: RunCost) -> None:
        """Store and show the cost of a run so far and in the end."""
        cost = self._cost_with_config_names(cost)
        if run:
            self.ledger.update_cost(run, cost)
        self.observer.run_cost_changed(cost)

    def end_run(self, report: MatrixReport) -> None:
        """Store and show that a run is over."""
        if report.run:
            self.ledger.end_run(report.run)
        self.observer.run_ended(self.combined_run_report(report))


class BuildBeforeTestsRecorder(RunRecorder):
    """The records of a run's builds, whose ``tested`` configs then wait for their tests: the run goes on."""

    def __init__(self, ledger: FleetLedger, observer: RunObserver, tested: Collection[str]) -> None:
        super().__init__(ledger, observer)
        self._tested = tested
        self._number = 0
        self._report: MatrixReport | None = None

    def begin_run(self, report: MatrixReport) -> int:
        """Store a run, and return its number."""
        self._number = super().begin_run(report)
        return self._number

    def end_run(self, report: MatrixReport) -> None:
        """Leave the run open for the tests, and keep the report until it is closed."""
        self._report = report

    def mark_earlier_tested_configs_done(self, untested: Collection[str]) -> None:
        """Store and show that all but the ``untested`` configs are done: the same packages have passed before."""
        passed, self._tested = set(self._tested).difference(untested), untested
        for config in () if self._report is None else self._report.configs:
            if config.config in passed and config.state in GOOD:
                super().update_config(self._number, config)

    def end_run_without_tests(self) -> None:
        """Store and show that the run is over, as no tests follow."""
        if self._report is not None:
            super().end_run(self._report)
        elif self._number:
            self.ledger.end_run(self._number)

    def _config_with_test_state(self, config: ConfigRun) -> ConfigRun:
        if config.config not in self._tested or config.state not in GOOD:
            return config
        return dataclasses.replace(config, state=ConfigState.WAITING, reason=PENDING, is_built=True)


class WorkerTestRecorder(RunRecorder):
    """The records of a run's tests, as states of its configs.

    ``report`` is that of the builds, whose run has begun if it has a number; without one, there is nothing but jobs.
    ``keys`` are the hashes over what is tested, by config, ``previous`` is the fleet run that the tests continue.
    """

    def __init__(
        self,
        ledger: FleetLedger,
        observer: RunObserver,
        *,
        report: MatrixReport | None,
        keys: Mapping[str, str],
        previous: FleetRun | None,
    ) -> None:
        super().__init__(ledger, observer)
        self._builds = {} if report is None else {config.config: config for config in report.configs}
        self._report = report
        self._keys = keys
        self._previous = previous
        self._has_begun = report is not None and report.run > 0

    def combined_run_report(self, report: MatrixReport) -> MatrixReport:
        """Return the report of a run whose tests are in a report of their own."""
        tests, built = report, self._report
        if built is None:
            return super().combined_run_report(tests)
        states = {config.config: config for config in map(self._config_with_test_state, tests.configs)}
        configs = tuple(states.get(config.config, config) for config in built.configs)
        machine = built.machine if built.machine == tests.machine else f"{built.machine}; tests: {tests.machine}"
        machine = tests.machine if not built.machine else machine
        cost = tests.cost and self._cost_with_config_names(tests.cost)
        finished = tests.finished
        return dataclasses.replace(built, run=tests.run, configs=configs, cost=cost, finished=finished, machine=machine)

    def begin_run(self, report: MatrixReport) -> int:
        """Store the run unless its builds have begun it, and return its number; 0 without a report."""
        if self._report is None:
            return 0
        if self._has_begun:
            for config in report.configs:
                self.ledger.update_config(self._report.run, self._config_with_test_state(config))
            return self._report.run
        return super().begin_run(report)

    def begin_fleet(self, run: FleetRun) -> None:
        """Store that a fleet run begins or is resumed; the machine types are those of its builds."""
        types = run.type if self._previous is None else self._previous.type
        super().begin_fleet(dataclasses.replace(run, type=types))

    def store_job(self, run: str, job: JobRecord) -> None:
        """Store the state of a job, with what it tests."""
        super().store_job(run, dataclasses.replace(job, key=self._keys[config_of_job(job.config)]))

    def show_run(self, report: MatrixReport) -> None:
        """Show that a run begins, unless its builds have shown it."""
        if not self._has_begun:
            super().show_run(report)

    def _cost_with_config_names(self, cost: RunCost) -> RunCost:
        """Return a cost with the configs' own names; it is unknown where that of the builds is."""
        ends = {config_of_job(name): end for name, end in cost.config_ends.items()}
        workers = () if self._previous is None else self._previous.workers
        is_known = all(worker.currency == cost.currency for worker in workers)
        return dataclasses.replace(cost, config_ends=ends, currency=cost.currency if is_known else "")

    def _config_with_test_state(self, config: ConfigRun) -> ConfigRun:
        """Return a config as the state of its tests makes it; what was built is kept, whatever they find."""
        tests, name = config, config_of_job(config.config)
        built = self._builds.get(name)
        if built is None:
            return dataclasses.replace(tests, config=name)
        state, steps = tests.state, (*built.steps, *tests.steps)
        if state is ConfigState.DONE:
            return dataclasses.replace(built, steps=steps)
        built = dataclasses.replace(built, is_built=True)
        if state is ConfigState.WAITING:
            return dataclasses.replace(built, state=state, reason=tests.reason or PENDING)
        if state is ConfigState.RUNNING:
            started, estimate = tests.started, tests.estimate
            return dataclasses.replace(
                built, state=state, worker=tests.worker, started=started, finished=None, estimate=estimate
            )
        if state is ConfigState.INTERRUPTED:
            return dataclasses.replace(built, state=state, worker=tests.worker, finished=tests.finished)
        return dataclasses.replace(
            built,
            state=state,
            worker=tests.worker,
            finished=tests.finished,
            steps=steps,
            log=tests.log or built.log,
            reason=f"its packages are built, and their tests on {tests.worker or 'a worker'} failed: {tests.reason}",
        )


def config_of_job(job: str) -> str:
    """Return the config that a job tests, or builds."""
    return job.removesuffix(TESTS_SUFFIX)
