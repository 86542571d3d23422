"""A frame of the live view fits its terminal and shows the important configs."""

from __future__ import annotations

import dataclasses
import re

import pytest
from rich.cells import cell_len

from kiln.run.view.live import Line, frame_lines
from kiln.run.view.state import SIGNS, RunState, expected_period_text, time_of_day_text
from kiln.state.results import ConfigState, RunCost, StepReport
from tests.unit.run.view.run import BEGAN, a_config, a_run


def text(lines: list[Line]) -> str:
    return "\n".join("".join(part for part, _ in line).rstrip() for line in lines)


def a_state() -> RunState:
    labels = {"a": "CUDA 12.9 · Python 3.10", "b": "CUDA 12.9 · Python 3.11", "c": "CPU · Python 3.10"}
    state = RunState(labels, now=lambda: BEGAN + 100)
    state.set_report(
        a_run(
            a_config("a", ConfigState.DONE),
            a_config("b", ConfigState.RUNNING, estimate=180.0),
            a_config("c", ConfigState.OUT_OF_MEMORY, reason="the compiler was ended\nat 31 GB"),
        )
    )
    state.add_output_line("b", "build tensorflow-base", "[1,234 / 5,678] Compiling 日本語.cc")
    return state


def test_the_text_of_a_frame() -> None:
    assert text(frame_lines(a_state(), now=BEGAN + 125, width=120, height=30)) == (
        "1 of 3 done, 1 out of memory, 1 running  2:05, about 55 s left\n"
        + "━" * 120
        + "\n✓ CUDA 12.9 · Python 3.10             2:00  done"
        "\n▸ CUDA 12.9 · Python 3.11     2:05 / ~3:00  build tensorflow-base 0:25"
        "\n    [1,234 / 5,678] Compiling 日本語.cc"
        "\n▲ CPU · Python 3.10                   2:00  out of memory"
        "\n    the compiler was ended"
    )


def test_the_heading_has_the_cost_of_a_run_on_workers_and_its_expected_end() -> None:
    state = a_state()
    state.cost = RunCost(spent=3.2, expected=16.2, currency="USD", end=BEGAN + 125 + 7200)
    heading = text(frame_lines(state, now=BEGAN + 125, width=120, height=30)).splitlines()[0]
    assert heading.endswith("2:05, about 2 h 00 min left, 3.20 of about 16.20 USD"), "the end, if it is expected"
    state.cost = dataclasses.replace(state.cost, config_ends={"b": BEGAN + 125 + 7200})
    heading = text(frame_lines(state, now=BEGAN + 125, width=120, height=30)).splitlines()[0]
    assert heading.endswith(f"about 2 h 00 min left (until {at(7325)}), 3.20 of about 16.20 USD")
    free = a_state()
    free.cost = RunCost(spent=0.0, expected=0.0, currency="USD", end=BEGAN + 125 + 7200)
    lines = text(frame_lines(free, now=BEGAN + 125, width=120, height=30)).splitlines()
    assert lines[0].endswith("about 2 h 00 min left"), "workers that cost nothing have an end, too"
    narrow = text(frame_lines(state, now=BEGAN + 125, width=50, height=30)).splitlines()[0]
    assert narrow == "1 of 3 done  2:05, 3.20 of about 16.20 USD"


def at(seconds: float) -> str:
    return time_of_day_text(BEGAN + seconds, BEGAN)


def a_fleet_run(configs: int) -> RunState:
    """Return a run on workers of which two configs run, and the others wait, the last one for the shortest time."""
    names = [f"linux_64_cuda_compiler_version12.9python3.{number}" for number in range(configs)]
    state = RunState({name: f"CUDA 12.9 · Python 3.{number}" for number, name in enumerate(names)})
    states = [ConfigState.RUNNING] * 2 + [ConfigState.WAITING] * (configs - 2)
    run = a_run(*(a_config(name, kind, estimate=7200.0) for name, kind in zip(names, states, strict=True)))
    starts = {name: BEGAN + 600.0 * (configs - number) for number, name in enumerate(names[2:])}
    ends = {**dict.fromkeys(names, BEGAN + 7200.0), **{name: start + 7200.0 for name, start in starts.items()}}
    cost = RunCost(
        spent=3.2, expected=16.2, currency="USD", end=max(ends.values()), config_ends=ends, config_starts=starts
    )
    state.set_report(dataclasses.replace(run, cost=cost))
    return state


@pytest.mark.parametrize("width", [79, 119])
def test_running_and_waiting_configs_of_a_fleet_have_their_expected_times(width: int) -> None:
    lines = text(frame_lines(a_fleet_run(4), now=BEGAN + 4000, width=width, height=24)).splitlines()
    assert re.search(rf"3\.0 +1:06:40, until {at(7200)}  running", lines[2])
    assert re.search(rf"3\.3 +{at(1800)} to {at(9000)}  waiting", lines[5])


def test_on_a_narrow_terminal_the_estimates_are_shown_instead_of_times_of_day() -> None:
    lines = text(frame_lines(a_fleet_run(4), now=BEGAN + 60, width=52, height=24)).splitlines()
    assert lines[2].split()[-3:] == ["1:00", "/", "~2:00:00"]


@pytest.mark.parametrize("width", [40, 79, 119])
def test_of_200_configs_those_that_start_next_are_shown(width: int) -> None:
    lines = frame_lines(a_fleet_run(200), now=BEGAN + 4000, width=width, height=24)
    assert len(lines) <= 24
    assert all(sum(cell_len(part) for part, _ in line) <= width for line in lines)
    assert "3.199" in text(lines[4:5])
    assert text(lines[-1:]).startswith("… and 180 waiting")


