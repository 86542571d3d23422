"""The tests of built packages on a worker: whatever happens, it is terminated, and the ledger knows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import FleetLimit, ProvisionRefused, TestsFailed, WorkersLost
from kiln.fleet import inventory
from kiln.fleet import tests as fleet_tests
from kiln.fleet.ansible.playbooks import PlaybookSite
from kiln.fleet.model import FleetRun, JobRecord, JobState, Offer, WorkerRecord, WorkerState
from kiln.fleet.protocol import ProvisionWorkers, StartBuild
from kiln.fleet.records import TESTS_SUFFIX, FleetLedger
from kiln.fleet.run_config import FleetRunConfig
from kiln.fleet.tests import PackagesToTest, WorkerTestInputs
from kiln.state.results import ConfigRun, ConfigState, MatrixReport
from tests.fleets import HOUR, MACHINE, Faults, Killed, NullObserver, Simulation

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.base.errors import KilnError

GPU = dataclasses.replace(MACHINE, type="gpu-t4", name="g4dn.xlarge", hourly=1.0, gpus=1)
OTHER = dataclasses.replace(GPU, type="gpu-l4", name="g6.xlarge", hourly=2.0)
FIRST, SECOND = "kiln-r1-test-1", "kiln-r1-test-2"
CONFIGS = ("first", "second", "third")
SECONDS = 600.0


def packages(tmp_path: Path) -> PackagesToTest:
    folder = tmp_path / "channel" / "linux-64"
    folder.mkdir(parents=True, exist_ok=True)
    for name in CONFIGS:
        if not (folder / f"{name}.conda").exists():
            (folder / f"{name}.conda").write_text(name)
    paths = {name: (folder / f"{name}.conda",) for name in CONFIGS}
    return PackagesToTest(channel=tmp_path / "channel", packages=paths, gpu=True)


def inputs(tmp_path: Path, *, report: MatrixReport | None = None, passed: Any = (), **more: Any) -> WorkerTestInputs:
    tested = packages(tmp_path)
    run_config = FleetRunConfig(
        **{
            "id": "r1",
            "command": "",
            "machine_type": GPU,
            "estimates": tuple(fleet_tests.jobs_for_tests(tested, seconds=SECONDS, passed=passed)),
            "max_workers": 1,
            "startup": 240.0,
            "collect": 0.0,
            "key": fleet_tests.ALONE,
            "prefix": fleet_tests.PREFIX,
            **more,
        }
    )
    site = PlaybookSite(
        folder=tmp_path / "run", playbooks=tmp_path, python=tmp_path / "python", variables={}, environment={}
    )
    return WorkerTestInputs(run_config=run_config, site=site, tested=tested, report=report)


def simulation(tests: WorkerTestInputs, **faults: Any) -> Simulation:
    return Simulation(tests.run_config.estimates, faults=Faults(**faults), home=0.1)


def execute(
    tests: WorkerTestInputs, ledger: FleetLedger, executor: Simulation
) -> tuple[MatrixReport, Mapping[str, KilnError]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_tests, "WorkerTestExecutor", lambda *_: executor)
        return fleet_tests.run_tests_on_worker(tests, ledger, NullObserver())


def begun(executor: Simulation) -> list[str]:
    """Return the configs whose tests were begun, in their order."""
    return [
        command.config.removesuffix(TESTS_SUFFIX) for command in executor.commands if isinstance(command, StartBuild)
    ]


def offers(executor: Simulation) -> list[str]:
    """Return the machine types that were requested."""
    return [
        kind for item in executor.commands if isinstance(item, ProvisionWorkers) for kind, _, _ in item.offers.values()
    ]


def test_configs_are_tested_one_by_one_on_a_worker_that_is_terminated(tmp_path: Path) -> None:
    tests = inputs(tmp_path)
    executor = simulation(tests)
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        report, errors = execute(tests, ledger, executor)
        (run,) = ledger.fleet_runs()
        assert ledger.run_numbers() == (), "tests alone are no run over the matrix"
    assert ({config.config for config in report.configs}, errors) == (set(CONFIGS), {})
    assert begun(executor) == list(CONFIGS)
    (worker,) = run.workers
    assert (worker.name, worker.state, worker.type) == (FIRST, WorkerState.TERMINATED, "gpu-t4")
    assert {(job.config, job.state) for job in run.jobs} == {
        (f"{name}{TESTS_SUFFIX}", JobState.COLLECTED) for name in CONFIGS
    }
    assert {name for name, _ in fleet_tests.passed_configs([run])} == set(CONFIGS)
    assert not executor.workers
    cost = inventory.recorded_run_cost(run, None, executor.now())
    assert cost is not None
    assert cost.spent == pytest.approx((120 + 120 + 3 * 600) / HOUR, rel=0.2)
    (needs,) = [
        needs
        for command in executor.commands
        if isinstance(command, ProvisionWorkers)
        for needs in command.needs.values()
    ]
    assert needs.gpus == 1


def test_a_failed_config_does_not_stop_the_others(tmp_path: Path) -> None:
    tests = inputs(tmp_path)
    executor = simulation(tests, codes={f"first{TESTS_SUFFIX}": TestsFailed.exit_code})
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        report, errors = execute(tests, ledger, executor)
        passed = {name for name, _ in fleet_tests.passed_configs(ledger.fleet_runs())}
    assert {config.config: config.state for config in report.configs}["first"] is ConfigState.FAILED
    assert {name: type(error) for name, error in errors.items()} == {"first": TestsFailed}
    assert passed == {"second", "third"}
    results = {result.config: result for result in fleet_tests.results_of_all_configs(tests, report, errors)}
    assert results["first"].exit_code == TestsFailed.exit_code
    assert results["first"].reason


def test_a_refused_worker_is_requested_by_the_next_offer_then_again(tmp_path: Path) -> None:
    kinds = (Offer(machine_type=GPU), Offer(machine_type=OTHER))
    tests = inputs(tmp_path, type_offers={GPU: kinds})
    scarce = {("gpu-t4", False, ""): (0.0, 1000.0), ("gpu-l4", False, ""): (0.0, 100.0)}
    executor = simulation(tests, scarce=scarce)
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        _, errors = execute(tests, ledger, executor)
    assert not errors
    assert offers(executor)[:2] == ["gpu-t4", "gpu-l4"]
    assert offers(executor)[-1] == "gpu-l4", "asked for again, when there is one"
    tests = inputs(tmp_path)
    with FleetLedger(tmp_path / "other.sqlite") as ledger, pytest.raises(ProvisionRefused):
        execute(tests, ledger, simulation(tests, refused=frozenset({FIRST})))


def test_a_lost_worker_is_replaced_and_what_has_passed_is_not_tested_again(tmp_path: Path) -> None:
    tests = inputs(tmp_path)
    executor = simulation(tests, dies={FIRST: 240 + SECONDS + 300})
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        _, errors = execute(tests, ledger, executor)
        (run,) = ledger.fleet_runs()
    assert not errors
    assert begun(executor) == ["first", "second", "second", "third"]
    assert [worker.name for worker in run.workers] == [FIRST, SECOND]
    tests = inputs(tmp_path, replacements=0)
    with FleetLedger(tmp_path / "other.sqlite") as ledger, pytest.raises(WorkersLost):
        execute(tests, ledger, simulation(tests, dies={FIRST: 500.0}))


def test_killed_tests_go_on_with_their_worker(tmp_path: Path) -> None:
    tests = inputs(tmp_path)
    executor = simulation(tests, killed=240 + 2 * SECONDS + 300)
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            execute(tests, ledger, executor)
        (previous,) = ledger.fleet_runs()
        assert previous.finished is None
        executor.revive()
        before = len(executor.commands)
        again = inputs(tmp_path, previous_run=previous, passed=fleet_tests.passed_configs([previous]))
        assert [job.config for job in again.run_config.estimates] == [f"third{TESTS_SUFFIX}"]
        execute(again, ledger, executor)
        (run,) = ledger.fleet_runs()
    assert run.finished is not None
    assert [worker.name for worker in run.workers] == [FIRST]
    assert "third" not in {command.config for command in executor.commands[before:] if isinstance(command, StartBuild)}
    assert {name for name, _ in fleet_tests.passed_configs([run])} == set(CONFIGS)


def built(tmp_path: Path) -> tuple[MatrixReport, FleetRun]:
    """Return the report of a run that has built all configs on a worker, and the fleet run."""
    report = MatrixReport(
        run=0,
        command="kiln fleet run",
        started=1_789_990_000.0,
        finished=None,
        machine="1 x c7i",
        cores=16,
        jobs=1,
        engine="rattler-build",
        container="fleet r1",
        configs=tuple(ConfigRun(config=name, state=ConfigState.DONE, group="g") for name in (*CONFIGS, "cpu")),
    )
    worker = WorkerRecord(
        name="kiln-r1-1",
        type="compute-16",
        state=WorkerState.TERMINATED,
        requested=1_789_990_000.0,
        terminated=1_789_993_600.0,
        hourly=0.8,
        currency="EUR",
    )
    job = JobRecord(config="first", worker=worker.name, attempt=1, state=JobState.COLLECTED, started=report.started)
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        report = dataclasses.replace(report, run=ledger.begin_run(report))
        run = FleetRun(
            id="r1",
            provider="local",
            type="compute-16",
            started=report.started,
            finished=None,
            number=report.run,
            lives=True,
            key="inputs",
        )
        ledger.begin_fleet(run)
        ledger.store_worker("r1", worker)
        ledger.store_job("r1", job)
        ledger.end_fleet("r1")
        (run,) = ledger.fleet_runs()
    return report, run


def test_the_tests_of_a_run_are_part_of_its_report_its_cost_and_its_limit(tmp_path: Path) -> None:
    report, run = built(tmp_path)
    tests = inputs(tmp_path, report=report, previous_run=run, key="inputs")
    executor = simulation(tests, codes={f"second{TESTS_SUFFIX}": TestsFailed.exit_code})
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        result, errors = execute(tests, ledger, executor)
        stored, (fleet,) = ledger.run_report(report.run), ledger.fleet_runs()
        assert ledger.run_numbers() == (report.run,)
    assert list(errors) == ["second"]
    assert stored is not None
    assert {config.config: config.state for config in stored.configs} == {
        "first": ConfigState.DONE,
        "second": ConfigState.FAILED,
        "third": ConfigState.DONE,
        "cpu": ConfigState.DONE,
    }
    assert stored.configs == result.configs
    assert "its packages are built, and their tests on kiln-r1-test-2 failed" in stored.configs[1].reason
    assert (fleet.type, fleet.number, fleet.key) == ("compute-16", report.run, "inputs")
    assert [worker.name for worker in fleet.workers] == ["kiln-r1-1", SECOND], "numbers are given once"
    assert result.cost is not None
    assert result.cost.currency == "EUR"
    assert result.cost.spent == pytest.approx(0.8 + 2040 / HOUR, rel=0.1)
    report, run = built(tmp_path / "poor")
    tests = inputs(tmp_path, report=report, previous_run=run, key="inputs", cost_limit=1.0)
    with FleetLedger(tmp_path / "poor" / "ledger.sqlite") as ledger:
        with pytest.raises(FleetLimit, match=r"cost limit of 1\.00 EUR"):
            execute(tests, ledger, simulation(tests))
        stored = ledger.run_report(report.run)
    assert stored is not None
    states = {config.config: config.state for config in stored.configs}
    assert ConfigState.DONE not in {states["second"], states["third"]}, "which no test has passed"
