"""The tests of built packages on a worker: whatever happens, it is terminated, and the ledger knows."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from kiln import process_runner
from kiln.errors import ProvisionRefused, TestsFailed, WorkersLost
from kiln.fleet import costs, worker_tests
from kiln.fleet.executor_state import PlaybookSession
from kiln.fleet.playbook_runner import PlaybookResult
from kiln.fleet.worker_tests import ConfigTestResult, WorkerTestInputs
from kiln.ledger.fleet import FleetLedger
from kiln.model.fleet import WorkerState
from tests.fleets import MACHINE

if TYPE_CHECKING:
    from pathlib import Path

REPORT = {"package": "a", "verdict": "passed", "tests": 2, "seconds": 0.1, "gpus": ["T4"], "log": "/x"}


class Site:
    """Playbooks and ssh that answer as a worker would: ``failing`` is a playbook, ``answers`` are by config."""

    def __init__(self, failing: str = "", answers: dict[str, process_runner.Result] | None = None) -> None:
        self.failing, self.answers = failing, answers or {}
        self.played: list[str] = []
        self.variables: list[Any] = []
        self.commands: list[str] = []
        self.sent: list[str] = []

    def play(self, name: str, **more: Any) -> PlaybookResult:
        self.played.append(name)
        self.variables.append(more.get("variables"))
        ok = name != self.failing
        return PlaybookResult(ok=ok, reasons={} if ok else {"localhost": "no capacity"}, answer={"left": []})

    def ssh(self, _: str, words: str, **more: object) -> process_runner.Result:
        self.commands.append(words)
        good = process_runner.Result(argv=(), exit_code=0, tail="", stdout=json.dumps([REPORT]), seconds=1.0)
        return next((answer for config, answer in self.answers.items() if config in words), good)

    def send(self, _: str, paths: list[str], target: str) -> process_runner.Result:
        self.sent += [*paths, target]
        return process_runner.Result(argv=(), exit_code=0, tail="", stdout="", seconds=1.0)


def execute(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ConfigTestResult, ...]:
    session = SimpleNamespace(playbooks=site, ssh=site.ssh, send=site.send)
    monkeypatch.setattr(PlaybookSession, "of", lambda _: session)
    monkeypatch.setattr("kiln.fleet.run.down", lambda *_: site.played.append("down.yml"))
    channel = tmp_path / "channel"
    (channel / "linux-64").mkdir(parents=True)
    packages = {name: (channel / "linux-64" / f"{name}.conda",) for name in ("one", "two")}
    for (path,) in packages.values():
        path.write_text("package")
    tests = WorkerTestInputs(
        run="r1",
        site=cast("Any", SimpleNamespace(folder=tmp_path / "run")),
        machine_type=MACHINE,
        channel=channel,
        packages=packages,
        limits={},
        gpu=True,
        spot=False,
        lease=60.0,
    )
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        try:
            return worker_tests.execute(tests, ledger, lambda _: None)
        finally:
            (run,) = ledger.fleets()
            assert run.finished is not None
            (worker,) = run.workers
            cost = costs.of_run(run, None, run.finished)
            assert cost is not None
            assert cost.currency == MACHINE.currency
            if site.failing == "provision.yml":
                assert (worker.state, worker.reason, cost.spent) == (WorkerState.REFUSED, "no capacity", 0.0)
            else:
                assert worker.state is WorkerState.TERMINATED
                assert cost.spent >= MACHINE.hourly / 3600  # its billing increment is a second


def failed(exit_code: int, tail: str, stdout: str = "") -> process_runner.Result:
    return process_runner.Result(argv=(), exit_code=exit_code, tail=tail, stdout=stdout, seconds=1.0)


def test_each_config_is_tested_with_its_packages_on_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    one, two = execute(site, tmp_path, monkeypatch)
    assert site.played == ["provision.yml", "prepare.yml", "down.yml"]
    (request,) = site.variables[0]["kiln_machines"]
    assert (request["name"], request["needs"]) == ("kiln-r1-1", {"gpus": 1})
    target = "/var/lib/kiln/project/build_artifacts"
    assert site.sent == [f"{tmp_path}/channel/./linux-64/{name}.conda" for name in ("one", "two")] + [target]
    assert site.commands[0].endswith(f"test --json --gpu {target}/linux-64/one.conda")
    assert (one.config, one.exit_code, one.reports[0]["gpus"]) == ("one", 0, ["T4"])
    assert "log" not in two.reports[0], "of the worker's report only what is known"
    assert json.loads((tmp_path / "run" / "logs" / "two.test.log").read_text()) == [REPORT]


def test_a_failed_config_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(answers={"one.conda": failed(19, "error: the tests of a fail\n")})
    one, two = execute(site, tmp_path, monkeypatch)
    assert (one.exit_code, one.reason, one.reports) == (19, "error: the tests of a fail", ())
    assert two.exit_code == 0


@pytest.mark.parametrize(
    ("answer", "exit_code", "reason"),
    [
        (failed(255, ""), WorkersLost.exit_code, "did not answer"),
        (failed(0, "", stdout="no JSON"), TestsFailed.exit_code, "invalid report"),
        (failed(0, "", stdout='[{"package": "a"}]'), TestsFailed.exit_code, "invalid report"),
        (failed(0, "", stdout="[]"), TestsFailed.exit_code, "invalid report"),
    ],
)
def test_an_answer_that_is_no_report_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: process_runner.Result, exit_code: int, reason: str
) -> None:
    one, _ = execute(Site(answers={"one.conda": answer}), tmp_path, monkeypatch)
    assert one.exit_code == exit_code
    assert reason in one.reason


@pytest.mark.parametrize(("playbook", "error"), [("provision.yml", ProvisionRefused), ("prepare.yml", WorkersLost)])
def test_a_worker_that_is_refused_or_unprepared_is_torn_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, playbook: str, error: type[Exception]
) -> None:
    site = Site(failing=playbook)
    with pytest.raises(error) as refused:
        execute(site, tmp_path, monkeypatch)
    assert "no capacity" in str(refused.value)
    assert site.played[-1] == "down.yml"
    assert site.commands == []
