"""Detached runs: started, stopped and collected, with no worker left behind."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import yaml

from kiln.base import bootstrap, files, locks, process
from kiln.base.errors import AlreadyRunning, BrokenPackage, MachinesUnknown, TeardownIncomplete, UsageError
from kiln.base.serialization import to_json
from kiln.cli import main
from kiln.cli.fleet import detached, teardown
from kiln.cli.fleet.options import controller_charge
from kiln.cli.fleet.site import artifact_layout
from kiln.fleet import run
from kiln.fleet import run as fleet
from kiln.fleet.detached import controller
from kiln.fleet.detached.controller import RunKey
from kiln.fleet.model import FleetRun, WorkerRecord, WorkerState
from kiln.fleet.options import FleetOptions
from kiln.fleet.plan import run as fleet_plan
from kiln.recipe.feedstock import Feedstock, load
from kiln.state.results import ControllerCharge, MatrixReport, RunCost
from tests.fleets import fleet_options
from tests.unit.fleet.detached.test_follow import fetched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

RUN = "0a1b2c3d"


class Connection:
    """A controller that gives these answers to `state`, one after the other; None is not an answer."""

    def __init__(self, *answers: str | None) -> None:
        self.answers_left = list(answers)
        self.requests: list[str] = []

    def send_request(self, what: str) -> None:
        self.requests.append(what)

    def confirm_collected(self) -> bool:
        self.requests.append("collected")
        return False

    def run_state(self) -> dict[str, Any]:
        answer = self.answers_left.pop(0) if self.answers_left else None
        if answer is None:
            raise MachinesUnknown("the controller cannot be reached")
        return {"process": answer}

    def is_answering(self) -> bool:
        return False

    def export_results_on_controller(self) -> dict[str, Any]:
        return {"process": "ended", "exit_code": 0, "report": {}, "output": ["\x1b[2Jkiln: done\tnow"]}

    def fetch_exported_files(self, folder: Path, files: Mapping[str, int | None]) -> None:
        fetched(folder)

    def stream_config_log(self, config: str, on_line: Callable[[str], None]) -> None:
        on_line(f"{config}: \x1b]0;title\x07 it builds")


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is removed at the provider, in its order."""
    names: list[str] = []
    monkeypatch.setattr(detached, "LOOK", 0.0)
    monkeypatch.setattr(detached, "site_of_controller_started_here", lambda *_: "site")
    monkeypatch.setattr(detached, "playbook_site", lambda *words: words[3])
    monkeypatch.setattr(detached, "remove_controller", lambda _, run: names.append(f"controller of {run}"))
    monkeypatch.setattr(fleet, "tear_down_run", lambda site, run: names.append(f"workers of {run} at {site}"))
    return names


def connect(monkeypatch: pytest.MonkeyPatch, connection: Connection) -> None:
    @contextlib.contextmanager
    def connected(*_: object) -> Iterator[Connection]:
        yield connection

    monkeypatch.setattr(controller, "controller_connection", connected)


def key_of(run: str = RUN, provider: str = "aws") -> RunKey:
    return RunKey(run=run, provider=provider, machine="m", address="192.0.2.7", port=22, host_key="k", private_key="p")


def tear_down(monkeypatch: pytest.MonkeyPatch, folder: Path, connection: Connection, **more: Any) -> None:
    connect(monkeypatch, connection)
    feedstock, provider = Feedstock(root=folder), more.pop("controllers_provider", "aws")
    key_of(provider=provider).write_key_file(feedstock.artifacts / "fleet" / RUN / controller.NAME)
    detached.tear_down_detached_run(FleetOptions(**more), feedstock, controller.key_of_run(feedstock, RUN))


def test_a_controller_that_is_gone_leaves_no_workers_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: list[str]
) -> None:
    tear_down(monkeypatch, tmp_path, Connection())
    assert removed == [f"controller of {RUN}", f"workers of {RUN} at aws"]
    assert not detached.is_detached(Feedstock(root=tmp_path), RUN)


