"""Figures of a run and of its cells: times, memory, packages, tests."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.model.artifact import Verdict
from kiln.model.run import CellState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.model.artifact import PackageReport
    from kiln.model.run import CellRun, MatrixReport

OPEN = frozenset({CellState.RUNNING, CellState.WAITING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tests:
    """How many packages' tests passed, of those that have been run."""

    passed: int
    run: int

    def __str__(self) -> str:
        return f"{self.passed} of {self.run} pass" if self.run else ""


def goes_on(report: MatrixReport) -> bool:
    """Whether a run is under way; one that was killed is neither finished nor has it cells to come."""
    return report.finished is None and any(cell.state in OPEN for cell in report.cells)


def last_moment(report: MatrixReport, now: float) -> float:
    """Return when a run ended, in seconds since the epoch: of one that was killed, the last moment that is known."""
    if report.finished is not None:
        return report.finished
    if goes_on(report):
        return now
    return max([report.started, *(moment for cell in report.cells for moment in _moments(cell))])


def _moments(cell: CellRun) -> Iterable[float]:
    if cell.started is not None:
        yield cell.started + sum(step.seconds for step in cell.steps)
        if cell.finished is None and cell.log is not None:
            with contextlib.suppress(OSError):
                yield cell.log.stat().st_mtime  # a cell that was killed wrote there until then
    if cell.finished is not None:
        yield cell.finished


def took(cell: CellRun, end: float) -> float | None:
    """Return the seconds that a cell has been worked on, until ``end`` unless it is over."""
    return None if cell.started is None else max(0.0, (cell.finished or end) - cell.started)


def cached(cell: CellRun) -> str:
    """Return how many of a compile's actions were found in a cache, of those that could be; nothing without any."""
    compiles = [step.compile for step in cell.steps if step.compile]
    hits, sought = sum(each.hits for each in compiles), sum(each.hits + each.misses for each in compiles)
    return f"{hits:,} of {sought:,}" if compiles else ""


def size(packages: Iterable[PackageReport]) -> int:
    """Return the bytes of packages together."""
    return sum(package.artifact.size for package in packages)


def tests(packages: Iterable[PackageReport]) -> Tests:
    """Return what the tests of packages said."""
    verdicts = [package.tests.verdict for package in packages]
    ran = [verdict for verdict in verdicts if verdict is not Verdict.NONE]
    return Tests(passed=ran.count(Verdict.PASSED), run=len(ran))
