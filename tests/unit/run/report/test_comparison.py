"""A run is compared with the last result of each of its configs."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kiln.run.report.comparison import compare_with_earlier_runs, lay_out_timeline, time_by_phase
from kiln.state.results import ConfigRun, ConfigState, MatrixReport, Phase, RunCost, StepReport
from tests import builders, runs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = ("a", "b", "c", "d")


def run_of(number: int, bad: dict[int, ConfigState] | None = None) -> MatrixReport:
    return replace(runs.worked_through(NAMES, bad=bad), run=number)


def with_config(report: MatrixReport, index: int, change: Callable[[ConfigRun], ConfigRun]) -> MatrixReport:
    """A report with one changed config."""
    configs = list(report.configs)
    configs[index] = change(configs[index])
    return replace(report, configs=tuple(configs))


def longer(seconds: float) -> Callable[[ConfigRun], ConfigRun]:
    return lambda config: replace(config, finished=(config.finished or 0.0) + seconds)


def changes(report: MatrixReport, *earlier: MatrixReport) -> list[tuple[str, str, int]]:
    result = compare_with_earlier_runs(report, earlier).changes
    return [(change.config.config, change.kind, change.before.run) for change in result]


def test_failures_are_new_fixed_or_still_there() -> None:
    before = run_of(6, bad={1: ConfigState.FAILED, 2: ConfigState.OUT_OF_MEMORY})
    now = run_of(7, bad={0: ConfigState.DISK_FULL, 2: ConfigState.FAILED})
    assert changes(now, before) == [("a", "new failure", 6), ("b", "fixed", 6), ("c", "still fails", 6)]
    assert compare_with_earlier_runs(now, [before]).summary == "1 new failure, 1 fixed, 1 still fails"
    assert compare_with_earlier_runs(now, [run_of(6)]).summary == "2 new failures"


def test_the_same_results_are_no_change() -> None:
    assert changes(run_of(7), run_of(6)) == []
    assert compare_with_earlier_runs(run_of(7), [run_of(6)]).runs == (6,)


def test_a_config_without_a_result_is_looked_up_in_the_run_before() -> None:
    """An interrupted config says nothing: its last result counts."""
    interrupted = run_of(6, bad={1: ConfigState.INTERRUPTED})
    failed = run_of(5, bad={1: ConfigState.FAILED})
    assert changes(run_of(7), interrupted, failed) == [("b", "fixed", 5)]
    assert compare_with_earlier_runs(run_of(7), [interrupted, failed]).runs == (6, 5)


def test_an_interrupted_config_is_not_compared() -> None:
    assert changes(run_of(7, bad={1: ConfigState.INTERRUPTED}), run_of(6)) == []


def test_later_runs_and_rehearsals_do_not_count_for_a_build() -> None:
    failed = run_of(6, bad={0: ConfigState.FAILED})
    assert changes(run_of(7), replace(failed, rehearsal=True)) == []
    assert changes(run_of(5), failed) == []


@pytest.mark.parametrize(("seconds", "kinds"), [(0, []), (2000, []), (2500, ["slower"]), (-2500, ["faster"])])
def test_a_time_that_differs_by_a_fifth_is_named(seconds: float, kinds: list[str]) -> None:
    now = with_config(run_of(7), 1, longer(seconds))
    assert [kind for _, kind, _ in changes(now, run_of(6))] == kinds


def test_short_builds_that_differ_by_seconds_are_alike() -> None:
    def short(seconds: float) -> Callable[[ConfigRun], ConfigRun]:
        return lambda config: replace(config, finished=(config.started or 0.0) + seconds)

    assert changes(with_config(run_of(7), 1, short(9)), with_config(run_of(6), 1, short(3))) == []


def test_times_are_compared_where_they_can_be() -> None:
    """Not with another machine, a cold build, or a build that reused steps; then an earlier run is."""
    now = with_config(run_of(7), 1, longer(5000))
    warm = with_config(run_of(6), 1, lambda config: replace(config, cold=not config.cold))
    reused = with_config(
        run_of(6), 1, lambda config: replace(config, steps=(replace(config.steps[0], reused=True), *config.steps[1:]))
    )
    assert changes(now, run_of(6)) == [("b", "slower", 6)]
    assert changes(now, replace(run_of(6), machine="another")) == []
    assert changes(now, replace(run_of(6), jobs=9)) == []
    for other in (warm, reused):
        assert changes(now, other) == []
        assert changes(now, other, run_of(5)) == [("b", "slower", 5)]


def test_a_cached_config_was_built_by_the_run_with_its_packages() -> None:
    """A build in between made other packages: it is not the one."""

    def another(config: ConfigRun) -> ConfigRun:
        artifacts = [replace(package.artifact, sha256="1" * 64) for package in config.packages]
        pairs = zip(config.packages, artifacts, strict=True)
        return replace(config, packages=tuple(replace(package, artifact=artifact) for package, artifact in pairs))

    now = run_of(7, bad={1: ConfigState.CACHED})
    other = with_config(run_of(6), 1, another)
    assert {
        name: record.run for name, record in compare_with_earlier_runs(now, [other, run_of(5)]).built_in.items()
    } == {"b": 5}
    assert compare_with_earlier_runs(now, [other]).built_in == {}
    empty = with_config(now, 1, lambda config: replace(config, packages=()))
    assert compare_with_earlier_runs(empty, [run_of(5, bad=dict.fromkeys(range(4), ConfigState.FAILED))]).built_in == {}


VARIANTS = runs.variants(("None", "12.5", "12.9"), ("3.10", "3.11", "3.12", "3.13"))


@pytest.mark.parametrize("jobs", [1, 2, 3, 5])
def test_there_is_a_lane_for_each_job_and_no_bar_covers_another(jobs: int) -> None:
    lanes = lay_out_timeline(runs.worked_through(VARIANTS, jobs=jobs), runs.BEGAN).lanes
    assert len(lanes) == jobs
    assert sum(map(len, lanes)) == len(VARIANTS)
    for lane in lanes:
        for before, after in itertools.pairwise(lane):
            assert before.start + before.width <= after.start + 0.002


def test_configs_of_a_fleet_lie_in_the_lanes_of_their_machines() -> None:
    report = runs.worked_through(runs.variants(["None", "12.9"], ["3.11", "3.12"]), jobs=4)
    named = tuple(
        replace(config, worker=machine)
        for config, machine in zip(report.configs, ("m-2", "m-1", "m-2", "m-1"), strict=True)
    )
    drawn = lay_out_timeline(replace(report, configs=named), now=0.0)
    assert drawn.workers == ("m-1", "m-1", "m-2", "m-2")
    assert [{bar.config.worker for bar in lane} for lane in drawn.lanes] == [{"m-1"}, {"m-1"}, {"m-2"}, {"m-2"}]
    assert lay_out_timeline(report, now=0.0).workers == ()


def test_what_a_running_config_is_expected_to_take_lies_within_the_picture() -> None:
    report = runs.worked_through(VARIANTS, jobs=2, until=4 * runs.HOUR)
    bars = [bar for lane in lay_out_timeline(report, runs.BEGAN + 4 * runs.HOUR).lanes for bar in lane]
    running = [bar for bar in bars if bar.config.state is ConfigState.RUNNING]
    assert len(running) == 2
    assert all(bar.open and bar.ghost > 0 for bar in running)
    assert max(bar.start + bar.width + bar.ghost for bar in bars) == pytest.approx(100, abs=0.01)


def test_a_running_config_of_a_fleet_ends_where_its_forecast_does() -> None:
    now = runs.BEGAN + 4 * runs.HOUR
    report = runs.worked_through(VARIANTS, jobs=2, until=4 * runs.HOUR)
    ends = {config.config: now + 9 * runs.HOUR for config in report.configs if config.state is ConfigState.RUNNING}
    cost = RunCost(spent=0.0, expected=0.0, currency="", end=now, config_ends=ends)
    bars = [bar for lane in lay_out_timeline(replace(report, cost=cost), now).lanes for bar in lane if bar.ghost]
    assert [bar.ghost for bar in bars] == pytest.approx([100 * 9 / 13] * 2, abs=0.01)


def test_configs_that_wait_or_were_found_are_not_in_the_picture() -> None:
    report = runs.worked_through(VARIANTS, jobs=2, until=1 * runs.HOUR)
    bars = [bar for lane in lay_out_timeline(report, runs.BEGAN + runs.HOUR).lanes for bar in lane]
    assert len(bars) == sum(config.started is not None for config in report.configs) < 12


def test_a_killed_run_ends_at_the_last_moment_that_is_known(tmp_path: Path) -> None:
    report = runs.worked_through(VARIANTS, jobs=1, until=4 * runs.HOUR)
    stopped = {ConfigState.RUNNING, ConfigState.WAITING}
    killed = replace(
        report,
        configs=tuple(
            replace(config, state=ConfigState.INTERRUPTED) if config.state in stopped else config
            for config in report.configs
        ),
    )
    a_week_later = lay_out_timeline(killed, runs.BEGAN + 7 * 24 * runs.HOUR)
    assert a_week_later.ticks[-1].label == "3 h 30"

    log = tmp_path / "build.log"
    log.touch()
    os.utime(log, times=(runs.BEGAN + 6 * runs.HOUR,) * 2)
    until_then = replace(killed, configs=tuple(replace(config, log=log) for config in killed.configs))
    assert lay_out_timeline(until_then, runs.BEGAN + 7 * 24 * runs.HOUR).ticks[-1].label == "6 h"


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0.2, ["0", "1 s"]),
        (25, ["0", "5 s", "10 s", "15 s", "20 s", "25 s"]),
        (100, ["0", "10 s", "20 s", "30 s", "40 s", "50 s", "1 min", "1 min 10", "1 min 20", "1 min 30", "1 min 40"]),
        (3 * 3600, ["0", "30 min", "1 h", "1 h 30", "2 h", "2 h 30", "3 h"]),
        (50 * 3600, ["0", "6 h", "12 h", "18 h", "1 d", "1 d 6", "1 d 12", "1 d 18", "2 d"]),
    ],
)
def test_ticks_stand_at_round_times(seconds: float, labels: list[str]) -> None:
    report = replace(runs.worked_through({}), finished=runs.BEGAN + seconds)
    assert [tick.label for tick in lay_out_timeline(report, runs.BEGAN).ticks] == labels


def test_the_time_of_steps_goes_to_phases_and_the_rest_of_a_config_to_waiting() -> None:
    phases = (Phase(name="solve", seconds=2.0), Phase(name="script", seconds=7.0))
    steps = (
        StepReport(title="fetch wheels, 3 MB", seconds=4.0),
        StepReport(title="build a", seconds=10.0, phases=phases),
        StepReport(title="build b", seconds=5.0),
        StepReport(title="build c", seconds=50.0, reused=True),
        StepReport(title="test p", seconds=6.0),
    )
    package = builders.package_report("p")
    package = replace(package, tests=replace(package.tests, install_seconds=2.5))
    config = ConfigRun(
        config="a", state=ConfigState.DONE, group="", started=0.0, finished=30.0, steps=steps, packages=(package,)
    )
    assert time_by_phase([config], 99.0) == {
        "wait": 5.0,
        "download": 4.0,
        "solve": 2.0,
        "install": 2.5,
        "script": 12.0,
        "pack": 1.0,
        "test": 3.5,
    }
    assert time_by_phase([], 1.0) == {}