def test_a_time_of_day_has_its_day_unless_that_is_today() -> None:
    now = 1_790_000_000.0  # Mon 2026-09-21 14:13:20 UTC
    moments = [now + hours * 3600 for hours in (1, 12, 24 * 10)]
    assert [time_of_day_text(moment, now, utc=True) for moment in moments] == ["15:13", "Tue 02:13", "01 Oct 14:13"]
    assert expected_period_text(moments[0], moments[1], now, utc=True) == "15:13 to Tue 02:13"
    assert expected_period_text(moments[1], moments[1] + 60, now, utc=True) == "Tue 02:13 to 02:14"
    assert (expected_period_text(None, moments[0], now, utc=True), expected_period_text(now, None, now)) == (
        "until 15:13",
        "",
    )


@pytest.mark.parametrize("width", [*range(2, 40), 60, 79, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for line in frame_lines(a_state(), now=BEGAN + 125, width=width, height=30):
        assert sum(cell_len(part) for part, _ in line) <= width


def test_on_a_narrow_terminal_names_keep_their_distinct_parts_and_the_time_is_shown() -> None:
    lines = text(frame_lines(a_state(), now=BEGAN + 125, width=39, height=30)).splitlines()
    assert lines[0] == "1 of 3 done  2:05, about 55 s left"
    assert [line[2:21] for line in lines[2:] if line[:1] != " "] == [
        "CUDA 12.9…thon 3.10",
        "CUDA 12.9…thon 3.11",
        "CPU · Python 3.10  ",
    ]


def test_with_too_many_configs_failed_and_running_ones_are_shown() -> None:
    state = RunState()
    state.set_report(
        a_run(
            *(a_config(f"done{number}", ConfigState.DONE) for number in range(100)),
            a_config("bad", ConfigState.FAILED),
            a_config("busy", ConfigState.RUNNING),
            *(a_config(f"later{number}", ConfigState.WAITING) for number in range(90)),
        )
    )
    lines = frame_lines(state, now=BEGAN + 1, width=80, height=10)
    assert len(lines) <= 10
    assert "bad" in text(lines)
    assert "busy" in text(lines)
    assert text(lines).endswith("… and 86 waiting, 100 done")
    assert len(frame_lines(state, now=BEGAN + 1, width=80, height=None)) == 2 + 192


def test_each_state_has_a_distinct_sign_of_one_column() -> None:
    assert len(set(SIGNS.values())) == len(ConfigState)
    assert all(cell_len(SIGNS[state]) == 1 for state in ConfigState)


@pytest.mark.parametrize(
    ("step", "end"),
    [
        ("build tensorflow-base", "build tensorflow-base 0:25"),
        ("build libtensorflow_framework", "build libtensorflow_framework 0:25"),
    ],
)
def test_on_80_columns_a_step_is_whole_before_its_output_is_shown(step: str, end: str) -> None:
    state = a_state()
    state.add_output_line("b", step, "[1,234 / 5,678] Compiling a.cc")
    lines = text(frame_lines(state, now=BEGAN + 125, width=79, height=30)).splitlines()[3:5]
    assert lines == [f"▸ CUDA 12.9 · Python 3.11     2:05 / ~3:00  {end}", "    [1,234 / 5,678] Compiling a.cc"]


def test_the_number_of_a_step_is_shown_once_it_is_known() -> None:
    state = a_state()
    state.update_config(
        dataclasses.replace(state.configs["b"], steps=(StepReport(title="render", seconds=1.0),), expected_steps=15)
    )
    assert "  2/15 build tensorflow-base 0:25" in text(frame_lines(state, now=BEGAN + 125, width=79, height=30))
    state.update_config(dataclasses.replace(state.configs["b"], expected_steps=1))
    assert "  build tensorflow-base 0:25" in text(frame_lines(state, now=BEGAN + 125, width=79, height=30))


def test_the_load_of_the_machine_is_shown_where_there_is_room() -> None:
    for width, is_shown in ((120, True), (60, False)):
        lines = frame_lines(a_state(), now=BEGAN + 125, width=width, height=30, load=7.46)
        assert text(lines[:1]).endswith("load 7.5 on 8 cores") is is_shown


def test_a_waiting_config_shows_what_its_worker_does_and_a_running_one_that_its_worker_is_silent() -> None:
    state = a_state()

    def row(name: str) -> str:
        lines = text(frame_lines(state, now=BEGAN + 125, width=120, height=30)).splitlines()
        (index,) = (index for index, line in enumerate(lines) if state.config_label(name) in line)
        return " ".join(lines[index : index + 2])

    state.update_config(a_config("a", ConfigState.WAITING))
    assert row("a").partition("CUDA 12.9 · Python 3.11")[0].rstrip(" ▸").endswith("waiting")
    state.add_output_line("a", "prepare kiln-r1-1: install the container engine", "")
    assert "prepare kiln-r1-1: install the container engine 0:25" in row("a")
    state.update_config(a_config("b", ConfigState.RUNNING, reason="kiln-r1-2 has not answered since 14:05:00"))
    assert "build tensorflow-base 0:25" in row("b")
    assert row("b").endswith("kiln-r1-2 has not answered since 14:05:00")
    state.update_config(a_config("b", ConfigState.WAITING, reason="waiting again"))
    assert "build tensorflow-base" not in row("b")
    assert row("b").endswith("waiting again")
