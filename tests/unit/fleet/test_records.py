"""The ledger keeps the fleet's workers and jobs past a killed controller, and the durations of builds."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kiln.fleet import records
from kiln.fleet.model import FleetRun, JobRecord, JobState, WorkerRecord, WorkerState
from kiln.fleet.records import FleetLedger
from kiln.state.ledger.ledger import BuildDuration, Ledger
from kiln.state.results import CompileReport, ConfigRun, ConfigState, MatrixReport, StepReport

if TYPE_CHECKING:
    from pathlib import Path

RUN = FleetRun(id="r1", provider="local", type="small", started=5.0, finished=None, number=3, lives=True, key="k")
WORKER = WorkerRecord(name="kiln-r1-1", type="small", state=WorkerState.REQUESTED, requested=6.0, hourly=0.5)
JOB = JobRecord(config="a", worker="kiln-r1-1", attempt=1, state=JobState.REQUESTED, started=7.0, cold=True)
RESERVE = records.RESERVE  # as it is when tests are collected, before the fixture that makes it small


def test_a_run_has_the_latest_records_of_its_workers_and_jobs(tmp_path: Path) -> None:
    up = dataclasses.replace(WORKER, state=WorkerState.READY, id="i-1", provisioned=9.0)
    home = dataclasses.replace(JOB, state=JobState.COLLECTED, exit_code=0, finished=10.0)
    with FleetLedger(tmp_path / "l.sqlite") as ledger:
        ledger.begin_fleet(RUN)
        for worker in (WORKER, up):
            ledger.store_worker("r1", worker)
        for job in (JOB, home, dataclasses.replace(JOB, attempt=2)):
            ledger.store_job("r1", job)
    with FleetLedger(tmp_path / "l.sqlite") as ledger:
        jobs = (home, dataclasses.replace(JOB, attempt=2))
        assert ledger.fleet_run("r1") == dataclasses.replace(RUN, workers=(up,), jobs=jobs)
        assert ledger.fleet_run("r2") is None
        ledger.end_fleet("r1")
        (result,) = ledger.fleet_runs()
        assert (result.id, result.lives) == ("r1", False)
        assert result.finished is not None


def test_a_run_reserves_space_in_the_ledger_and_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RESERVE", RESERVE)
    path, log = tmp_path / "l.sqlite", tmp_path / "l.sqlite-wal"
    with FleetLedger(path) as ledger:
        ledger.begin_fleet(RUN)
        assert min(path.stat().st_size, log.stat().st_size) >= RESERVE >= 1 << 20


def test_the_end_of_a_run_ends_its_workers_and_what_they_built(tmp_path: Path) -> None:
    refused = dataclasses.replace(WORKER, name="kiln-r1-2", state=WorkerState.REFUSED, reason="quota", terminated=8.0)
    ended = dataclasses.replace(WORKER, name="kiln-r1-3", state=WorkerState.TERMINATED, terminated=9.0)
    collected = dataclasses.replace(JOB, config="b", state=JobState.COLLECTED, exit_code=0, finished=10.0)
    with FleetLedger(tmp_path / "l.sqlite") as ledger:
        ledger.begin_fleet(RUN)
        for worker in (dataclasses.replace(WORKER, state=WorkerState.READY), refused, ended):
            ledger.store_worker("r1", worker)
        for job in (dataclasses.replace(JOB, state=JobState.RUNNING), collected):
            ledger.store_job("r1", job)
        ledger.end_fleet("r1")
        (run,) = ledger.fleet_runs()
    assert run.workers[0].state is WorkerState.TERMINATED
    assert run.workers[0].terminated == run.finished
    assert run.workers[1:] == (refused, ended)
    assert [(job.config, job.state) for job in run.jobs] == [("a", JobState.LOST), ("b", JobState.COLLECTED)]
    assert run.jobs[0].reason


@pytest.mark.processes
def test_a_run_whose_process_is_gone_does_not_live(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from kiln.fleet.records import FleetLedger;"
        "from kiln.fleet.model import FleetRun;"
        "FleetLedger(Path(sys.argv[1])).begin_fleet(FleetRun(id='r1', provider='', type='', started=1.0,"
        " finished=None, number=1, lives=True)); os.kill(os.getpid(), 9)"
    )
    subprocess.run((sys.executable, "-c", code, str(tmp_path / "l.sqlite")), check=False)
    with FleetLedger(tmp_path / "l.sqlite") as ledger:
        (result,) = ledger.fleet_runs()
        assert result.finished is None
        assert not result.lives


def test_a_ledger_without_the_fleets_tables_gets_them(tmp_path: Path) -> None:
    Ledger(tmp_path / "l.sqlite").store_step("k", config="c", title="t", seconds=1, detail={})
    with FleetLedger(tmp_path / "l.sqlite") as ledger:
        assert ledger.fleet_runs() == ()
        assert ledger.finished_step("k") is not None


def test_durations_are_kept_for_cold_and_warm_builds_but_not_for_rehearsals(tmp_path: Path) -> None:
    report = MatrixReport(
        run=0, command="", started=0.0, finished=None, machine="", cores=32, jobs=2, engine="", container=""
    )
    built = ConfigRun(config="a", state=ConfigState.DONE, group="g", cold=True, started=10.0, finished=110.0)
    with FleetLedger(tmp_path / "l.sqlite") as ledger:
        for configs in (
            (built, dataclasses.replace(built, config="b", state=ConfigState.FAILED)),
            (dataclasses.replace(built, cold=False, finished=30.0),),
            (
                dataclasses.replace(built, finished=60.0),
                dataclasses.replace(built, config="c", state=ConfigState.CACHED),
            ),
        ):
            ledger.begin_run(dataclasses.replace(report, configs=configs))
        compiled = CompileReport(hits=0, misses=9, internal=0, seconds=2.0, remote=9)
        step = StepReport(title="compile", seconds=2.0, compile=compiled)
        ledger.begin_run(
            dataclasses.replace(report, configs=(dataclasses.replace(built, finished=12.0, steps=(step,)),))
        )
        quick = dataclasses.replace(built, finished=11.0)
        ledger.begin_run(dataclasses.replace(report, rehearsal=True, configs=(quick,)))
        assert set(ledger.last_build_durations()) == {
            BuildDuration(config="a", cold=True, seconds=50.0, cores=16.0),
            BuildDuration(config="a", cold=False, seconds=20.0, cores=16.0),
        }
