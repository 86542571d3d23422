"""A run that goes on when its terminal is closed: the view is lost, the run is not."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import TYPE_CHECKING

from kiln import signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kiln.model.bazel_progress_and_report import Progress
    from kiln.model.observer import RunObserver
    from kiln.model.run import ConfigRun, MatrixReport, RunCost

LOST = frozenset({errno.EIO, errno.EPIPE, errno.ENXIO})  # of a terminal, or of a program that read the output


@contextlib.contextmanager
def survive_hangup() -> Iterator[None]:
    """Have SIGHUP not end the block: from then on, what was meant for the terminal goes to /dev/null.

    A SIGHUP that was ignored when this process was started, as by nohup, stays ignored.
    """
    is_main = threading.current_thread() is threading.main_thread()
    terminals = [descriptor for descriptor in (0, 1, 2) if _is_terminal(descriptor)]
    hangups = signals.hangup_signals() if is_main else ()
    with signals.temporary_signal_handler(hangups, lambda *_: redirect_to_dev_null(terminals)):
        yield


def redirect_to_dev_null(descriptors: list[int]) -> None:
    """Replace open files of this process by /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:  # it is closed
        return False


class TerminalLossTolerantView:
    """An observer that shows a run in a view as long as its output has a reader."""

    def __init__(self, view: RunObserver) -> None:
        self._view = view
        self._is_lost = False

    def run_began(self, report: MatrixReport) -> None:
        """Show that a run begins."""
        self._show_unless_lost(lambda: self._view.run_began(report))

    def config_changed(self, config: ConfigRun) -> None:
        """Show a config's new state."""
        self._show_unless_lost(lambda: self._view.config_changed(config))

    def output_line_received(self, config: str, step: str, line: str) -> None:
        """Show a line of output."""
        self._show_unless_lost(lambda: self._view.output_line_received(config, step, line))

    def compile_progress_changed(self, config: str, progress: Progress) -> None:
        """Show the progress of a compile."""
        self._show_unless_lost(lambda: self._view.compile_progress_changed(config, progress))

    def run_cost_changed(self, cost: RunCost) -> None:
        """Show the cost."""
        self._show_unless_lost(lambda: self._view.run_cost_changed(cost))

    def run_ended(self, report: MatrixReport) -> None:
        """Show that the run is over."""
        self._show_unless_lost(lambda: self._view.run_ended(report))

    def _show_unless_lost(self, action: Callable[[], None]) -> None:
        if self._is_lost:
            return
        try:
            action()
        except OSError as error:
            if error.errno not in LOST:
                raise
            self._is_lost = True
            redirect_to_dev_null([2])
