"""The order of the builds of a run on one computer, given their groups and earlier durations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.run.simulation import (
    CompileAssumptions,
    estimate_by_sibling,
    estimate_jobs,
    expected_build_seconds,
    order_configs_for_build,
    queue_of_configs,
    total_build_seconds,
)
from kiln.state.ledger.ledger import BuildDuration
from kiln.state.results import ConfigRun, ConfigState, JobEstimate

if TYPE_CHECKING:
    from collections.abc import Iterable

GROUPS = {"a10": "cuda12.5", "a11": "cuda12.5", "b10": "cuda12.9", "b11": "cuda12.9", "c10": "cpu"}

TIMES = {"a10": 10.0, "a11": 90.0, "b10": 50.0, "b11": 40.0, "c10": 20.0}


def config(name: str, *, estimate: float | None = None) -> ConfigRun:
    return ConfigRun(config=name, state=ConfigState.WAITING, group=name[0], estimate=estimate)


def test_cold_builds_come_first_and_the_longest_first_among_equals() -> None:
    schedule = order_configs_for_build(GROUPS, TIMES)
    assert [item.config for item in schedule] == ["a11", "b10", "c10", "b11", "a10"]
    assert [item.cold for item in schedule] == [True, True, True, False, False]
    schedule = order_configs_for_build(GROUPS, TIMES, shared=False)
    assert [item.config for item in schedule] == ["a11", "b10", "b11", "c10", "a10"]
    assert not any(item.cold for item in schedule), "without a shared cache"
    schedule = order_configs_for_build({"a": "z", "b": "y", "c": "z", "d": "y"}, {})
    assert [item.config for item in schedule] == ["a", "b", "c", "d"], "without history, by name"


def test_a_config_without_history_is_expected_to_take_as_long_as_similar_ones() -> None:
    expected = {
        item.config: item.estimate
        for item in order_configs_for_build(GROUPS, {"a10": 10.0, "b10": 30.0, "other": 900.0})
    }
    assert expected == {"a10": 10.0, "a11": 10.0, "b10": 30.0, "b11": 30.0, "c10": 20.0}
    assert {item.estimate for item in order_configs_for_build(GROUPS, {})} == {None}
    (alone,) = order_configs_for_build({"a11": "a"}, {"a10": 10.0, "b10": 30.0}, finished={"a10": "a", "b10": "b"})
    assert alone.estimate == 10.0, "of a similar config that needs no build"


def test_a_warm_build_waits_for_the_cold_build_of_its_group() -> None:
    queue = queue_of_configs([config("a10"), config("a11"), config("b10")], shared=True)
    job = queue.next("", 0.0)
    assert job is not None
    queue.begin_build(job.config, job, 0.0)
    second = queue.next("", 0.0)
    assert second is not None
    assert {job.group, second.group} == {"a", "b"}
    queue.begin_build(second.config, second, 0.0)
    assert queue.next("", 0.0) is None, "the last config waits"
    queue.end_build(job.config)
    last = queue.next("", 1.0)
    assert last is not None
    queue.begin_build(last.config, last, 1.0)
    assert queue.is_running_build_cold(last.config) is False


def test_the_next_build_of_a_group_is_cold_after_its_cold_build_has_failed() -> None:
    queue = queue_of_configs([config("a10"), config("a11"), config("a12")], shared=True)
    job = queue.next("", 0.0)
    assert job is not None
    queue.begin_build(job.config, job, 0.0)
    queue.end_build(job.config, ok=False)
    job = queue.next("", 1.0)
    assert job is not None
    queue.begin_build(job.config, job, 1.0)
    assert queue.is_running_build_cold(job.config)
    assert queue.next("", 1.0) is None


def test_configs_that_share_nothing_do_not_wait() -> None:
    queue = queue_of_configs([config("a10"), config("a11")], shared=False)
    for _ in range(2):
        job = queue.next("", 0.0)
        assert job is not None
        queue.begin_build(job.config, job, 0.0)
    assert not queue


def test_the_total_time_is_that_of_the_longest_row_and_includes_waiting() -> None:
    configs = [config(name, estimate=time) for name, time in (("a", 5.0), ("b", 3.0), ("c", 3.0))]
    assert total_build_seconds(configs, 2, shared=True) == 6.0
    assert total_build_seconds([*configs, config("x")], 2, shared=True) is None
    assert total_build_seconds([], 2, shared=True) == 0.0
    group = [config(name, estimate=4.0) for name in ("a1", "a2", "a3")]
    assert total_build_seconds(group, 3, shared=True) == 8.0, "the warm builds wait for the cold one"
    assert total_build_seconds(group, 3, shared=False) == 4.0


@given(st.dictionaries(st.text(min_size=1), st.sampled_from("abc"), max_size=12))
def test_every_config_is_scheduled_once_and_each_group_has_one_cold_build(groups: dict[str, str]) -> None:
    schedule = order_configs_for_build(groups, {})
    assert sorted(item.config for item in schedule) == sorted(groups)
    assert sorted(item.group for item in schedule if item.cold) == sorted(set(groups.values()))


ASSUMPTIONS = CompileAssumptions(compile=1000.0, cores=16, warm=0.2, parallel=0.9)

REQUESTS = (
    JobEstimate(config="a1", group="a"),
    JobEstimate(config="a2", group="a"),
    JobEstimate(config="b1", group="b"),
)


def build(config: str, seconds: float, *, cold: bool = True, cores: float = 16) -> BuildDuration:
    return BuildDuration(config=config, cold=cold, seconds=seconds, cores=cores)


def estimates(
    *history: BuildDuration, cores: float = 16, stated: Iterable[BuildDuration] = ()
) -> dict[str, tuple[float, float, str]]:
    jobs = estimate_jobs(REQUESTS, history, cores=cores, assumptions=ASSUMPTIONS, stated=stated)
    return {job.config: (round(job.cold, 6), round(job.warm, 6), job.source) for job in jobs}


def test_without_history_the_assumptions_are_used_and_named_as_such() -> None:
    assert estimates() == dict.fromkeys(("a1", "a2", "b1"), (1000.0, 200.0, "assumed"))


def test_the_estimate_is_the_last_duration_else_the_average_of_the_group_else_that_of_all() -> None:
    assert estimates(build("a1", 500.0)) == {
        "a1": (500.0, 100.0, "history"),
        "a2": (500.0, 100.0, "similar configs"),
        "b1": (500.0, 100.0, "similar configs"),
    }
    assert estimates(build("a1", 500.0), build("b1", 900.0))["a2"] == (500.0, 100.0, "similar configs")


def test_what_is_stated_counts_before_other_groups_and_after_the_own() -> None:
    stated = [build("a1", 7200.0, cores=4), build("a2", 7200.0, cores=4)]
    seconds = round(7200.0 * ASSUMPTIONS.slowdown(16, 4), 6)
    said = (seconds, round(seconds * 0.2, 6), "stated")
    assert estimates(stated=stated) == {"a1": said, "a2": said, "b1": (1000.0, 200.0, "assumed")}
    measured = estimates(build("b1", 500.0), build("b1", 60.0, cold=False), stated=stated)
    assert measured == {"a1": said, "a2": said, "b1": (500.0, 60.0, "history")}
    assert estimates(build("a1", 50.0), stated=stated)["a2"] == (50.0, 10.0, "similar configs")


def test_of_several_builds_of_a_group_the_average_is_expected() -> None:
    groups = {"a1": "a", "a2": "a", "a3": "a", "b1": "b"}
    durations = {"a1": 100.0, "a2": 300.0, "b1": 800.0}
    assert expected_build_seconds("a3", groups, durations) == (200.0, "similar configs")
    assert expected_build_seconds("a1", groups, durations) == (100.0, "history")
    assert expected_build_seconds("a1", groups, {}) == (None, "")


SAID = JobEstimate(config="a2", group="a", cold=1000.0, warm=200.0, source="assumed")


@pytest.mark.parametrize(
    ("job", "sibling", "cold", "expected"),
    [
        (SAID, "a", True, (32.0, 6.4, "this run")),
        (SAID, "a", False, (1000.0, 32.0, "this run")),
        (SAID, "b", True, (32.0, 6.4, "this run")),
        (SAID, "b", False, (1000.0, 200.0, "assumed")),
        (replace(SAID, source="this run"), "a", True, (32.0, 6.4, "this run")),
        (replace(SAID, source="this run"), "b", True, (1000.0, 200.0, "this run")),
        (replace(SAID, cold=10.0, source="this run"), "a", False, (pytest.approx(32.0 / 0.99), 32.0, "this run")),
        *[(replace(SAID, source=known), "a", True, (1000.0, 200.0, known)) for known in ("history", "stated")],
    ],
)
def test_what_a_sibling_took_replaces_an_assumption_alone(
    job: JobEstimate, sibling: str, cold: bool, expected: tuple[float, float, str]
) -> None:
    made = estimate_by_sibling(job, JobEstimate(config="x", group=sibling), 32.0, cold=cold, warm=0.2)
    assert (made.cold, made.warm, made.source) == expected


def test_warm_builds_have_their_own_history() -> None:
    jobs = estimates(build("a1", 500.0), build("a2", 60.0, cold=False))
    assert jobs["a2"] == (500.0, 60.0, "similar configs")
    assert jobs["b1"] == (500.0, 60.0, "similar configs")


def test_more_cores_shorten_only_the_parallel_part() -> None:
    assert ASSUMPTIONS.slowdown(16, 16) == 1.0
    assert ASSUMPTIONS.slowdown(1, 16) == pytest.approx(1 / (0.1 + 0.9 / 16))
    (seconds, _, _), *_ = estimates(build("a1", 500.0, cores=4), cores=4).values()
    assert seconds == pytest.approx(500.0)
    assert {ASSUMPTIONS.slowdown(0, 16), ASSUMPTIONS.slowdown(16, 0)} == {1.0}
    (seconds, _, _), *_ = estimates(build("a1", 500.0, cores=4), cores=8).values()
    assert seconds == pytest.approx(500.0 * (0.1 + 0.9 / 8) / (0.1 + 0.9 / 4))
