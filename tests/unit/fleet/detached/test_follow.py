"""A detached run in a view, and its results taken over as if it had been here."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import process as base_process
from kiln.base.errors import BrokenPackage, HashMismatch, MachinesUnknown, WorkersLost
from kiln.base.masked_stream import LONGEST_LINE
from kiln.base.serialization import to_json
from kiln.fleet.detached import follow, server
from kiln.fleet.detached.controller import ConfigInputHashes
from kiln.fleet.detached.follow import RunFollower
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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REPORT = MatrixReport(
    run=1, command="kiln", started=1.0, finished=None, machine="m", cores=2, jobs=2, engine="e", container="none"
)
WAITING = ConfigRun(config="a", state=ConfigState.WAITING, group="cpu")
RUNNING = ConfigRun(config="a", state=ConfigState.RUNNING, group="cpu", started=2.0)
OTHER = ConfigRun(config="b", state=ConfigState.CACHED, group="cpu")


class View:
    """Keeps the events."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.events.append((name, *arguments))


def state(*configs: ConfigRun, process: str = "running", cost: RunCost | None = None) -> dict[str, Any]:
    report = {**to_json(REPORT), "configs": [to_json(config) for config in configs], "cost": to_json(cost)}
    more: dict[str, Any] = {
        "run": "r",
        "exit_code": None,
        "until": None,
        "fleet": None,
        "output": [],
        "labels": {"a": "A"},
    }
    return {**more, "kind": "state", "process": process, "report": report, "labels": {"a": "A"}}


