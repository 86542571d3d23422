"""Steps are shown with their times, on terminals and elsewhere."""

from __future__ import annotations

import io

import pytest

from kiln.base.text import CommandStepsView


def test_a_step_is_printed_before_it_runs_and_timed_after() -> None:
    stream = io.StringIO()
    steps = CommandStepsView(stream, animated=False)
    with steps.step("pack it") as step:
        assert stream.getvalue() == "- pack it\n"
        step.note("two files")
    lines = stream.getvalue().splitlines()
    assert lines[1].split()[0] == "done"
    assert lines[2].strip() == "two files"


def test_a_failed_step_is_printed_and_raises() -> None:
    steps = CommandStepsView(stream := io.StringIO(), animated=False)
    with pytest.raises(RuntimeError, match="no"), steps.step("pack it"):
        raise RuntimeError("no")
    assert "failed" in stream.getvalue()


def test_a_terminal_sees_no_markup_of_untrusted_output() -> None:
    steps = CommandStepsView(stream := io.StringIO(), animated=True)
    with steps.step("pack it [bold]") as step:
        step.show_output_line("[/nonsense] \x1b[31m")
    assert "pack it [bold]" in stream.getvalue()


def test_without_color_a_terminal_sees_signs_alone() -> None:
    steps = CommandStepsView(stream := io.StringIO(), animated=True, color=False)
    with steps.step("pack it"):
        pass
    assert "✓ pack it" in stream.getvalue()
    assert "[32m" not in stream.getvalue()
