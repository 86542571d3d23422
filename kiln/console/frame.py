"""One picture of a run for a terminal of some width and height: lines of text, each with its style."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.console.states import BAD, GOOD, ORDER, SIGNS, counted
from kiln.console.text import clock, duration, fit, fit_name
from kiln.model.run import CellState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kiln.console.board import Board
    from kiln.model.run import CellRun

Span = tuple[str, str]  # text and its style: the parameters of SGR, such as "32", or nothing
Line = tuple[Span, ...]

DIM = "2"
STYLES = {
    CellState.WAITING: DIM,
    CellState.RUNNING: "36",
    CellState.DONE: "32",
    CellState.FOUND: "32",
    CellState.FAILED: "1;31",
    CellState.OUT_OF_MEMORY: "1;31",
    CellState.DISK_FULL: "1;31",
    CellState.INTERRUPTED: "33",
    CellState.ELSEWHERE: "35",
}
_TIME, _STEP, _LINE = 17, 34, 12  # columns: elapsed and estimate; the most for a step; the least for a line of output


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """The columns of a row; 0 leaves a field out."""

    label: int
    time: int
    step: int
    line: int


def frame(board: Board, *, now: float, width: int, height: int | None) -> list[Line]:
    """Return the lines of a picture that is ``width`` columns wide and, unless None, ``height`` lines high.

    Where the cells are too many, those that went wrong or go on come first, and the rest are counted.
    """
    cells, left_out = _shown(list(board.cells.values()), None if height is None else max(1, height - 3))
    widths = _widths([board.label(cell.config) for cell in cells], width)
    lines = [_heading(board, now, width), _bar(board, width)]
    lines += [_row(board, cell, now, widths) for cell in cells]
    if left_out:
        lines.append(((fit(f"… and {counted(cell.state for cell in left_out)}", width).rstrip(), DIM),))
    return lines


def _shown(cells: list[CellRun], room: int | None) -> tuple[list[CellRun], list[CellRun]]:
    if room is None or len(cells) <= room:
        return cells, []
    ordered = sorted(cells, key=lambda cell: ORDER.index(cell.state))
    return ordered[: room - 1], ordered[room - 1 :]


def _widths(labels: Sequence[str], width: int) -> Widths:
    """Share out a line: the label first, then the times, the step and the line of output as far as there is room."""
    from rich.cells import cell_len

    label = min(max(map(cell_len, labels), default=0), max(width - 3, 0))
    if label > width - 3 - _TIME > 12:
        label = width - 3 - _TIME
    rest = width - 2 - label
    time = _TIME if rest > _TIME else 0
    rest -= time + 2
    step = min(_STEP, rest, max(_LINE, rest * 2 // 5)) if rest >= _LINE else 0
    line = rest - step - 2
    return Widths(label=label, time=time, step=step, line=line if step and line >= _LINE else 0)


def _heading(board: Board, now: float, width: int) -> Line:
    """How far the run is, in as many words as there is room for: the states stand in the rows below as well."""
    from rich.cells import cell_len

    states = [cell.state for cell in board.cells.values()]
    over = sum(state in GOOD for state in states)
    others = counted(state for state in states if state not in GOOD)
    done, rest = f"{over} of {len(states)} done", f", {others}" if others else ""
    began = board.report.started if board.report else now
    ended = board.report.finished if board.report else None
    time = f"  {clock((ended or now) - began)}"
    remaining = board.remaining(now)
    left = "" if remaining is None else f", about {duration(max(60.0, round(remaining, -1)))} left"
    texts = (done + rest + time + left, done + time + left, done + time, done)
    return ((fit(next((text for text in texts if cell_len(text) <= width), done), width).rstrip(), "1"),)


def _bar(board: Board, width: int) -> Line:
    """The share of each kind of state, as a line in colours; the same is told in words above it."""
    states = [cell.state for cell in board.cells.values()]
    kinds = ((GOOD, "32"), (BAD, "31"), ({CellState.RUNNING, CellState.ELSEWHERE}, "36"))
    spans: list[Span] = []
    for kind, style in kinds:
        share = sum(state in kind for state in states) * width // max(1, len(states))
        if share:
            spans.append(("━" * share, style))
    rest = width - sum(len(text) for text, _ in spans)
    return (*spans, ("─" * rest, DIM))


def _row(board: Board, cell: CellRun, now: float, widths: Widths) -> Line:
    style = STYLES[cell.state]
    spans = [(f"{SIGNS[cell.state]} ", style), (fit_name(board.label(cell.config), widths.label), "")]
    if widths.time:
        spans.append((_times(cell, now).rjust(widths.time), DIM))
    running = cell.state is CellState.RUNNING
    if widths.step:
        step = (board.step(cell.config) if running else "") or cell.state.value
        spans.append(("  " + fit(step, widths.step), style))
    if widths.line:
        line = board.last_line(cell.config) if running else cell.reason.partition("\n")[0]
        spans.append(("  " + fit(line, widths.line), DIM))
    return tuple(spans)


def _times(cell: CellRun, now: float) -> str:
    """The time that a cell has taken, and for one that is not over, the time that it is expected to take."""
    took = clock((cell.finished or now) - cell.started) if cell.started else ""
    expected = f"~{clock(cell.estimate)}" if cell.estimate and cell.finished is None else ""
    return " / ".join(text for text in (took, expected) if text)
