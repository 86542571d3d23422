"""The remaining time of a run is estimated from its configs."""

from __future__ import annotations

import pytest

from kiln.run.view.state import TAIL, RunState
from kiln.state.results import ConfigState, Progress
from tests.unit.run.view.run import BEGAN, a_config, a_run

RUNNING, WAITING = ConfigState.RUNNING, ConfigState.WAITING


@pytest.mark.parametrize(
    ("configs", "now", "remaining"),
    [
        # the third follows the first; the second ends before
        ([("a", RUNNING, 100.0), ("b", RUNNING, 300.0), ("c", WAITING, 250.0)], 40, 60 + 250),
        ([("a", ConfigState.DONE, None), ("b", WAITING, None)], 120, 120),  # the mean, without an estimate
        ([("a", RUNNING, 10.0)], 40, 0),  # longer than estimated
        ([("a", RUNNING, None), ("b", ConfigState.CACHED, None)], 0, None),
    ],
)
def test_the_remaining_time_follows_from_estimates_and_parallel_slots(
    configs: list[tuple[str, ConfigState, float | None]], now: float, remaining: float | None
) -> None:
    state = RunState()
    state.set_report(a_run(*(a_config(name, kind, estimate=estimate) for name, kind, estimate in configs)))
    assert state.remaining_seconds(BEGAN + now) == remaining


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        (
            ("a.c: In function", "    \x1b[1mreturn\x1b[0m x;  ", "\t   ^"),
            ["a.c: In function", "    return x;", "       ^"],
        ),
        (
            (
                "+ export V=1.2",
                "++ BAZEL_CPUS=2",
                "+ cd $PREFIX",
                "+ bash -e /r/build.sh",
                "+ gcc a.c",
                "  error",
                "x=1 is",
            ),
            ["+ bash -e /r/build.sh", "+ gcc a.c", "  error", "x=1 is"],
        ),
        (  # the script's own output comes by another pipe, and overtakes the trace
            ("Fetching source", "+ export A=1", "no luck", "+ cd $PREFIX", "+ bash -e /r/build.sh", "failed"),
            ["no luck", "+ bash -e /r/build.sh", "failed"],
        ),
        (  # a script that stands in the recipe itself
            ("solved", "+ export P=/p", "+ make all", "+ export CC=cc", "+ make check", "+ bash -e helper.sh"),
            ["+ make all", "+ make check", "+ bash -e helper.sh"],
        ),
    ],
)
def test_the_last_lines_are_the_scripts_own_with_their_indentation(lines: tuple[str, ...], kept: list[str]) -> None:
    state = RunState()
    for line in lines:
        state.add_output_line("a", "compile", line)
    assert state.last_output_lines("a") == kept


def test_a_download_is_shown_until_it_is_over() -> None:
    state = RunState()
    state.add_output_line("a", "test", "")
    state.add_output_line("a", "test", "solved")
    for done, left, shown in (
        (0, None, "0 B of 100 MB"),
        (50_000_000, 5.0, "50 MB of 100 MB, 10 MB/s, about 5 s left"),
        (100_000_000, 0.0, "solved"),
    ):
        state.store_progress_and_log_line("a", Progress(done=done, total=100_000_000, left=left, in_bytes=True))
        assert state.progress_or_last_line("a") == shown
    state.add_output_line("a", "test", "+ pytest")
    state.add_output_line("a", "test", "3 passed")
    assert state.progress_or_last_line("a") == "3 passed"


def test_the_last_lines_of_the_latest_step_are_stored() -> None:
    state = RunState()
    state.add_output_line("a", "compile", "of the step before")
    for number in range(1000):
        state.add_output_line("a", "test", f"line {number}")
    state.add_output_line("a", "test", "   \r")
    assert state.progress_or_last_line("a") == "line 999"
    state.add_output_line("a", "test", "+ make")
    assert state.progress_or_last_line("a") == "line 999", "a trace says less than what it has led to"
    assert len(state.last_output_lines("a")) == TAIL - 1
    assert "of the step before" not in state.last_output_lines("a")
