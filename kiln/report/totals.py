"""Figures of a run and of its configs: times, packages, tests."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.model.build_results import PackageReport, TestVerdict
from kiln.model.run import BAD, GOOD, OPEN, ConfigRun, ConfigState, MatrixReport

if TYPE_CHECKING:
    from collections.abc import Iterable

TEST_STEP = "test "  # the title of a test's step begins with it


@dataclass(frozen=True, slots=True, kw_only=True)
class TestTotals:
    """The number of packages whose tests ran and passed."""

    passed: int
    run: int

    def __str__(self) -> str:
        return f"{self.passed} of {self.run} pass" if self.run else ""


def is_running(report: MatrixReport) -> bool:
    """Return whether a run is in progress; a killed run is not finished, but has no open configs."""
    return report.finished is None and any(config.state in OPEN for config in report.configs)


def run_verdict(report: MatrixReport) -> str:
    """Return the verdict of a run: ``running``, ``failed``, ``interrupted`` or ``succeeded``."""
    states = {config.state for config in report.configs}
    if is_running(report):
        return "running"
    if states & BAD:
        return "failed"
    return "succeeded" if states <= GOOD else "interrupted"


def verdict_with_counts(report: MatrixReport) -> str:
    """Return the verdict of a run with its counts: ``2 of 9 failed``, ``9 of 9 built (7 cached)``."""
    states = [config.state for config in report.configs]
    total, bad = len(states), sum(state in BAD for state in states)
    cached = states.count(ConfigState.CACHED)
    counts = f"{sum(state in GOOD for state in states)} of {total} {'rehearsed' if report.rehearsal else 'built'}"
    counts += f" ({cached} cached)" if cached else ""
    failed = f"{bad} of {total} failed"
    match run_verdict(report):
        case "running":
            return f"running: {counts}" + (f", {failed}" if bad else "")
        case "failed":
            return failed
        case "succeeded":
            return counts if states else "nothing to build"
        case _:
            return f"interrupted: {counts}"


def end_or_last_recorded_time(report: MatrixReport, now: float) -> float:
    """Return the end of a run in seconds since the epoch; of a killed run, the last recorded time."""
    if report.finished is not None:
        return report.finished
    if is_running(report):
        return now
    return max([report.started, *(moment for config in report.configs for moment in _recorded_times(config))])


def _recorded_times(config: ConfigRun) -> Iterable[float]:
    if config.started is not None:
        yield config.started + sum(step.seconds for step in config.steps)
        if config.finished is None and config.log is not None:
            with contextlib.suppress(OSError):
                yield config.log.stat().st_mtime  # a killed config wrote to its log until then
    if config.finished is not None:
        yield config.finished


def elapsed_seconds(config: ConfigRun, end: float) -> float | None:
    """Return the seconds that a config took, up to ``end`` if it is not finished."""
    return None if config.started is None else max(0.0, (config.finished or end) - config.started)


def compile_cache_hits_text(config: ConfigRun) -> str:
    """Return the cache hits of a compile, of all cacheable actions; an empty text without a compile."""
    compiles = [step.compile for step in config.steps if step.compile]
    hits, lookups = sum(step.hits for step in compiles), sum(step.hits + step.misses for step in compiles)
    return f"{hits:,} of {lookups:,}" if compiles else ""


def total_package_size(packages: Iterable[PackageReport]) -> int:
    """Return the total size of packages in bytes."""
    return sum(package.artifact.size for package in packages)


def config_test_totals(config: ConfigRun) -> TestTotals:
    """Return the totals of the tests of a config's packages; a config that failed has only the steps of its tests."""
    if config.packages:
        verdicts = [package.tests.verdict for package in config.packages]
        results = [verdict for verdict in verdicts if verdict not in {TestVerdict.NONE, TestVerdict.SKIPPED}]
        return TestTotals(passed=results.count(TestVerdict.PASSED), run=len(results))
    steps = [step for step in config.steps if step.title.startswith(TEST_STEP)] if config.state in BAD else []
    if not any(step.failed for step in steps):
        return TestTotals(passed=0, run=0)  # it failed before its tests were over: none of them has a result
    return TestTotals(passed=sum(not step.failed for step in steps), run=len(steps))
