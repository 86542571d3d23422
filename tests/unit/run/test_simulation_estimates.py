"""Durations of builds are estimated from earlier builds, or else from assumptions."""

from __future__ import annotations

import pytest

from kiln.run.simulation import CompileAssumptions, estimate_jobs, expected_build_seconds
from kiln.state.ledger.ledger import BuildDuration
from kiln.state.results import JobEstimate

ASSUMPTIONS = CompileAssumptions(compile=1000.0, cores=16, warm=0.2, parallel=0.9)
REQUESTS = (
    JobEstimate(config="a1", group="a"),
    JobEstimate(config="a2", group="a"),
    JobEstimate(config="b1", group="b"),
)


def build(config: str, seconds: float, *, cold: bool = True, cores: float = 16) -> BuildDuration:
    return BuildDuration(config=config, cold=cold, seconds=seconds, cores=cores)


def estimates(*history: BuildDuration, cores: float = 16) -> dict[str, tuple[float, float, str]]:
    jobs = estimate_jobs(REQUESTS, history, cores=cores, assumptions=ASSUMPTIONS)
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


def test_of_several_builds_of_a_group_the_average_is_expected() -> None:
    groups = {"a1": "a", "a2": "a", "a3": "a", "b1": "b"}
    durations = {"a1": 100.0, "a2": 300.0, "b1": 800.0}
    assert expected_build_seconds("a3", groups, durations) == (200.0, "similar configs")
    assert expected_build_seconds("a1", groups, durations) == (100.0, "history")
    assert expected_build_seconds("a1", groups, {}) == (None, "")


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
