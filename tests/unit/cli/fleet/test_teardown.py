"""``kiln fleet down`` and ``sweep``, and runs that the ledger has lost."""

from __future__ import annotations

import dataclasses
import io
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import AlreadyRunning, CredentialsRefused, MachinesUnknown, UsageError
from kiln.cli import main
from kiln.cli.fleet import teardown
from kiln.cli.fleet.site import artifact_layout
from kiln.cli.fleet.teardown import confirm_termination, workers_of_user
from kiln.fleet import run as fleet_run
from kiln.fleet.detached.controller import ConfigInputHashes, RunKey
from kiln.fleet.model import FleetRun, WorkerRecord, WorkerState
from kiln.fleet.options import FleetOptions
from kiln.fleet.records import FleetLedger
from kiln.recipe.feedstock import Feedstock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


KEY = "k" * 64
CONFIGS: Any = [SimpleNamespace(config="c", inputs=SimpleNamespace(shared=KEY, key="key"))]
WORKER = WorkerRecord(name="kiln-r1-1", type="compute-16", state=WorkerState.READY, requested=1.0)
RUN = FleetRun(
    id="r1",
    provider="aws",
    type="compute-16",
    started=1.0,
    finished=None,
    number=0,
    lives=False,
    key=KEY,
    workers=(WORKER,),
)


@pytest.fixture
def recover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FleetRun | None]:
    """Recover with a provider that has machines of r1, as far as a folder names that run."""
    monkeypatch.setattr(teardown, "playbook_site", lambda *words, **_: words[2])
    monkeypatch.setattr(fleet_run, "recover_run", lambda *_, **__: RUN)

    def call(ledger: FleetLedger, **more: Any) -> FleetRun | None:
        options = FleetOptions(**{"provider": "aws", **more})
        return teardown.recover_or_end_unrecorded_runs(options, Feedstock(root=tmp_path), CONFIGS, ledger)

    return call


def write_note(tmp_path: Path, key: str = KEY) -> None:
    folder = tmp_path / "build_artifacts" / "fleet" / "r1"
    folder.mkdir(parents=True)
    fleet_run.write_run_note(dataclasses.replace(RUN, key=key), folder)


def test_a_run_that_was_lost_is_in_the_ledger_again_before_it_is_resumed(
    tmp_path: Path, recover: Callable[..., FleetRun | None]
) -> None:
    write_note(tmp_path)
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        assert recover(ledger) == RUN
        (stored,) = ledger.fleet_runs()
        assert (stored.id, stored.finished, stored.workers) == ("r1", None, (WORKER,))


