"""The jobs that test packages on a worker: a lost connection begins them again, and an answer is not trusted."""

from __future__ import annotations

import json
import queue
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from kiln.base import process
from kiln.base.errors import FleetLimit, TestsFailed
from kiln.build.job.collected import ResultsCollected
from kiln.fleet.ansible.sessions import PlaybookSession
from kiln.fleet.protocol import (
    BuildFinished,
    BuildStarted,
    CollectFailed,
    CollectResults,
    CommandUndelivered,
    FollowBuild,
    JobsListed,
    QueryJobs,
    StartBuild,
    WorkerUnreachable,
)
from kiln.fleet.records import TESTS_SUFFIX
from kiln.fleet.tests import PackagesToTest, WorkerTestExecutor, stored_test_result

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.fleet.protocol import Command

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
        self.events: queue.Queue[Any] = queue.Queue()
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
