"""Limits on work in this process, for systems without forks: weaker than a process of its own.

An error is raised in the work when its time is spent, as soon as the interpreter's current step ends. A step that does
not end is ended with the whole process by a thread of faulthandler, which needs no turn of the interpreter and prints
the place. The system refuses memory; the memory that the process already had is not part of the limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import sys
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from kiln.base.limits import errors
from kiln.base.limits.errors import BoundedRunState
from kiln.base.system import machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Result = TypeVar("Result")

INTERVAL = 0.05  # seconds
STALL = 60  # seconds of the clock after which the process ends
_one_at_a_time = threading.Lock()  # the limits are the process's


def run_bounded(work: Callable[[], Result]) -> Result:
    """Return the result of ``work``; see `kiln.base.limits.run_bounded`."""
    note = bytearray(errors.NOTE)
    with _one_at_a_time:
        BoundedRunState.inside, BoundedRunState.note = True, note
        try:
            with machine.limit_memory_growth(errors.MEMORY), _limit_time():
                return work()
        except BaseException as error:
            failure = errors.limit_error_or_none(error, note)
            if failure is None:
                raise
            raise failure from None
        finally:
            BoundedRunState.inside, BoundedRunState.note = False, None


@contextlib.contextmanager
def _limit_time() -> Iterator[None]:
    """Raise OutOfTime in this thread when the block takes too long; end the process when that does not help."""
    finished, worker = threading.Event(), threading.get_ident()
    until = time.process_time() + errors.SECONDS
    lock = threading.Lock()

    def watch() -> None:
        while not finished.wait(INTERVAL):
            with lock:
                if time.process_time() > until and not finished.is_set():
                    # again each time: code of the work may catch it
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(worker), ctypes.py_object(errors.OutOfTime)
                    )

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    with _end_process_when_stalled():
        try:
            yield
        finally:
            with lock:
                finished.set()
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker), None)  # one that came too late


@contextlib.contextmanager
def _end_process_when_stalled() -> Iterator[None]:
    """End the process with a traceback when the block does not end."""
    with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):  # no standard error that is a file
        faulthandler.dump_traceback_later(STALL, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
