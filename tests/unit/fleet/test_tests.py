"""The tests of built packages on a worker: whatever happens, it is terminated, and the ledger knows."""

from __future__ import annotations

import dataclasses
import json
import queue
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from kiln.base import process
from kiln.base.errors import FleetLimit, TestsFailed
from kiln.build.job.collected import ResultsCollected
from kiln.fleet import inventory
from kiln.fleet import tests as fleet_tests
from kiln.fleet.ansible.playbooks import PlaybookSite
from kiln.fleet.ansible.sessions import PlaybookSession
from kiln.fleet.model import FleetRun, JobRecord, JobState, WorkerRecord, WorkerState
from kiln.fleet.protocol import (
    BuildFinished,
    BuildStarted,
    CollectFailed,
    CollectResults,
    CommandUndelivered,
    FollowBuild,
    JobsListed,
    ProvisionWorkers,
    QueryJobs,
    StartBuild,
    WorkerUnreachable,
)
from kiln.fleet.records import TESTS_SUFFIX, FleetLedger
from kiln.fleet.tests import PackagesToTest, WorkerTestExecutor, WorkerTestInputs, stored_test_result
from kiln.state.results import ConfigRun, ConfigState, MatrixReport
from tests.fleets import HOUR, MACHINE, Faults, Killed, NullObserver, Simulation, run_config

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.base.errors import KilnError
    from kiln.fleet.protocol import Command

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
    jobs = fleet_tests.jobs_for_tests(tested, seconds=SECONDS, passed=passed)
    fields = {"machine_type": GPU, "max_workers": 1, "startup": 240.0, "collect": 0.0, "key": fleet_tests.ALONE}
    config = run_config(jobs, **{**fields, "prefix": fleet_tests.PREFIX, **more})
    site = PlaybookSite(
        folder=tmp_path / "run", playbooks=tmp_path, python=tmp_path / "python", variables={}, environment={}
    )
    return WorkerTestInputs(run_config=config, site=site, tested=tested, report=report)


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


REPORT = {"package": "a", "verdict": "passed", "tests": 2, "seconds": 0.1, "gpus": ["T4"], "log": "/x"}
WORKER, JOB = "kiln-r1-test-1", f"one{TESTS_SUFFIX}"
TARGET = "/var/lib/kiln/project/build_artifacts"


def answer(exit_code: int, tail: str = "", stdout: str = "") -> process.ProcessResult:
    return process.ProcessResult(argv=(), exit_code=exit_code, tail=tail, stdout=stdout, seconds=3.0)


GOOD = answer(0, stdout=json.dumps([REPORT]))


class Session:
    """A session whose worker gives ``answers`` to tests, ``sending`` to transfers and ``other`` to other commands."""

    def __init__(self, folder: Path, *answers: process.ProcessResult) -> None:
        self.site = SimpleNamespace(folder=folder, poll=0.0)
        self.answers, self.sending, self.other = list(answers), [answer(0)], [answer(0)]
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.configs: dict[str, str] = {}
        self.stopped = threading.Event()
        self.commands: list[str] = []
        self.sent: list[str] = []
        self.steps: list[str] = []

    def must_still_follow(self, _: str) -> bool:
        return bool(self.answers)

    def report_step(self, config: str, step: str) -> None:
        self.steps.append(f"{config}: {step}")

    def ssh(self, _: str, words: str, **more: object) -> process.ProcessResult:
        self.commands.append(words)
        if "kiln test" not in words and "-m kiln" not in words:
            return self.other.pop(0) if len(self.other) > 1 else self.other[0]
        result = self.answers[0]
        self.answers = self.answers[1:] or [answer(255)]
        return result

    def send_files_to_worker(self, _: str, paths: list[str], target: str) -> process.ProcessResult:
        self.sent += [*paths, target]
        return self.sending.pop(0) if len(self.sending) > 1 else self.sending[0]


def executor(tmp_path: Path, session: Session, monkeypatch: pytest.MonkeyPatch) -> WorkerTestExecutor:
    monkeypatch.setattr(PlaybookSession, "from_site", lambda *_, **__: session)
    channel = tmp_path / "channel"
    (channel / "linux-64").mkdir(parents=True, exist_ok=True)
    path = channel / "linux-64" / "one.conda"
    path.write_text("package")
    tested = PackagesToTest(channel=channel, packages={"one": (path,)}, limits={"one": 90.0}, gpu=True)
    return WorkerTestExecutor(cast("Any", session.site), tested)


def events(run: WorkerTestExecutor, command: Command) -> list[Any]:
    """Return the events of a command, heartbeats aside."""
    run.execute_command_now(command)
    session = cast("Any", run.session)
    found = [session.events.get_nowait() for _ in range(session.events.qsize())]
    return [event for event in found if type(event).__name__ != "Heartbeat"]