def sent(*states: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of states, as the reporter sends them."""
    return [message for item in states for message in (*(m for _, m in server.state_messages(item)), {"kind": "shown"})]


def followed(messages: list[dict[str, Any]]) -> tuple[list[tuple[Any, ...]], list[str]]:
    view = View()
    lines: list[str] = []
    names: list[dict[str, str]] = []

    def make(labels: Mapping[str, str]) -> Any:
        names.append(dict(labels))
        return view

    follower = RunFollower(make, lines.append)
    for message in messages:
        follower.show_controller_message(message)
    assert names in ([], [{"a": "A"}])
    return view.events, lines


def test_the_view_begins_with_all_configs_and_then_sees_each_change_once() -> None:
    cost = RunCost(spent=1.0, expected=2.0, currency="EUR", end=9.0)
    first, second = state(WAITING, OTHER), state(RUNNING, OTHER, cost=cost)
    line = {"kind": "line", "config": "a", "step": "compile", "text": "compiling"}
    events, lines = followed([*sent(first, second, second), line, {"kind": "pulse"}, {"kind": "over"}])
    assert [event[0] for event in events] == [
        "run_began",
        "config_changed",
        "run_cost_changed",
        "output_line_received",
        "run_ended",
    ]
    assert events[0][1].configs == (WAITING, OTHER)
    assert events[1][1] == RUNNING
    assert events[2][1] == cost
    assert events[3][1:] == ("a", "compile", "compiling")
    assert events[4][1].configs == (RUNNING, OTHER)
    assert lines == []


def test_the_expected_times_of_200_configs_arrive_in_lines_that_are_passed_on_whole() -> None:
    names = [f"linux_64_c_compiler_version14cuda_compiler_version12.9microarch_level3python3.{n}" for n in range(200)]
    configs = [dataclasses.replace(WAITING, config=name) for name in names]
    times = {name: 1_790_000_000.123 + number for number, name in enumerate(names)}
    cost = RunCost(spent=1.0, expected=2.0, currency="EUR", end=9.0, config_ends=times, config_starts=times)
    first, second = ({**state(*configs, cost=cost), "labels": {name: name for name in names}} for _ in range(2))
    later = dataclasses.replace(cost, config_ends={**times, names[0]: 1.0}, config_starts={names[1]: 2.0})
    second["report"]["cost"] = to_json(later)
    messages = sent(first, second)
    assert max(len(json.dumps(message)) for message in messages) < LONGEST_LINE
    view = View()
    follower = RunFollower(lambda _: view, lambda _: None)
    for message in messages:
        follower.show_controller_message(message)
    assert [event[0] for event in view.events] == ["run_began", "run_cost_changed"]
    assert view.events[0][1].cost == cost
    assert view.events[1][1] == later


def test_before_the_run_begins_its_last_line_is_said_once() -> None:
    early = {**state(), "report": None, "output": ["x", "setting up .venv-fleet"]}
    events, lines = followed(sent(early, early))
    assert events == []
    assert lines == ["setting up .venv-fleet"]


@pytest.mark.parametrize(
    "message", [{"kind": "config", "config": {"config": 1}}, {"kind": "run", "process": "x", "report": {}}]
)
def test_an_invalid_message_is_an_error_of_kilns(message: dict[str, Any]) -> None:
    with pytest.raises(BrokenPackage, match="invalid message"):
        followed([message])


class Connection:
    """A controller whose connections end: each has its messages."""

    key = SimpleNamespace(run="r", address="192.0.2.1", port=22)

    def __init__(self, *connections: list[dict[str, Any]]) -> None:
        self.connections = list(connections)

    def stream_run_messages(self, on_message: Callable[[dict[str, Any]], None]) -> base_process.ProcessResult:
        for message in self.connections.pop(0) if self.connections else ():
            on_message(message)
        return base_process.ProcessResult(argv=(), exit_code=255, tail="Connection reset", seconds=0.0)


def test_a_lost_connection_is_made_again_and_changes_nothing() -> None:
    lines: list[str] = []
    view = View()
    follower = RunFollower(lambda _: view, lines.append)
    again = [*sent(state(RUNNING)), {"kind": "over"}]
    pauses: list[float] = []
    connection = Connection(sent(state(WAITING)), [], sent(state(WAITING)), again)
    follow.follow_run_with_reconnects(connection, follower, pause=pauses.append)  # type: ignore[arg-type]
    assert [event[0] for event in view.events] == ["run_began", "config_changed", "run_ended"]
    assert len(pauses) == 3
    assert lines == ["no connection to the controller, trying again: Connection reset"]


def test_a_controller_that_was_never_reached_is_given_up() -> None:
    follower = RunFollower(lambda _: View(), lambda _: None)
    with pytest.raises(MachinesUnknown, match=r"192.0.2.1:22") as error:
        follow.follow_run_with_reconnects(Connection(), follower, pause=lambda _: None)  # type: ignore[arg-type]
    assert error.value.why == "Connection reset"


def test_a_controller_that_has_vanished_is_given_up_once_its_provider_says_so() -> None:
    follower = RunFollower(lambda _: View(), lambda _: None)
    answers: list[bool | None] = [True, None, False]
    connection = Connection(sent(state(WAITING)))
    with pytest.raises(WorkersLost, match="the controller of the run r does not exist any more") as error:
        follow.follow_run_with_reconnects(connection, follower, exists=lambda: answers.pop(0), pause=lambda _: None)  # type: ignore[arg-type]
    assert answers == []
    assert "kiln fleet down r" in error.value.hint


def test_a_controller_that_nobody_can_ask_for_is_given_up_after_a_lease() -> None:
    follower = RunFollower(lambda _: View(), lambda _: None)
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    connection = Connection(sent(state(WAITING)), *[[]] * 100, sent(state(RUNNING)))
    with pytest.raises(MachinesUnknown, match=r"192.0.2.1:22"):
        follow.follow_run_with_reconnects(connection, follower, pause=pause, clock=lambda: now[0])  # type: ignore[arg-type]
    assert follow.LONGEST + 500 <= now[0] <= follow.LONGEST + 600, "counted from its last message on"


def test_a_config_that_is_too_long_for_a_line_is_sent_without_its_steps() -> None:
    long = {**to_json(RUNNING), "reason": "x" * 100_000, "packages": [1], "steps": [2]}
    (_, run), (_, message) = server.state_messages({**state(), "report": {**to_json(REPORT), "configs": [long]}})
    assert run["report"]["configs"] == []
    assert (message["config"]["packages"], message["config"]["steps"], len(message["config"]["reason"])) == (
        [],
        [],
        2000,
    )


def test_lines_of_a_log_are_sent_with_their_steps() -> None:
    place = server.SentLogPosition()
    first = place.lines_with_steps(["2026-11-22 18:42:55 === compile", "2026-11-22 18:42:56 gcc", "=== no step"])
    assert first == [("compile", ""), ("compile", "2026-11-22 18:42:56 gcc"), ("compile", "=== no step")]
    assert place.lines_with_steps(["a\x1b[2Jb"])[0][0] == "compile"
    assert "\x1b" not in place.lines_with_steps(["a\x1b[2Jb"])[0][1]


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
    with pytest.raises(BrokenPackage, match="is missing"):
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
