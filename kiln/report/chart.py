"""Who ran when: the cells of a run laid into lanes along a time axis, all positions in percent of its length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.model.run import CellState
from kiln.report import totals

if TYPE_CHECKING:
    from kiln.model.run import CellRun, MatrixReport

_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
_TICKS = 10  # at most, about


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A cell in the chart: ``ghost`` is how much longer it is expected to take, ``open`` when its end is not known."""

    cell: CellRun
    start: float
    width: float
    ghost: float
    open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A mark of the axis with the time since the run began."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lanes of bars, one lane for each job that ran at the same time, and the axis below.

    ``machines`` are the lanes' machines of the fleet, where cells were built on such.
    """

    lanes: tuple[tuple[Bar, ...], ...]
    machines: tuple[str, ...]
    ticks: tuple[Tick, ...]


def chart(report: MatrixReport, now: float) -> Chart:
    """Lay out a run; ``now`` (seconds since the epoch) is where a run that goes on has got to."""
    end = totals.last_moment(report, now)
    expected = [cell.started + (cell.estimate or 0) for cell in report.cells if _runs(cell) and cell.started]
    length = max(1.0, max([end, *expected]) - report.started)
    cells = _lanes(report, end)
    lanes = tuple(tuple(_bar(cell, report.started, end, length) for cell in lane) for lane in cells)
    machines = tuple(lane[0].machine for lane in cells)
    return Chart(lanes=lanes, machines=machines if any(machines) else (), ticks=_ticks(length))


def _lanes(report: MatrixReport, end: float) -> list[list[CellRun]]:
    """Give each cell the first lane of its machine that is free when it begins: no more than ever ran at once."""
    lanes: list[list[CellRun]] = []
    for cell in sorted(report.cells, key=lambda cell: cell.started or 0):
        if cell.started is None:
            continue
        own = [lane for lane in lanes if lane[0].machine == cell.machine]
        free = next((lane for lane in own if (lane[-1].finished or end) <= cell.started), None)
        if free is None:
            lanes.append([cell])
        else:
            free.append(cell)
    return sorted(lanes, key=lambda lane: lane[0].machine)


def _bar(cell: CellRun, began: float, end: float, length: float) -> Bar:
    start = (cell.started or began) - began
    until = max(start, (cell.finished or end) - began)
    ghost = start + (cell.estimate or 0) - until if _runs(cell) else 0.0
    return Bar(
        cell=cell,
        start=round(100 * start / length, 3),
        width=round(100 * (until - start) / length, 3),
        ghost=round(100 * max(0.0, ghost) / length, 3),
        open=cell.finished is None,
    )


def _runs(cell: CellRun) -> bool:
    return cell.state is CellState.RUNNING


def _ticks(length: float) -> tuple[Tick, ...]:
    step = next((step for step in _STEPS if length / step <= _TICKS), _STEPS[-1])
    marks = range(0, int(length) + 1, step)
    return tuple(Tick(at=round(100 * mark / length, 3), label=_label(mark)) for mark in marks)


def _label(seconds: int) -> str:
    """A round time in its largest units: ``30 s``, ``5 min``, ``1 h 30``, ``2 d``."""
    for unit, name, below, digits in ((86400, "d", 3600, ""), (3600, "h", 60, "02"), (60, "min", 1, "02")):
        if seconds >= unit:
            whole, rest = divmod(seconds, unit)
            return f"{whole} {name}" + (f" {rest // below:{digits}}" if rest else "")
    return f"{seconds} s" if seconds else "0"