def test_workers_of_a_cloud_whose_controller_was_an_existing_machine_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    tear_down(monkeypatch, tmp_path, Connection(), controllers_provider="static")
    assert removed == [f"controller of {RUN}"]
    assert f"fleet down {RUN} --provider PROVIDER" in capsys.readouterr().err
    removed.clear()
    tear_down(monkeypatch, tmp_path, Connection(), controllers_provider="static", provider="openstack")
    assert removed == [f"controller of {RUN}", f"workers of {RUN} at openstack"]


def test_a_run_is_stopped_by_its_own_controller_though_the_network_fails_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: list[str]
) -> None:
    connection = Connection("running", None, None, "running", "ended")
    tear_down(monkeypatch, tmp_path, connection)
    assert connection.requests == ["stop", "collected"]
    assert removed == [f"controller of {RUN}"]


@pytest.mark.parametrize("finished", [None, 3.0])
def test_workers_that_a_stopped_run_could_not_terminate_are_terminated_from_here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    removed: list[str],
    capsys: pytest.CaptureFixture[str],
    finished: float | None,
) -> None:
    class Ended(Connection):
        def run_state(self) -> dict[str, Any]:
            return {**super().run_state(), "fleet": {"provider": "openstack", "finished": finished}}

    tear_down(monkeypatch, tmp_path, Ended("running", "ended"), controllers_provider="static")
    assert removed[1:] == ([f"workers of {RUN} at openstack"] if finished is None else [])
    connect(monkeypatch, Ended("ended"))
    detached.tear_down_detached_run(FleetOptions(key=tmp_path / "key.json"), None, key_of())
    assert (f"kiln fleet down {RUN} --provider PROVIDER" in capsys.readouterr().err) is (finished is None)


def collect(monkeypatch: pytest.MonkeyPatch, folder: Path, *, run: str = RUN, finished: float | None = 3.0) -> int:
    """Collect a run into a folder; its ledger on the controller has ended it, or not."""
    connection = Connection()
    connect(monkeypatch, connection)
    fetch = connection.fetch_exported_files

    def fetch_state(target: Path, files: Mapping[str, int | None]) -> None:
        target.mkdir(parents=True)
        fetch(target, files)
        state = json.loads((target / "state.json").read_text())
        state["fleet"]["finished"] = finished
        (target / "state.json").write_text(json.dumps(state))

    monkeypatch.setattr(connection, "fetch_exported_files", fetch_state)
    connected = cast("Any", connection)
    return detached.collect_from_controller(connected, key_of(run), None, FleetOptions(), folder, folder / "to")


def test_workers_that_a_run_may_have_left_are_named_when_it_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert collect(monkeypatch, tmp_path / "a") == 0
    assert "workers may run" not in capsys.readouterr().err
    assert collect(monkeypatch, tmp_path / "b", finished=None) == 0
    assert f"fleet down {RUN} --provider static" in capsys.readouterr().err


def test_the_results_of_another_run_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokenPackage, match="sent the results of another"):
        collect(monkeypatch, tmp_path, run="ffffffff")


def test_a_log_cannot_change_what_the_terminal_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(monkeypatch, Connection())
    key_of().write_key_file(tmp_path / "key.json")
    options = FleetOptions(key=tmp_path / "key.json", run="a")
    assert detached.show_run_or_config_log(options, tmp_path, None) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert output == "a: \\x1b]0;title\\x07 it builds\n"


def test_a_tear_down_of_all_runs_names_the_detached_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "meta.yaml").write_text("package: {name: a, version: '1'}\n")
    assert main.run(["-C", str(tmp_path), "fleet", "down"]) == 0
    assert "all fleet runs have ended" in capsys.readouterr().err
    key_of().write_key_file(tmp_path / "build_artifacts" / "fleet" / RUN / controller.NAME)
    assert main.run(["-C", str(tmp_path), "fleet", "down"]) == 0
    error = capsys.readouterr().err
    assert "all other fleet runs have ended" in error
    assert f"fleet down {RUN} stops it" in error


