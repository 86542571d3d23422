"""The results of a detached run: each package has the hash of the report, and the run is stored as one of here."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import time
from pathlib import Path

import pytest

from kiln.base.errors import BrokenPackage, HashMismatch
from kiln.base.serialization import to_json
from kiln.fleet.detached import follow
from kiln.fleet.detached.controller import ConfigInputHashes
from kiln.fleet.model import FleetRun, JobRecord, JobState, WorkerRecord, WorkerState
from kiln.fleet.records import FleetLedger
from kiln.recipe.feedstock import Feedstock
from kiln.state.results import (
    Artifact,
    ConfigRun,
    ConfigState,
    ControllerCharge,
    MatrixReport,
    PackageReport,
    RunCost,
    TestReport,
    TestVerdict,
)
from kiln.state.store import cache
from kiln.state.store.cache import InputHashes, RemoteConfig
from tests.packages import release_package

SMALL = Path(__file__).parents[3] / "fixtures" / "small-feedstock"
CONFIG = "linux_64_cuda_compiler_versionNoneinterpreter3.11"
REMOTE = Path("/var/lib/kiln/project/build_artifacts/linux-64")


def fetched(folder: Path, *, path: Path | None = None) -> Path:
    """Write what a controller exports: one package, a log, the state."""
    package = release_package(folder / "packages" / "linux-64", "a")
    artifact = Artifact(
        path=path or REMOTE / package.name,
        sha256=hashlib.sha256(package.read_bytes()).hexdigest(),
        size=package.stat().st_size,
        config=CONFIG,
        name="a",
        version="1",
        build_string="0",
        subdir="linux-64",
    )
    tests = TestReport(package=package.name, verdict=TestVerdict.PASSED)
    report = PackageReport(artifact=artifact, build_seconds=1.0, reused=False, tests=tests)
    config = ConfigRun(config=CONFIG, state=ConfigState.DONE, group="cpu", started=1.0, packages=(report,))
    matrix = MatrixReport(
        run=1,
        command="kiln fleet run",
        started=1.0,
        finished=3.0,
        machine="m",
        cores=2,
        jobs=2,
        engine="rattler-build",
        container="none",
        configs=(config,),
    )
    worker = WorkerRecord(name="kiln-r-1", type="static", state=WorkerState.TERMINATED, requested=1.0, terminated=2.5)
    job = JobRecord(config=CONFIG, worker=worker.name, attempt=1, state=JobState.COLLECTED, started=1.0, finished=2.0)
    fleet = FleetRun(
        id="0a1b2c3d", provider="static", type="static", started=1.0, finished=3.0, number=1, lives=False,
        workers=(worker,), jobs=(job,),
    )  # fmt: skip
    (folder / "logs").mkdir()
    (folder / "logs" / f"{CONFIG}.log").write_text("built\n")
    state = {"kind": "state", "process": "ended", "exit_code": 0, "report": to_json(matrix), "fleet": to_json(fleet)}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def test_a_run_is_stored_once_as_if_it_had_been_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages enter the channel as finished builds of the inputs that were sent, whatever the recipe is now."""
    feedstock = Feedstock(root=Path(shutil.copytree(SMALL, tmp_path / "small")))
    kept: list[RemoteConfig] = []

    def keep(_: Feedstock, entry: RemoteConfig, packages: tuple[PackageReport, ...]) -> tuple[PackageReport, ...]:
        kept.append(entry)
        return packages

    monkeypatch.setattr(cache, "add_collected_packages", keep)
    inputs = {CONFIG: ConfigInputHashes(group="cpu", shared="1", key="2")}
    feedstock.artifacts.mkdir()
    report, fleet = follow.read_fetched_results(fetched(tmp_path / "fetched"))
    with FleetLedger(feedstock.artifacts / "ledger.sqlite") as ledger:
        follow.store_results_locally(feedstock, report, fleet, inputs=inputs, ledger=ledger)
        stored = follow.store_results_locally(
            feedstock, report, fleet, inputs=inputs, ledger=ledger
        )  # after an interruption
        assert len(ledger.run_numbers()) == 1
        known = ledger.run_report()
        assert known is not None
        assert (known.started, known.finished) == (1.0, 3.0)
        assert known.configs[0].packages == stored.configs[0].packages
        (run,) = ledger.fleet_runs()
    assert (run.workers, run.jobs, run.number) == (fleet.workers, fleet.jobs, stored.run)
    assert set(kept) == {RemoteConfig(config=CONFIG, group="cpu", inputs=InputHashes(shared="1", key="2"))}


