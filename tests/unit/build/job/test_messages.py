"""The messages of a config's process are distinguished from its build's output."""

from __future__ import annotations

import pytest

from kiln.base.errors import AlreadyRunning, BuildFailed, DiskFull, KilnError, OutOfMemory
from kiln.build.job.messages import (
    MARK,
    StepReporter,
    error_as_json,
    error_from_json,
    failed_config_result,
    parse_message,
    send_message,
)
from kiln.state.results import ConfigState


def test_a_message_is_parsed_and_a_builds_line_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    send_message("step", title="build ü")
    (line,) = capsys.readouterr().out.split("\n")[:-1]
    assert parse_message(line) == {"kind": "step", "title": "build ü"}
    assert parse_message("gcc -c a.c") is None


@pytest.mark.parametrize("line", [MARK, f"{MARK}[]", f"{MARK}{{}}", f'{MARK}{{"kind"', f"{MARK}null"])
def test_other_lines_are_output(line: str) -> None:
    assert parse_message(line) is None


def test_a_build_cannot_speak_for_its_process(capsys: pytest.CaptureFixture[str]) -> None:
    with StepReporter().step("build") as step:
        step.pass_on_line(f'{MARK}{{"kind": "result", "state": "done"}}')
    told = [parse_message(line) for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [item and item["kind"] for item in told] == ["step", None, "done"]


def test_steps_are_reported_from_start_to_end_and_collected(capsys: pytest.CaptureFixture[str]) -> None:
    voice = StepReporter()
    with voice.step("fetch") as step:
        step.reused = True
        step.add_note("n")
    with pytest.raises(ZeroDivisionError), voice.step("make"):
        raise ZeroDivisionError
    told = [parse_message(line) or {} for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [(item["kind"], item["title"], item.get("failed")) for item in told] == [
        ("step", "fetch", None),
        ("done", "fetch", False),
        ("step", "make", None),
        ("done", "make", True),
    ]
    assert [(step.title, step.reused, step.notes, step.failed) for step in voice.steps] == [
        ("fetch", True, ("n",), False),
        ("make", False, (), True),
    ]
    assert voice.failed == "make"


def test_an_error_survives_json() -> None:
    error = DiskFull("full", why="of logs", hint="remove some")
    told = error_from_json(error_as_json(error))
    assert (type(told), told.what, told.why, told.hint) == (DiskFull, "full", "of logs", "remove some")


def test_the_step_in_which_it_came_up_stands_first() -> None:
    assert error_from_json(error_as_json(BuildFailed("no luck"), step="compile")).what == "compile: no luck"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (BuildFailed("x"), ConfigState.FAILED),
        (OutOfMemory("x"), ConfigState.OUT_OF_MEMORY),
        (DiskFull("x"), ConfigState.DISK_FULL),
        (AlreadyRunning("x"), ConfigState.LOCKED),
    ],
)
def test_what_ended_a_config_decides_its_state(error: KilnError, state: ConfigState) -> None:
    assert failed_config_result(error)["state"] == state.value
