"""A run that goes on when its terminal is closed: the view is lost, the run is not."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import TYPE_CHECKING, cast

from kiln import signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kiln.model.observer import RunObserver

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


class _TerminalLossTolerantView:
    """An observer that shows a run in a view as long as its output has a reader."""

    def __init__(self, view: RunObserver) -> None:
        self._view = view
        self._is_lost = False

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a method of the view that does nothing once the view is lost."""
        show = getattr(self._view, name)

        def show_unless_lost(*event: object) -> None:
            if self._is_lost:
                return
            try:
                show(*event)
            except OSError as error:
                if error.errno not in LOST:
                    raise
                self._is_lost = True
                redirect_to_dev_null([2])

        return show_unless_lost


def terminal_loss_tolerant_view(view: RunObserver) -> RunObserver:
    """Return an observer that shows a run in a view as long as its output has a reader."""
    return cast("RunObserver", _TerminalLossTolerantView(view))
