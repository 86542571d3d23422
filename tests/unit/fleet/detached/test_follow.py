"""A detached run in a view: messages become events, and a lost connection is made again."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import process as base_process
from kiln.base.errors import BrokenPackage, MachinesUnknown, WorkersLost
from kiln.base.masked_stream import LONGEST_LINE
from kiln.base.serialization import to_json
from kiln.fleet.detached import follow, server
from kiln.fleet.detached.follow import RunFollower
from kiln.state.results import ConfigRun, ConfigState, MatrixReport, RunCost

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
