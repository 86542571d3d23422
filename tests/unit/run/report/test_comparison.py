"""A run is compared with the last result of each of its configs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kiln.run.report.comparison import compare_with_earlier_runs
from kiln.state.results import ConfigRun, ConfigState, MatrixReport
from tests import runs

if TYPE_CHECKING:
    from collections.abc import Callable

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
