"""Handle signals to this process: end it with its parent and its descendants, and interrupt it for a clean exit."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

from kiln.operating_system import processes
from kiln.process_table import kill_descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

TOGETHER = 1.0  # seconds within which two signals count as one


def die_with_parent(number: signal.Signals = processes.KILL, *, parent: int | None = None) -> None:
    """Have this process get a signal when its parent ends, even by SIGKILL.

    ``parent`` is the number of that process, if known: if it has ended while this process was starting, exit.
    """
    processes.die_with_parent(number)
    if parent is not None and os.getppid() != parent:
        os._exit(128 + number)


def end_tree_on_signal(number: signal.Signals = signal.SIGTERM) -> None:
    """Have a signal end this process and its descendants at once, scripts among them.

    Python's own handlers wait until a library's call has returned, which may take long; a thread does not.
    """
    wakeup, trigger = os.pipe()
    processes.make_nonblocking(trigger)

    def end_tree() -> None:
        os.read(wakeup, 1)
        kill_descendants(os.getpid())
        os._exit(128 + number)

    threading.Thread(target=end_tree, daemon=True).start()
    signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(trigger, warn_on_full_buffer=False)


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end the block as Ctrl-C does, so that processes are stopped and files cleaned up.

    A SIGHUP that was ignored when this process was started, as by nohup, stays ignored, as does a SIGINT.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with temporary_signal_handler((signal.SIGTERM, *hangup_signals()), _interrupting_handler()):
        yield


def hangup_signals() -> tuple[signal.Signals, ...]:
    """Return SIGHUP, unless it was ignored when this process was started, or this system lacks it."""
    return tuple(number for number in processes.HANG_UP if signal.getsignal(number) is not signal.SIG_IGN)


@contextlib.contextmanager
def temporary_signal_handler(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handle signals in the block; must be called in the main thread."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _interrupting_handler() -> Callable[[int, FrameType | None], None]:
    """Return a handler that merges signals in quick succession: timeout(1) signals a process, then its group."""
    last = -math.inf

    def interrupt(number: int, _frame: FrameType | None) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before >= TOGETHER:
            raise KeyboardInterrupt(signal.Signals(number).name)

    return interrupt