def test_the_status_of_a_detached_run_has_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    charge = ControllerCharge(hourly=0.5, billed=1.0, since=1000.0, currency="EUR", name="small")
    cost = RunCost(spent=0.1, expected=3.0, currency="EUR", end=9e9, controller=charge)
    run = FleetRun(id=RUN, provider="aws", type="t", started=0.0, finished=4600.0, number=1, lives=False)
    worker = WorkerRecord(
        name="w", type="t", state=WorkerState.TERMINATED, requested=1000.0, terminated=4600.0, hourly=1.0
    )
    report = MatrixReport(
        run=1,
        command="",
        started=0.0,
        finished=4600.0,
        machine="m",
        cores=2,
        jobs=1,
        engine="rattler-build",
        container="",
        configs=(),
        cost=cost,
    )
    fleet_run = to_json(dataclasses.replace(run, workers=(worker,)))
    state = {"process": "ended", "exit_code": 0, "report": to_json(report), "fleet": fleet_run}
    connect(monkeypatch, cast("Any", SimpleNamespace(run_state=lambda: state)))
    options = FleetOptions()
    monkeypatch.setattr(time, "time", lambda: 8200.0)
    text = detached.detached_run_status_text(key_of(), options)
    expected = "cost 2.00 EUR\nwith 0.500 EUR an hour for the controller, a small, until its packages are collected"
    assert expected in text, "an hour of the run, and an hour that its packages wait"
    state["until"] = 8200.0 + 10 * 3600
    text = detached.detached_run_status_text(key_of(), options)
    assert "(the wait costs 0.500 an hour, 5.00 EUR more at most)" in text
    data = json.loads(detached.detached_run_status_text(key_of(), FleetOptions(json=True)))
    assert data["fleet"]["cost"] == data["report"]["cost"]
    assert (data["fleet"]["cost"]["spent"], data["process"]) == (pytest.approx(2.0), "ended")


def refuse(*_: object) -> None:
    raise TeardownIncomplete("its security group remains", why="DependencyViolation")


def test_a_run_whose_controller_leaves_something_keeps_its_key_and_does_not_count_as_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(detached, "remove_controller", refuse)
    with pytest.raises(TeardownIncomplete):
        tear_down(monkeypatch, tmp_path, Connection("ended"))
    assert detached.is_detached(Feedstock(root=tmp_path), RUN)
    assert f"fleet down {RUN} tries it again" in capsys.readouterr().err
    monkeypatch.setattr(detached, "remove_controller", lambda _, run: removed.append(run))
    tear_down(monkeypatch, tmp_path, Connection())  # its machine has ended itself meanwhile
    assert removed[0] == RUN
    assert not detached.is_detached(Feedstock(root=tmp_path), RUN)


@pytest.mark.parametrize(("code", "expected"), [(0, TeardownIncomplete.exit_code), (10, 10)])
def test_a_collection_says_by_its_exit_code_that_something_of_the_controller_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: int
) -> None:
    monkeypatch.setattr(detached, "end_controller", lambda *_, **__: TeardownIncomplete("its group remains"))
    monkeypatch.setattr(detached, "run_exit_code", lambda _: code)
    assert collect(monkeypatch, tmp_path) == expected


def test_the_provider_is_asked_whether_a_controller_still_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"name": "m", "ended": False}]
    monkeypatch.setattr(detached, "site_of_controller_started_here", lambda *_: "site")
    monkeypatch.setattr(fleet, "list_existing_workers", lambda _: rows)
    options, feedstock = cast("Any", None), Feedstock(root=tmp_path)
    assert detached.provider_lists_controller(options, feedstock, key_of()) is True
    rows[0]["ended"] = True
    assert detached.provider_lists_controller(options, feedstock, key_of()) is False
    assert detached.provider_lists_controller(options, None, key_of()) is None, (
        "from another computer, with the key alone"
    )
    assert detached.provider_lists_controller(options, feedstock, key_of(provider="static")) is None
    monkeypatch.setattr(fleet, "list_existing_workers", refuse)
    assert detached.provider_lists_controller(options, feedstock, key_of()) is None
    assert "could not be asked" in capsys.readouterr().err


class ContendedController(Connection):
    """A controller whose results another computer is fetching, or that has ended because that one has collected."""

    def __init__(self, *answers: str | None, is_gone: bool = False) -> None:
        super().__init__(*answers)
        self.is_gone = is_gone

    def confirm_collected(self) -> bool:
        super().confirm_collected()
        if self.is_gone:
            raise MachinesUnknown("the controller cannot be reached")
        return True

    def is_answering(self) -> bool:
        return not self.is_gone


