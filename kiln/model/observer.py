"""The interface between a run over the matrix and its views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kiln.model.bazel_progress_and_report import Progress
    from kiln.model.run import ConfigRun, MatrixReport, RunCost


class RunObserver(Protocol):
    """An observer that shows a run: a live view, plain lines, a CI's groups.

    All methods are called from one thread, in the order of the events, and must return at once. Events are stored
    before they are reported: an observer that raises an error ends the run, and loses nothing.
    """

    def run_began(self, report: MatrixReport) -> None:
        """Show that a run begins: its configs in the order of work, cached ones in that state."""

    def config_changed(self, config: ConfigRun) -> None:
        """Show a config's new state; all fields are current."""

    def output_line_received(self, config: str, step: str, line: str) -> None:
        """Show a line of output of a config's step; it is empty when the step begins."""

    def compile_progress_changed(self, config: str, progress: Progress) -> None:
        """Show the progress of the compile in a config's step, twice a second at most."""

    def run_cost_changed(self, cost: RunCost) -> None:
        """Show the cost of a run on workers, which changes all the time."""

    def run_ended(self, report: MatrixReport) -> None:
        """Show that the run is over, finished or stopped, with the state of every config."""
