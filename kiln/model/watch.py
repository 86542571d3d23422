"""What a run over the matrix tells while it goes on, to whoever shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kiln.model.compile import Progress
    from kiln.model.run import CellRun, MatrixReport


class Watcher(Protocol):
    """Shows a run: a live view, plain lines, a CI's groups.

    All methods are called from one thread, in the order in which things happen, and are to return at once. The run is
    written down before it is told: a watcher that raises ends the run, and loses nothing.
    """

    def run_began(self, report: MatrixReport) -> None:
        """Hear that a run begins: its cells in the order of work, those found finished already in that state."""

    def cell_changed(self, cell: CellRun) -> None:
        """Hear of a cell's new state, all of its fields as they are now."""

    def cell_line(self, config: str, step: str, line: str) -> None:
        """Hear a line of output of a cell's step; the line is empty when the step begins."""

    def cell_progress(self, config: str, progress: Progress) -> None:
        """Hear how far the compile of a cell's step is, twice a second at most."""

    def run_ended(self, report: MatrixReport) -> None:
        """Hear that the run is over, finished or stopped, with what became of every cell."""