def collected_here(folder: Path, connection: Connection) -> int:
    feedstock = Feedstock(root=folder)
    key_of().write_key_file(feedstock.artifacts / "fleet" / RUN / controller.NAME)
    connected = cast("Any", connection)
    return detached.collect_from_controller(connected, key_of(), feedstock, FleetOptions(), folder, folder / "to")


def test_of_two_collections_into_one_folder_the_second_names_the_first(tmp_path: Path) -> None:
    connection = Connection()
    with locks.exclusive_folder_lock(tmp_path / "to" / ".part"), pytest.raises(AlreadyRunning) as refused:
        collected_here(tmp_path, connection)
    assert f"process {os.getpid()} holds" in refused.value.why
    assert connection.requests == [], "the first one ends the controller"
    assert detached.is_detached(Feedstock(root=tmp_path), RUN)


def test_a_controller_from_which_another_computer_fetches_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(detached, "GONE_SECONDS", 0.0)
    assert collected_here(tmp_path, ContendedController()) == 0
    assert "waits until another computer has fetched its packages" in capsys.readouterr().err
    with pytest.raises(AlreadyRunning, match="another computer"):
        tear_down(monkeypatch, tmp_path, ContendedController("ended"))
    assert removed == []
    assert detached.is_detached(Feedstock(root=tmp_path), RUN), "for kiln fleet down"


