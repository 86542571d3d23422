"""The remaining time of a run is estimated from its configs."""

from __future__ import annotations

from kiln.run.view.state import TAIL, RunState
from kiln.state.results import ConfigState
from tests.unit.run.view.run import BEGAN, a_config, a_run


def test_the_remaining_time_follows_from_the_parallel_slots() -> None:
    state = RunState()
    state.set_report(
        a_run(
            a_config("a", ConfigState.RUNNING, estimate=100.0),
            a_config("b", ConfigState.RUNNING, estimate=300.0),
            a_config("c", ConfigState.WAITING, estimate=250.0),
        )
    )
    assert state.remaining_seconds(BEGAN + 40) == 60 + 250  # c follows a; b ends before


def test_a_config_without_an_estimate_counts_as_the_mean() -> None:
    state = RunState()
    state.set_report(a_run(a_config("a", ConfigState.DONE), a_config("b", ConfigState.WAITING)))
    assert state.remaining_seconds(BEGAN + 120) == 120


def test_a_config_that_exceeds_its_estimate_has_no_remaining_time() -> None:
    state = RunState()
    state.set_report(a_run(a_config("a", ConfigState.RUNNING, estimate=10.0)))
    assert state.remaining_seconds(BEGAN + 40) == 0


def test_without_estimates_there_is_no_remaining_time() -> None:
    state = RunState()
    state.set_report(a_run(a_config("a", ConfigState.RUNNING), a_config("b", ConfigState.CACHED)))
    assert state.remaining_seconds(BEGAN) is None


def test_the_last_lines_of_the_latest_step_are_stored() -> None:
    state = RunState()
    state.add_output_line("a", "compile", "of the step before")
    for number in range(1000):
        state.add_output_line("a", "test", f"line {number}")
    state.add_output_line("a", "test", "   \r")
    assert state.progress_or_last_line("a") == "line 999"
    assert len(state.last_output_lines("a")) == TAIL - 1
    assert "of the step before" not in state.last_output_lines("a")


def test_the_last_lines_are_indented_as_they_were() -> None:
    state = RunState()
    for line in ("a.c: In function", "    \x1b[1mreturn\x1b[0m x;  ", "\t   ^"):
        state.add_output_line("a", "build", line)
    assert state.last_output_lines("a") == ["a.c: In function", "    return x;", "       ^"]


def test_the_trace_of_the_environment_is_not_in_the_last_lines() -> None:
    state = RunState()
    state.set_report(a_run(a_config("a", ConfigState.RUNNING)))
    for line in (
        "+ export PKG_VERSION=1.2",
        "++ BAZEL_CPUS=2",
        "+ cd $PREFIX",
        "+ bash -e /feedstock/recipe/build.sh",
        "+ gcc -o a a.c",
        "    a.c:3: error: no such thing",
        "x=1 is not a trace",
    ):
        state.add_output_line("a", "compile", line)
    assert state.last_output_lines("a") == [
        "+ bash -e /feedstock/recipe/build.sh",
        "+ gcc -o a a.c",
        "    a.c:3: error: no such thing",
        "x=1 is not a trace",
    ]


def test_output_of_a_script_that_overtakes_its_trace_is_in_the_last_lines() -> None:
    state = RunState()
    for line in ("Fetching source", "+ export A=1", "no luck", "+ cd $PREFIX", "+ bash -e /r/build.sh", "failed"):
        state.add_output_line("a", "compile", line)
    assert state.last_output_lines("a") == ["no luck", "+ bash -e /r/build.sh", "failed"]


def test_the_trace_of_a_script_in_the_recipe_itself_is_in_the_last_lines() -> None:
    state = RunState()
    state.set_report(a_run(a_config("a", ConfigState.RUNNING)))
    for line in ("solved", "+ export PREFIX=/p", "+ make all", "+ export CC=cc", "+ make check", "+ bash -e helper.sh"):
        state.add_output_line("a", "build x", line)
    assert state.last_output_lines("a") == ["+ make all", "+ make check", "+ bash -e helper.sh"]