def test_the_controller_is_charged_for_until_its_packages_are_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feedstock = Feedstock(root=Path(shutil.copytree(SMALL, tmp_path / "small")))
    feedstock.artifacts.mkdir()
    report, fleet = follow.read_fetched_results(fetched(tmp_path / "fetched"))
    charge = ControllerCharge(hourly=0.5, billed=1.0, since=3.0, currency="EUR", name="small")
    cost = RunCost(spent=0.0, expected=0.0, currency="EUR", end=3.0, controller=charge)
    monkeypatch.setattr(time, "time", lambda: 3.0 + 10 * 3600)
    with FleetLedger(feedstock.artifacts / "ledger.sqlite") as ledger:
        follow.store_results_locally(feedstock, dataclasses.replace(report, cost=cost), fleet, inputs={}, ledger=ledger)
        known = ledger.run_report()
    assert known is not None
    assert known.cost == dataclasses.replace(cost, spent=5.0, expected=5.0)


def test_a_collection_that_was_interrupted_in_the_ledger_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next run here would resume the one whose controller is gone, and its report would have no builds."""
    feedstock = Feedstock(root=Path(shutil.copytree(SMALL, tmp_path / "small")))
    feedstock.artifacts.mkdir()
    report, fleet = follow.read_fetched_results(fetched(tmp_path / "fetched"))
    unfinished = dataclasses.replace(fleet, finished=None)
    with FleetLedger(feedstock.artifacts / "ledger.sqlite") as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(FleetLedger, "store_worker", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                follow.store_results_locally(feedstock, report, unfinished, inputs={}, ledger=ledger)
        (run,) = ledger.fleet_runs()
        assert (run.finished, run.jobs) == (None, ())
        stored = follow.store_results_locally(feedstock, report, unfinished, inputs={}, ledger=ledger)
        (run,) = ledger.fleet_runs()
        assert run.finished is not None
        assert (run.workers, run.jobs, run.number) == (fleet.workers, fleet.jobs, stored.run)
        known = ledger.run_report()
        assert known is not None
        assert known.finished == report.finished
        assert len(ledger.run_numbers()) == 1


def test_a_corrupt_package_is_refused_and_fetched_anew(tmp_path: Path) -> None:
    folder = fetched(tmp_path / "fetched")
    package = folder / "packages" / "linux-64" / "a-1-0.conda"
    package.write_bytes(b"x")
    with pytest.raises(HashMismatch, match="is corrupt"):
        follow.read_fetched_results(folder)
    assert not package.exists()
    with pytest.raises(HashMismatch, match="is missing"):
        follow.read_fetched_results(folder)


def test_a_package_whose_name_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = fetched(tmp_path / "fetched")
    state = json.loads((folder / "state.json").read_text())
    state["report"]["configs"][0]["packages"][0]["artifact"]["subdir"] = "../../x"
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(BrokenPackage, match="is not the name of a package"):
        follow.read_fetched_results(folder)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "invalid state"),
        ("{}", "invalid state"),
        ('{"report": null, "output": ["error: no host"]}', "no results"),
        ('{"report": {"run": 1}, "fleet": null}', "invalid state"),
    ],
)
def test_an_invalid_state_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(BrokenPackage, match=fault):
        follow.read_fetched_results(tmp_path)


def test_without_a_feedstock_packages_and_logs_go_into_a_folder(tmp_path: Path) -> None:
    folder = fetched(tmp_path / "fetched")
    report, _ = follow.read_fetched_results(folder)
    follow.copy_results_into_folder(dataclasses.replace(report, run=7), folder, tmp_path / "to")
    names = {str(path.relative_to(tmp_path / "to")) for path in (tmp_path / "to").rglob("*") if path.is_file()}
    assert names == {"linux-64/a-1-0.conda", f"logs/{CONFIG}.log", "state.json"}