def test_a_controller_that_another_collection_has_ended_is_no_fault(
    tmp_path: Path, removed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything else that it has at the provider is removed all the same."""
    assert collected_here(tmp_path, ContendedController(is_gone=True)) == 0
    assert "security group" not in capsys.readouterr().err
    assert removed == [f"controller of {RUN}"]
    assert not detached.is_detached(Feedstock(root=tmp_path), RUN)


def down_by_key(monkeypatch: pytest.MonkeyPatch, folder: Path, connection: Connection, *words: str) -> int:
    """Run ``kiln fleet down --key`` in a folder that is no feedstock."""
    connect(monkeypatch, connection)
    key_of().write_key_file(folder / "key.json")
    return main.run(["-C", str(folder), "fleet", "down", "--key", str(folder / "key.json"), *words])


def test_who_has_the_key_stops_the_run_from_another_computer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ((), (RUN,)):
        connection = Connection("running", "ended")
        assert down_by_key(monkeypatch, tmp_path, connection, *words) == 0
        assert connection.requests == ["stop", "collected"]
    error = capsys.readouterr().err
    assert f"{RUN}: its controller has ended\n" in error
    assert f"its security group remains at aws, and costs nothing; kiln fleet down {RUN}, where the run began" in error
    assert removed == [], "which takes the provider's credentials, and the folder of the run"


def test_a_key_stops_no_other_run_and_a_controller_that_is_gone_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    connection = Connection("running", "ended")
    assert down_by_key(monkeypatch, tmp_path, connection, "ffffffff") == UsageError.exit_code
    assert connection.requests == []
    assert f"--key is that of the fleet run {RUN}" in capsys.readouterr().err
    assert down_by_key(monkeypatch, tmp_path, Connection()) == MachinesUnknown.exit_code
    assert removed == []


def test_the_key_of_a_run_of_this_feedstock_ends_it_as_its_name_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: list[str]
) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "meta.yaml").write_text("package: {name: a, version: 1}\n")
    (tmp_path / ".ci_support").mkdir()
    (tmp_path / ".ci_support" / "linux_64_.yaml").write_text("cdt_name: [conda]\n")
    feedstock = Feedstock(root=tmp_path)
    key_of().write_key_file(feedstock.artifacts / "fleet" / RUN / controller.NAME)
    assert down_by_key(monkeypatch, tmp_path, Connection()) == 0
    assert removed == [f"controller of {RUN}", f"workers of {RUN} at aws"]
    assert not detached.is_detached(feedstock, RUN)


ROOT = Path(__file__).parents[4]


@pytest.mark.processes  # git, for the variables of builds
def test_the_settings_hold_no_token_and_no_files_of_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "BINSTAR_TOKEN", "ANACONDA_API_TOKEN", "AWS_PROFILE"):
        monkeypatch.setenv(name, f"value-of-{name}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:word@pypi.example.org/simple")
    (tmp_path / "recipe").symlink_to(ROOT / "recipe")
    (tmp_path / ".ci_support").symlink_to(ROOT / ".ci_support")
    (tmp_path / "fleet-sizes.yml").write_text("- cores: 2\n")
    monkeypatch.setenv("BAZEL_REMOTE_EXECUTOR", "grpcs://other.example.org")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "headers").write_text("authorization: Bearer t0ken\n")
    (tmp_path / "c" / "headers").chmod(0o600)
    executor = ("--remote-executor", "grpcs://e.example.org", "--remote-credentials", str(tmp_path / "c"))
    words = ("run", "--provider", "aws", "--all", "--detach", "--rebuild", *executor)
    options = fleet_options(*words, environment=os.environ)
    settings = detached.controller_settings(options, load(tmp_path), ["a", "b"], run="0a1b2c3d", key="ssh-ed25519 A")
    text = settings.as_json()
    assert "value-of-AWS_SECRET_ACCESS_KEY" in json.loads(text)["environment"].values()
    assert not [word for word in ("BINSTAR", "ANACONDA", "AWS_PROFILE") if word in text]
    assert settings.environment["KILN_FLEET_ID"] == "0a1b2c3d"
    charge = controller_charge(settings.environment)
    assert charge is not None
    assert (charge.name, charge.currency, charge.hourly > 0.0416) == ("t3.medium", "USD", True), "with its disk"
    assert time.time() - charge.since < 60
    assert settings.environment["PIP_INDEX_URL"].startswith("https://me:word@")
    assert settings.arguments == ("fleet", "run", "a", "b", "--provider=aws", "--json"), "what it collects it keeps"
    assert settings.environment["BAZEL_REMOTE_EXECUTOR"] == "grpcs://e.example.org"
    assert b"t0ken" in base64.b64decode(settings.environment["BAZEL_REMOTE_CREDENTIALS"]), "its content, no folder"
    assert settings.keep == 72 * 3600
    assert settings.feedstock == {"fleet-sizes.yml": "- cores: 2\n"}


def refuse_second(_: object, feedstock: Feedstock, *__: object) -> None:
    with (
        pytest.raises(AlreadyRunning),
        files.held_lock_file(artifact_layout(feedstock).common_lock_file("fleet-detach")),
    ):
        pytest.fail("another one could begin between the question and the start")
    raise AlreadyRunning("one is detached")


@pytest.mark.processes  # git, for the options of builds
def test_a_run_that_cannot_begin_gets_no_controller(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its offers are checked here: on the controller the fault would be found once that is paid for."""
    started: list[object] = []

    def start(*words: object) -> int:
        started.append(words)
        return 0

    monkeypatch.setattr(detached, "start_controller_run", start)
    monkeypatch.setattr(teardown, "playbook_site", lambda *_: None)
    machines: list[dict[str, object]] = []
    monkeypatch.setattr(run, "list_existing_workers", lambda _: machines)
    monkeypatch.setattr(process, "find_program", lambda *_, **__: None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("AWS_REGION", raising=False)
    (tmp_path / "recipe").symlink_to(ROOT / "recipe")
    (tmp_path / ".ci_support").symlink_to(ROOT / ".ci_support")
    (tmp_path / "fleet-sizes.yml").write_text("- hours: 19\n")
    words = ["-C", str(tmp_path), "fleet", "run", "--provider", "aws", "--all", "--detach"]
    assert main.run([*words, "--fallback", "on-demand"]) == UsageError.exit_code
    assert "--fallback on-demand needs --spot" in capsys.readouterr().err
    assert started == []
    monkeypatch.setenv(
        "AWS_CREDENTIAL_EXPIRATION", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    )
    assert main.run(words) == UsageError.exit_code
    assert "--detach needs credentials that last until the end of the run" in capsys.readouterr().err
    assert started == []
    plan = [*words[:3], "plan", *words[4:]]
    assert main.run(plan) == 0
    assert "kiln fleet run --detach will refuse these credentials: these expire in 1.0 h" in caplog.text
    caplog.clear()
    assert main.run(plan[:-1]) == 0
    assert caplog.text == "", "here they can be renewed"
    monkeypatch.delenv("AWS_CREDENTIAL_EXPIRATION")
    assert main.run(words) == 0
    assert len(started) == 1
    monkeypatch.setattr(teardown, "require_no_run_of_same_build", refuse_second)
    assert main.run(words) == AlreadyRunning.exit_code
    assert len(started) == 1, "nor does a second one"


def test_the_users_lifetime_of_workers_does_not_end_a_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It outlives the run by the time for which its packages are kept; the last file of variables prevails."""
    mine = tmp_path / "mine.yml"
    mine.write_text("kiln_lifetime: 3600\nkiln_machine_types: []\nkiln_aws_region: eu-west-1\n")
    monkeypatch.setattr(bootstrap, "ensure_fleet_environment", lambda *_, **__: Path("/python"))
    options = fleet_options("run", "--provider", "aws", "--detach", "--time-limit", "10h", "--vars", str(mine))
    site, kind = detached.controller_site_and_type(options, Feedstock(root=tmp_path), "0a1b2c3d")
    values: dict[str, object] = {**site.variables}
    for path in site.variable_files:
        values |= yaml.safe_load(path.read_text())
    assert values["kiln_lifetime"] == (10 + 24 + 72) * 3600
    assert values["kiln_machine_types"] == [fleet_plan.controller_type_row("aws")]
    assert (kind, values["kiln_aws_region"]) == (fleet_plan.CONTROLLER_TYPE, "eu-west-1")


@pytest.mark.parametrize(("begins", "removed"), [(False, ["controller"]), (True, ["controller", "workers at aws"])])
def test_a_start_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: bool, removed: list[str]
) -> None:
    """A run that may have begun when its controller was removed has perhaps requested workers."""
    calls: list[str] = []
    key = RunKey(run="0a1b2c3d", provider="aws", machine="m", address="a", port=22, host_key="k", private_key="p")

    def fail(*_: object, **__: object) -> None:
        raise MachinesUnknown("the run could not be started on its controller")

    monkeypatch.setattr(controller, "create_ssh_key_pair", lambda *_: ("private", "public"))
    monkeypatch.setattr(controller, "provision_controller", (lambda *_, **__: None) if begins else fail)
    monkeypatch.setattr(controller, "run_key_of_prepared_controller", lambda *_: key)
    monkeypatch.setattr(controller, "start_run_on_controller", fail)
    monkeypatch.setattr(detached, "controller_settings", lambda *_, **__: None)
    monkeypatch.setattr(detached, "controller_site_and_type", lambda *_: ("site", "controller"))
    monkeypatch.setattr(detached, "playbook_site", lambda *words: words[3])
    monkeypatch.setattr(detached, "remove_controller", lambda *_: calls.append("controller"))
    monkeypatch.setattr(run, "tear_down_run", lambda site, _: calls.append(f"workers at {site}"))
    with pytest.raises(MachinesUnknown):
        detached.start_controller_run(
            fleet_options("run", "--provider", "aws", "--detach"), Feedstock(root=tmp_path), ()
        )
    assert calls == removed
    assert not list(tmp_path.rglob("key.json"))


@pytest.mark.parametrize("action", ["attach", "collect", "logs"])
def test_a_key_that_does_not_exist_is_named(action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-C", str(tmp_path), "fleet", action, "--key", str(tmp_path / "nothing")]
    assert main.run(words) == UsageError.exit_code
    assert f"{tmp_path / 'nothing'} is not the key of a detached run" in capsys.readouterr().err


@pytest.mark.parametrize("provider", ["aws", "openstack"])
def test_a_small_controller_is_a_row_as_those_of_the_playbooks_table(provider: str) -> None:
    path = ROOT / "ansible" / "group_vars" / "all" / "machine_types.yml"
    rows = yaml.safe_load(path.read_text())["kiln_machine_types"]
    assert set(fleet_plan.controller_type_row(provider)) == set(rows[0])
    assert fleet_plan.controller_type_row(provider)["provider"] == provider
    billed = {row["billed"] for row in rows if row["provider"] == provider}
    assert billed == {fleet_plan.controller_type_row(provider)["billed"]}
