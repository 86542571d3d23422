"""Ledgers of older kilns: migrated when they are opened, whole or damaged."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import LedgerFault
from kiln.fleet.model import JobState, WorkerState
from kiln.fleet.records import FleetLedger
from kiln.state.ledger import schema
from kiln.state.results import ConfigState

if TYPE_CHECKING:
    from pathlib import Path

DETAIL = {"group": "cpu", "leader": True, "machine": "m-1", "estimate": 3.0, "reason": "", "log": None}
JOB = {
    "config": "a",
    "machine": "m-1",
    "attempt": 1,
    "state": "home",
    "began": 5.0,
    "leader": True,
    "ended": 6.0,
    "exit_code": 0,
    "reason": "",
}
MACHINE = {
    "name": "m-1",
    "type": "compute-8",
    "state": "gone",
    "asked": 1.0,
    "hourly": 0.1,
    "id": "i",
    "up": 2.0,
    "gone": 7.0,
    "reason": "",
}
RUN = {
    "machine": "m",
    "cores": 2,
    "jobs": 1,
    "engine": "rattler-build",
    "container": "host",
    "image": None,
    "rehearsal": False,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a ledger of schema 2, as it was written before workers and configs had these names."""
    path = tmp_path / "ledger.sqlite"
    old = schema.RUNS + schema.FLEET
    old = old.replace("config_run_state", "cell_of_config").replace("config_run", "cell").replace("worker", "machine")
    with sqlite3.connect(path) as connection:
        connection.executescript(old)
        connection.execute("INSERT INTO step VALUES ('k', 'a', 'cell', 1, 2, '{\"packages\": []}')")
        connection.execute("INSERT INTO run VALUES (1, 'kiln build', 1, 9, 'nobody', ?)", (json.dumps(RUN),))
        detail = json.dumps({**DETAIL, "steps": [], "packages": []})
        for number, (config, state) in enumerate({"a": "found", "b": "elsewhere", "c": "done"}.items()):
            row = (config, number, state, 1, 5, 7, detail)
            connection.execute("INSERT INTO cell VALUES (1, ?, ?, ?, ?, ?, ?, ?)", row)
            connection.execute("INSERT INTO change (run, config, state, at) VALUES (1, ?, ?, 2)", (config, state))
        connection.execute("INSERT INTO fleet VALUES ('f', 'aws', 'compute-8', 1, 9, 'nobody', 1, '')")
        connection.execute("INSERT INTO machine VALUES ('f', 'm-1', ?)", (json.dumps(MACHINE),))
        connection.execute("INSERT INTO job VALUES ('f', 'a', 1, ?)", (json.dumps(JOB),))
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    return path


def check(path: Path) -> None:
    """Compare all that was in the old ledger."""
    with FleetLedger(path) as ledger:
        report = ledger.run_report(1)
        assert report is not None
        states = [config.state for config in report.configs]
        assert states == [ConfigState.CACHED, ConfigState.LOCKED, ConfigState.DONE]
        assert {(config.cold, config.worker) for config in report.configs} == {(True, "m-1")}
        assert [state for _, state, _ in ledger.config_state_changes(1)] == states
        (step,) = ledger.latest_steps("config")
        assert step.config == "a"
        fleet = ledger.fleet_run("f")
        assert fleet is not None
        (worker,) = fleet.workers
        assert (worker.name, worker.state) == ("m-1", WorkerState.TERMINATED)
        assert (worker.requested, worker.provisioned, worker.terminated) == (1.0, 2.0, 7.0)
        (job,) = fleet.jobs
        assert (job.worker, job.cold, job.state) == ("m-1", True, JobState.COLLECTED)
        assert (job.started, job.finished) == (5.0, 6.0)
        (build,) = ledger.last_build_durations()
        assert (build.config, build.cold, build.seconds) == ("c", True, 4.0)


def test_a_ledger_of_schema_2_is_migrated_once(path: Path) -> None:
    check(path)
    check(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    assert not names & {"cell", "machine", "cell_of_config"}


def test_a_damaged_ledger_of_schema_2_is_migrated_while_it_is_repaired(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO run VALUES (2, 'kiln build', 1, 9, 'nobody', 'no JSON')")
    connection.close()
    with FleetLedger(path) as ledger:
        ledger.run_report(2)
    check(path)
    assert path.with_name(path.name + ".broken").exists()


def test_a_ledger_of_schema_2_that_cannot_be_written_is_refused(path: Path) -> None:
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        with FleetLedger(path) as ledger:
            ledger.run_report(1)
    except LedgerFault as fault:
        assert "schema 2" in fault.what  # noqa: PT017 - root may write all the same, and then it is migrated
    finally:
        path.parent.chmod(0o755)
        path.chmod(0o644)
    check(path)