def test_a_run_of_other_inputs_is_ended(
    tmp_path: Path, recover: Callable[..., FleetRun | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[object] = []
    monkeypatch.setattr(fleet_run, "tear_down_run", lambda _, run: ended.append(run))
    write_note(tmp_path, key="other")
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        assert recover(ledger, additional=True) is None
    assert ended == ["r1"]


def test_no_worker_is_started_beside_those_of_another_computer(
    tmp_path: Path, recover: Callable[..., FleetRun | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = {"run": "r7", "inputs": KEY[:16], "ended": False}
    monkeypatch.setattr(fleet_run, "list_existing_workers", lambda _: [machine])
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(AlreadyRunning, match="1 workers of the same recipe and build options exist") as error:
            recover(ledger)
        assert "kiln fleet down r7 --provider aws" in error.value.hint
        assert recover(ledger, additional=True) is None
        assert recover(ledger, provider="local") is None


def test_a_provider_that_cannot_be_asked_is_left_to_the_run(
    tmp_path: Path, recover: Callable[..., FleetRun | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> str:
        raise MachinesUnknown("the provider could not be asked")

    monkeypatch.setattr(fleet_run, "list_existing_workers", fail)
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        assert recover(ledger) is None


def test_a_run_is_not_detached_beside_another_one_of_the_same_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its controller is provisioned, which would notice it."""
    monkeypatch.setattr(teardown, "playbook_site", lambda *words, **_: words[2])
    machines: list[dict[str, object]] = []
    monkeypatch.setattr(fleet_run, "list_existing_workers", lambda _: machines)
    feedstock = Feedstock(root=tmp_path)

    def require(additional: bool = False, provider: str = "aws") -> None:
        with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
            options = FleetOptions(provider=provider, additional=additional)
            teardown.require_no_run_of_same_build(options, feedstock, CONFIGS, ledger)

    require()
    machines.append({"run": "r7", "inputs": KEY[:16], "ended": False})
    with pytest.raises(AlreadyRunning, match="of the fleet run r7"):
        require()
    require(provider="static")
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        ledger.begin_fleet(RUN)
    with pytest.raises(AlreadyRunning, match="the fleet run r1 of the same recipe and build options has not ended"):
        require(provider="static")
    inputs = {"c": ConfigInputHashes(group="g", shared=KEY, key="k")}
    key = RunKey(
        run="r2",
        provider="aws",
        machine="m",
        address="192.0.2.7",
        port=22,
        host_key="k",
        private_key="p",
        inputs=inputs,
    )
    key.write_key_file(feedstock.artifacts / "fleet" / "r2" / "key.json")
    with pytest.raises(AlreadyRunning, match="the fleet run r2 of the same recipe and build options is detached"):
        require()
    require(additional=True)
    inputs["c"] = ConfigInputHashes(group="g", shared="of another recipe", key="k")
    key.write_key_file(feedstock.artifacts / "fleet" / "r2" / "key.json")
    with pytest.raises(AlreadyRunning, match="r1"):
        require()


def test_a_run_that_cannot_be_torn_down_leaves_no_workers_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "meta.yaml").write_text("package: {name: a, version: 1}\n")
    removed = []

    def down(site: str, run: str) -> None:
        if site == "aws":
            raise CredentialsRefused("the provider does not accept the credentials", why=f"those of {run}")
        removed.append(run)

    monkeypatch.setattr(teardown, "playbook_site", lambda *words: words[3])
    monkeypatch.setattr(fleet_run, "tear_down_run", down)
    ledger_path = artifact_layout(Feedstock(root=tmp_path)).ledger
    with FleetLedger(ledger_path) as ledger:
        for number, provider in enumerate(("openstack", "aws", "local", "aws"), 1):
            ledger.begin_fleet(
                FleetRun(
                    id=f"r{number}", provider=provider, type="t", started=number, finished=None, number=0, lives=False
                )
            )
    assert main.run(["-C", str(tmp_path), "fleet", "down"]) == CredentialsRefused.exit_code
    assert sorted(removed) == ["r1", "r3"]
    errors = capsys.readouterr().err
    assert ("those of r2" in errors, "those of r4" in errors) == (True, True)
    with FleetLedger(ledger_path) as ledger:
        assert {run.id for run in ledger.fleet_runs() if run.finished is None} == {"r2", "r4"}
    assert main.run(["-C", str(tmp_path), "fleet", "down", "unknown", "r1"]) != 0
    assert removed[-1] == "r1"


WORKERS = [
    {"account_user": user, "run": "one", "name": f"kiln-one-{number}", "type": "compute-8", "state": "running"}
    for number, user in enumerate(("ann", "bob", ""), 1)
]


class Terminal(io.StringIO):
    """Standard input of a person who answers."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answer", "agreed"), [("y\n", True), ("Yes\n", True), ("\n", False), ("no\n", False), ("", False)]
)
def test_everybodys_workers_are_shown_before_anyone_is_asked(
    answer: str, agreed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert confirm_termination(WORKERS) is agreed
    output = capsys.readouterr().err
    assert [line.split()[0] for line in output.splitlines()[2:5]] == ["unknown", "ann", "bob"]
    assert "Terminate these 3 workers of 3 users? [y/N]" in output


def test_where_nobody_answers_it_is_an_error_and_without_workers_there_is_no_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError, match="these 2 workers of 2 users"):
        confirm_termination(workers_of_user("bob", WORKERS))
    assert confirm_termination([])


def test_the_timer_sweeps_for_the_same_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "meta.yaml").write_text("package: {name: a, version: 1}\n")
    argv = ["-C", str(tmp_path), "fleet", "sweep", "--provider", "aws", "--user", "ann", "--print-timer"]
    assert main.run(argv) == 0
    assert "fleet sweep --provider aws --user ann\n" in capsys.readouterr().out
    argv = ["-C", str(tmp_path), "fleet", "sweep", "--provider", "slurm", "--user", "ann"]
    assert main.run(argv) == UsageError.exit_code
    assert "--user is not for Slurm" in capsys.readouterr().err


@pytest.mark.parametrize("more", [(), ("--all", "--yes"), ("--print-timer",)])
def test_an_empty_name_does_not_stand_for_everybody(
    tmp_path: Path, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "meta.yaml").write_text("package: {name: a, version: 1}\n")
    argv = ["-C", str(tmp_path), "fleet", "sweep", "--provider", "aws", "--user", "", *more]
    assert main.run(argv) == UsageError.exit_code
    assert "argument --user: the value is empty" in capsys.readouterr().err
