"""What a run over the matrix has told so far, for whoever draws it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln.console.progress import Journal, in_words
from kiln.console.states import BAD, GOOD
from kiln.console.text import one_line
from kiln.model.run import CellState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kiln.model.compile import Progress
    from kiln.model.run import CellRun, MatrixReport

TAIL = 20  # lines that are kept of each step, to be shown when it fails


@dataclass(slots=True)
class Voice:
    """What a cell says: its step, the last lines of that step's output as they came, how far its compile is."""

    step: str = ""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))
    progress: Progress | None = None
    journal: Journal = field(default_factory=Journal)


class Board:
    """The cells of a run in their order of work, each with its latest state and its voice."""

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self._labels = labels or {}
        self.report: MatrixReport | None = None
        self.cells: dict[str, CellRun] = {}
        self.voices: dict[str, Voice] = {}

    def take(self, report: MatrixReport) -> None:
        """Take over all cells of a report."""
        self.report = report
        self.cells = {cell.config: cell for cell in report.cells}

    def change(self, cell: CellRun) -> None:
        """Take over a cell's new state."""
        self.cells[cell.config] = cell

    def hear(self, config: str, step: str, line: str) -> None:
        """Keep a line as it came; it is made harmless when it is shown, which is far less often."""
        voice = self.voices.get(config)
        if voice is None or voice.step != step:
            voice = self.voices[config] = Voice(step)
        if line:
            voice.lines.append(line)

    def advance(self, config: str, progress: Progress) -> str:
        """Keep how far a compile is; return what is worth a line of it, mostly nothing."""
        voice = self.voices.setdefault(config, Voice())
        voice.progress = progress
        return voice.journal.worth_saying(progress)

    def label(self, config: str) -> str:
        """Return what a cell is called: by what varies, if that is known, or by the name of its file."""
        return self._labels.get(config, config)

    def step(self, config: str) -> str:
        """Return the step of a cell that was heard of last."""
        return one_line(self.voices[config].step) if config in self.voices else ""

    def last_line(self, config: str) -> str:
        """Return how far the compile is, or else the last line that says something."""
        voice = self.voices.get(config)
        if voice and voice.progress:
            return in_words(voice.progress)
        return next((text for line in reversed(voice.lines) if (text := one_line(line))), "") if voice else ""

    def tail(self, config: str) -> list[str]:
        """Return the last lines of the cell's step."""
        voice = self.voices.get(config)
        return [text for line in voice.lines if (text := one_line(line))] if voice else []

    def failures(self) -> Iterator[CellRun]:
        """The cells that went wrong."""
        return (cell for cell in self.cells.values() if cell.state in BAD)

    def remaining(self, now: float) -> float | None:
        """Return the seconds until the last cell ends, by the estimates, or None when there is none to go by.

        Cells without an estimate count as the mean of those that have ended or that have one.
        """
        known = [length for cell in self.cells.values() if (length := _expected(cell)) is not None]
        open_cells = [cell for cell in self.cells.values() if cell.state in {CellState.RUNNING, CellState.WAITING}]
        if not known or not open_cells:
            return None
        mean = sum(known) / len(known)
        slots = [0.0] * max(1, self.report.jobs if self.report else 1)
        for cell in sorted(open_cells, key=lambda cell: cell.state is CellState.WAITING):
            whole = cell.estimate or mean
            first = slots.index(min(slots))
            slots[first] += max(0.0, whole - (now - cell.started if cell.started else 0.0))
        return max(slots)


def _expected(cell: CellRun) -> float | None:
    """How long a cell takes: as it was, or as it is estimated."""
    if cell.state in GOOD and cell.started and cell.finished:
        return cell.finished - cell.started
    return cell.estimate