def test_a_config_is_tested_with_its_packages_in_a_unit_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(tmp_path / "run", GOOD)
    session.other = [answer(0), answer(0, stdout="computed on a T4")]
    run = executor(tmp_path, session, monkeypatch)
    assert events(run, StartBuild(worker=WORKER, config=JOB)) == [BuildStarted(worker=WORKER, config=JOB)]
    assert events(run, FollowBuild(worker=WORKER, config=JOB)) == [
        BuildFinished(worker=WORKER, config=JOB, exit_code=0)
    ]
    stop, test, output = session.commands
    assert "sudo runuser -u kiln -- sh -c 'tail " in output
    assert f"{TARGET}/check/*.log" in output
    assert "systemctl stop kiln-test.service" in stop
    assert "systemd-run --quiet --wait --pipe --collect --unit=kiln-test.service --uid=kiln" in test
    assert test.endswith(f"test --json --gpu {TARGET}/linux-64/one.conda")
    assert session.sent == [f"{tmp_path}/channel/./linux-64/one.conda", TARGET]
    key = run.tested.inputs_hash("one")
    (collected,) = events(run, CollectResults(worker=WORKER, config=JOB, key=key))
    assert isinstance(collected, ResultsCollected)
    assert (collected.packages, collected.reason) == ((), "")
    (step,) = collected.steps
    assert (step.seconds, step.failed, step.notes) == (3.0, False, ("2 tests of 1 package", "T4"))
    result = stored_test_result(session.site.folder, "one", key=key)
    assert result is not None
    assert "log" not in result.reports[0], "of the worker's report only what is known"
    report, _, printed = (tmp_path / "run" / "logs" / "one.test.log").read_text().rpartition("\n")
    assert (json.loads(report), printed) == ([REPORT], "computed on a T4")


def test_a_result_of_other_packages_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(tmp_path / "run", GOOD)
    run = executor(tmp_path, session, monkeypatch)
    (none,) = events(run, CollectResults(worker=WORKER, config=JOB, key=run.tested.inputs_hash("one")))
    assert isinstance(none, CollectFailed)
    assert none.foreign
    run.execute_command_now(FollowBuild(worker=WORKER, config=JOB))
    before = run.tested.inputs_hash("one")
    (path,) = run.tested.packages["one"]
    path.write_text("another package")
    assert run.tested.inputs_hash("one") != before
    assert PackagesToTest(channel=tmp_path, packages=run.tested.packages).inputs_hash("one") != run.tested.inputs_hash(
        "one"
    ), "no GPU"
    assert stored_test_result(session.site.folder, "one", key=run.tested.inputs_hash("one")) is None


def test_after_a_lost_connection_the_tests_begin_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(tmp_path / "run", answer(255), answer(-15), GOOD)
    session.other, session.sending = [answer(255), answer(0)], [answer(255), answer(0)]
    run = executor(tmp_path, session, monkeypatch)
    *lost, last = events(run, FollowBuild(worker=WORKER, config=JOB))
    assert lost == [WorkerUnreachable(worker=WORKER)] * 4, "the stop, the transfer, and two tests"
    assert last == BuildFinished(worker=WORKER, config=JOB, exit_code=0)


def test_tests_that_are_killed_again_and_again_do_not_occupy_a_worker_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker answers, and is paid for: nothing else would end this before its lifetime."""
    session = Session(tmp_path / "run", *[answer(255)] * 9, GOOD)
    run = executor(tmp_path, session, monkeypatch)
    *lost, end = events(run, FollowBuild(worker=WORKER, config=JOB))
    assert {type(event) for event in lost} == {WorkerUnreachable}
    assert isinstance(end, BuildFinished)
    assert (end.exit_code, end.reason.endswith("3 times")) == (None, True)
    assert len(session.answers) == 7


def test_packages_that_cannot_be_written_are_tested_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(tmp_path / "run", GOOD)
    session.sending = [answer(11, "No space left on device")]
    (event,) = events(executor(tmp_path, session, monkeypatch), FollowBuild(worker=WORKER, config=JOB))
    assert event.exit_code is None
    assert "No space left" in event.reason


@pytest.mark.parametrize(
    ("result", "exit_code", "reason"),
    [
        (answer(19, "error: the tests of a fail\n"), 19, "error: the tests of a fail"),
        (answer(10, "error: as one of rsync's codes"), 10, "as one of rsync's codes"),
        (answer(process.TIMED_OUT), FleetLimit.exit_code, "longer than 90 s"),
        (answer(0, stdout="no JSON"), TestsFailed.exit_code, "invalid report"),
        (answer(0, stdout='[{"package": "a"}]'), TestsFailed.exit_code, "invalid report"),
        (answer(0, stdout="[]"), TestsFailed.exit_code, "invalid report"),
    ],
)
def test_an_answer_that_is_no_report_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: process.ProcessResult, exit_code: int, reason: str
) -> None:
    run = executor(tmp_path, Session(tmp_path / "run", result), monkeypatch)
    (event,) = events(run, FollowBuild(worker=WORKER, config=JOB))
    assert (event.exit_code, reason in event.reason) == (exit_code, True)
    (collected,) = events(run, CollectResults(worker=WORKER, config=JOB, key=run.tested.inputs_hash("one")))
    assert (collected.steps[0].failed, reason in collected.reason) == (True, True)
    assert collected.log == tmp_path / "run" / "logs" / "one.test.log"


def test_the_reason_of_a_failure_is_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line of a reason is in the tables; sudo warns on a host that cannot look up its own name."""
    before, error = (
        "sudo: unable to resolve host gpu\ntest a-1-0.conda",
        "error: a fails\n  why: it ends with\n    | error: 4",
    )
    run = executor(tmp_path, Session(tmp_path / "run", answer(19, f"{before}\n{error}\n")), monkeypatch)
    (event,) = events(run, FollowBuild(worker=WORKER, config=JOB))
    assert event.reason == error


def test_a_worker_that_answers_goes_on_with_its_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(tmp_path / "run", GOOD)
    session.other = [answer(0), answer(255)]
    run = executor(tmp_path, session, monkeypatch)
    query = QueryJobs(worker=WORKER, keys={JOB: "k"})
    assert events(run, query) == [JobsListed(worker=WORKER, jobs={JOB: "running"})]
    assert events(run, query) == [CommandUndelivered(command=query, reason="no answer")]
