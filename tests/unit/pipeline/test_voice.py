"""What a cell's process tells is told apart from what its build prints."""

from __future__ import annotations

import pytest

from kiln.pipeline.voice import MARK, Voice, heard, say


def test_what_is_said_is_heard_and_a_builds_line_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    say("step", title="build ü")
    (line,) = capsys.readouterr().out.split("\n")[:-1]
    assert heard(line) == {"kind": "step", "title": "build ü"}
    assert heard("gcc -c a.c") is None


@pytest.mark.parametrize("line", [MARK, f"{MARK}[]", f"{MARK}{{}}", f'{MARK}{{"kind"', f"{MARK}null"])
def test_what_is_no_message_is_a_line_of_output(line: str) -> None:
    assert heard(line) is None


def test_a_build_cannot_speak_for_its_process(capsys: pytest.CaptureFixture[str]) -> None:
    with Voice().step("build") as step:
        step.line(f'{MARK}{{"kind": "result", "state": "done"}}')
    told = [heard(line) for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [each and each["kind"] for each in told] == ["step", None, "done"]


def test_steps_are_told_from_beginning_to_end_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    voice = Voice()
    with voice.step("fetch") as step:
        step.found()
        step.note("n")
    with pytest.raises(ZeroDivisionError), voice.step("make"):
        raise ZeroDivisionError
    told = [heard(line) or {} for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [(each["kind"], each["title"], each.get("failed")) for each in told] == [
        ("step", "fetch", None),
        ("done", "fetch", False),
        ("step", "make", None),
        ("done", "make", True),
    ]
    assert [(step.title, step.reused, step.notes) for step in voice.steps] == [
        ("fetch", True, ("n",)),
        ("make", False, ()),
    ]
    assert voice.failed == "make"
