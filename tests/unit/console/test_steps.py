"""Steps are shown with their times, on terminals and elsewhere."""

from __future__ import annotations

import io

import pytest

from kiln.console import Console, duration, table


def test_a_step_is_named_before_it_runs_and_timed_after() -> None:
    stream = io.StringIO()
    console = Console(stream, animated=False)
    with console.step("pack it") as step:
        assert stream.getvalue() == "- pack it\n"
        step.note("two files")
    told = stream.getvalue().splitlines()
    assert told[1].split()[0] == "done"
    assert told[2].strip() == "two files"
    assert [report.title for report in console.steps] == ["pack it"]


def test_a_found_step_says_so() -> None:
    console = Console(stream := io.StringIO(), animated=False)
    with console.step("pack it") as step:
        step.found()
    assert "found" in stream.getvalue()
    assert console.steps[0].reused


def test_a_failed_step_says_so_and_raises_on() -> None:
    console = Console(stream := io.StringIO(), animated=False)
    with pytest.raises(RuntimeError, match="no"), console.step("pack it"):
        raise RuntimeError("no")
    assert "failed" in stream.getvalue()


def test_a_terminal_sees_no_markup_of_untrusted_output() -> None:
    console = Console(stream := io.StringIO(), animated=True)
    with console.step("pack it [bold]") as step:
        step.line("[/nonsense] \x1b[31m")
    assert "pack it [bold]" in stream.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (125, "2 min 05 s"), (11520, "3 h 12 min")],
)
def test_times_are_told_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_table_is_aligned() -> None:
    assert table(("a", "n"), [("xyz", "1"), ("x", "100")], right=(1,)) == "a      n\n---  ---\nxyz    1\nx    100"
