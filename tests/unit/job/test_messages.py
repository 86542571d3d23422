"""The messages of a config's process are distinguished from its build's output."""

from __future__ import annotations

import pytest

from kiln.job.messages import MARK, StepReporter, parse_message, send


def test_a_message_is_parsed_and_a_builds_line_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    send("step", title="build ü")
    (line,) = capsys.readouterr().out.split("\n")[:-1]
    assert parse_message(line) == {"kind": "step", "title": "build ü"}
    assert parse_message("gcc -c a.c") is None


@pytest.mark.parametrize("line", [MARK, f"{MARK}[]", f"{MARK}{{}}", f'{MARK}{{"kind"', f"{MARK}null"])
def test_other_lines_are_output(line: str) -> None:
    assert parse_message(line) is None


def test_a_build_cannot_speak_for_its_process(capsys: pytest.CaptureFixture[str]) -> None:
    with StepReporter().step("build") as step:
        step.line(f'{MARK}{{"kind": "result", "state": "done"}}')
    told = [parse_message(line) for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [item and item["kind"] for item in told] == ["step", None, "done"]


def test_steps_are_reported_from_start_to_end_and_collected(capsys: pytest.CaptureFixture[str]) -> None:
    voice = StepReporter()
    with voice.step("fetch") as step:
        step.reuse()
        step.note("n")
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
