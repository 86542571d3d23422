"""A run told in plain lines, for a file or a pipe: what happens to each cell, with the time of day."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING

from kiln.console.board import Board
from kiln.console.states import SIGNS, counted
from kiln.console.text import duration, one_line
from kiln.model.run import CellState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from kiln.model.compile import Progress
    from kiln.model.run import CellRun, MatrixReport


class PlainView(AbstractContextManager["PlainView"]):
    """Tells a run line by line: every new state of a cell and every step that begins, but not their output."""

    def __init__(self, stream: IO[str], *, labels: Mapping[str, str] | None = None) -> None:
        """Print to ``stream``; ``labels`` are names for the cells."""
        self._stream = stream
        self._board = Board(labels)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def run_began(self, report: MatrixReport) -> None:
        """Tell how many cells there are, and which of them are finished already."""
        self._board.take(report)
        self._say(f"run {report.run}: {counted(cell.state for cell in report.cells)}; {report.jobs} at a time")
        for cell in report.cells:
            if cell.state is not CellState.WAITING:
                self._say(headline(self._board, cell))

    def cell_changed(self, cell: CellRun) -> None:
        """Tell of a new state; the same state again, with a new figure, is not told."""
        before = self._board.cells.get(cell.config)
        self._board.change(cell)
        if before is None or before.state is not cell.state:
            self._say(headline(self._board, cell))
        elif told := compiled(before, cell):
            self._say(f"{SIGNS[CellState.RUNNING]} {self._board.label(cell.config)}: {told}")

    def cell_line(self, config: str, step: str, line: str) -> None:
        """Tell of a step that begins."""
        voice = self._board.voices.get(config)
        self._board.hear(config, step, line)
        if step and (voice is None or voice.step != step):
            self._say(f"{SIGNS[CellState.RUNNING]} {self._board.label(config)}: {one_line(step)}")

    def cell_progress(self, config: str, progress: Progress) -> None:
        """Tell of each tenth of a compile, and of a stall."""
        if said := self._board.advance(config, progress):
            self._say(f"{SIGNS[CellState.RUNNING]} {self._board.label(config)}: {said}")

    def run_ended(self, report: MatrixReport) -> None:
        """Tell why cells failed, and the sum."""
        self._board.take(report)
        for cell in self._board.failures():
            print("", *told(self._board, cell), "", sep="\n", file=self._stream)
        self._say(f"run {report.run} ended: {counted(cell.state for cell in report.cells)}")

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=self._stream, flush=True)


def headline(board: Board, cell: CellRun) -> str:
    """Return a cell's state in one line."""
    took = f" after {duration(cell.finished - cell.started)}" if cell.started and cell.finished else ""
    expected = f", about {duration(cell.estimate)}" if cell.estimate and cell.state is CellState.RUNNING else ""
    why = f" ({one_line(cell.reason.partition(chr(10))[0])})" if cell.reason else ""
    return f"{SIGNS[cell.state]} {board.label(cell.config)}: {cell.state.value}{took}{expected}{why}"


def compiled(before: CellRun, cell: CellRun) -> str:
    """Return what a compile's actions came from, when it is what is new of a cell."""
    fresh = cell.steps[len(before.steps) :]
    return "; ".join(f"compiled {step.compile}" for step in fresh if step.compile)


def told(board: Board, cell: CellRun) -> Iterator[str]:
    """What went wrong with a cell: the reason, the step's last lines unless the reason has them, the log."""
    yield f"{SIGNS[cell.state]} {board.label(cell.config)}: {cell.state.value}"
    reason = [one_line(line) for line in cell.reason.splitlines()]
    yield from (f"  {line}" for line in reason if line)
    tail = board.tail(cell.config)
    if tail and tail[-1] not in cell.reason:
        yield from (f"    | {line}" for line in tail)
    if cell.log is not None:
        yield f"  log: {cell.log}"
