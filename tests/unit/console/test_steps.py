"""Steps are shown with their times, on terminals and elsewhere."""

from __future__ import annotations

import io

import pytest

from kiln.console.steps import Steps


def test_a_step_is_named_before_it_runs_and_timed_after() -> None:
    stream = io.StringIO()
    steps = Steps(stream, animated=False)
    with steps.step("pack it") as step:
        assert stream.getvalue() == "- pack it\n"
        step.note("two files")
    told = stream.getvalue().splitlines()
    assert told[1].split()[0] == "done"
    assert told[2].strip() == "two files"


def test_a_failed_step_says_so_and_raises_on() -> None:
    steps = Steps(stream := io.StringIO(), animated=False)
    with pytest.raises(RuntimeError, match="no"), steps.step("pack it"):
        raise RuntimeError("no")
    assert "failed" in stream.getvalue()


def test_a_terminal_sees_no_markup_of_untrusted_output() -> None:
    steps = Steps(stream := io.StringIO(), animated=True)
    with steps.step("pack it [bold]") as step:
        step.line("[/nonsense] \x1b[31m")
    assert "pack it [bold]" in stream.getvalue()
