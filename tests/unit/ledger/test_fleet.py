"""The ledger remembers the fleet's machines and jobs past a killed controller, and how long cells took."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kiln.ledger import Ledger
from kiln.ledger.fleet import FleetLedger, Took
from kiln.model.fleet import FleetRun, Job, JobState, Machine, MachineState
from kiln.model.run import CellRun, CellState, MatrixReport

if TYPE_CHECKING:
    from pathlib import Path

RUN = FleetRun(id="r1", provider="local", type="small", started=5.0, finished=None, number=3, lives=True, key="k")
MACHINE = Machine(name="kiln-r1-1", type="small", state=MachineState.ASKED, asked=6.0, hourly=0.5)
JOB = Job(config="a", machine="kiln-r1-1", attempt=1, state=JobState.ASKED, began=7.0, leader=True)


def test_a_run_is_found_with_the_latest_of_its_machines_and_jobs(tmp_path: Path) -> None:
    up = dataclasses.replace(MACHINE, state=MachineState.READY, id="i-1", up=9.0)
    home = dataclasses.replace(JOB, state=JobState.HOME, exit_code=0, ended=10.0)
    with FleetLedger(tmp_path / "l.sqlite") as ledger:
        ledger.begin_fleet(RUN)
        for machine in (MACHINE, up):
            ledger.keep_machine("r1", machine)
        for job in (JOB, home, dataclasses.replace(JOB, attempt=2)):
            ledger.keep_job("r1", job)
    with FleetLedger(tmp_path / "l.sqlite") as ledger:
        jobs = (home, dataclasses.replace(JOB, attempt=2))
        assert ledger.fleet("r1") == dataclasses.replace(RUN, machines=(up,), jobs=jobs)
        assert ledger.fleet("r2") is None
        ledger.end_fleet("r1")
        (found,) = ledger.fleets()
        assert (found.id, found.lives) == ("r1", False)
        assert found.finished is not None


@pytest.mark.processes
def test_a_run_whose_process_is_gone_does_not_live(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from kiln.ledger.fleet import FleetLedger;"
        "from kiln.model.fleet import FleetRun;"
        "FleetLedger(Path(sys.argv[1])).begin_fleet(FleetRun(id='r1', provider='', type='', started=1.0,"
        " finished=None, number=1, lives=True)); os.kill(os.getpid(), 9)"
    )
    subprocess.run((sys.executable, "-c", code, str(tmp_path / "l.sqlite")), check=False)
    with FleetLedger(tmp_path / "l.sqlite") as ledger:
        (found,) = ledger.fleets()
        assert found.finished is None
        assert not found.lives


def test_a_ledger_of_before_the_fleet_gets_its_tables(tmp_path: Path) -> None:
    Ledger(tmp_path / "l.sqlite").record("k", config="c", title="t", seconds=1, detail={})
    with FleetLedger(tmp_path / "l.sqlite") as ledger:
        assert ledger.fleets() == ()
        assert ledger.finished("k") is not None


def test_how_long_cells_took_is_told_for_leaders_and_followers_apart(tmp_path: Path) -> None:
    report = MatrixReport(
        run=0, command="", started=0.0, finished=None, machine="", cores=32, jobs=2, engine="", container=""
    )
    built = CellRun(config="a", state=CellState.DONE, group="g", leader=True, started=10.0, finished=110.0)
    with FleetLedger(tmp_path / "l.sqlite") as ledger:
        for cells in (
            (built, dataclasses.replace(built, config="b", state=CellState.FAILED)),
            (dataclasses.replace(built, leader=False, finished=30.0),),
            (dataclasses.replace(built, finished=60.0), dataclasses.replace(built, config="c", state=CellState.FOUND)),
        ):
            ledger.begin(dataclasses.replace(report, cells=cells))
        assert set(ledger.took()) == {
            Took(config="a", leader=True, seconds=50.0, cores=16.0),
            Took(config="a", leader=False, seconds=20.0, cores=16.0),
        }
