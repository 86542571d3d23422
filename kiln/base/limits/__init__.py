"""Bound the processor time and the memory that hostile input can make kiln spend.

A check inside a process runs between two steps of the interpreter, and one step of a template (a text repeated, a long
number read, nested lists compared) can take gigabytes or run forever. So recipes and variant files are read in a fork
of this process under the system's own limits. A fork costs some milliseconds and has all modules and caches of this
process; a fork around a whole job serves all the calls inside it.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import resource
import select
import signal
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from kiln.base.errors import KilnError
from kiln.base.limits import errors
from kiln.base.limits.errors import BoundedRunState, OutOfTime, record_place

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OutOfTime", "record_place", "run_bounded"]

Result = TypeVar("Result")

_LARGEST = 64 << 20  # bytes of a result
_STALL = 900  # seconds of the clock, for a process that waits
_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


def run_bounded(work: Callable[[], Result]) -> Result:
    """Return the result of ``work``, run in a fork of this process under limits; within one, call it directly.

    The result is copied: it must be plain data. Other changes of ``work`` in memory are lost.

    Raises:
        UnsafeTemplate: the work needs too much processor time or memory.
        Exception: the errors of ``work``.
    """
    if BoundedRunState.inside:
        return work()
    with mmap.mmap(-1, errors.NOTE) as note:
        reader, writer = os.pipe()
        # No signal may reach the child before it has reset the parent's handlers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        child = _fork()
        if not child:
            os.close(reader)  # so that a child whose parent is gone has no reader, and ends
            _run_in_child(work, writer, note)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writer)
        answer, status, usage = _read_output_and_reap_child(child, reader)
        if status:
            seconds = usage.ru_utime + usage.ru_stime
            if seconds >= errors.SECONDS:
                raise errors.processor_time_error(note)
            code = os.waitstatus_to_exitcode(status)
            raise errors.limit_exceeded_error(note, f"its process ended with status {code} after {seconds:.1f} s")
    result, error, trace = _FrozensetRestoringUnpickler(io.BytesIO(answer)).load()
    if error is not None:
        raise error from (None if isinstance(error, KilnError) else RuntimeError(trace))
    return result  # type: ignore[no-any-return]  # pickle returns Any


def _fork() -> int:
    """Fork. The child only runs Python code that takes no lock of the other threads, so these are harmless."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, for a process with threads
        return os.fork()


def _read_output_and_reap_child(child: int, reader: int) -> tuple[bytes, int, resource.struct_rusage]:
    """Return the child's output, its exit status, and its usage; an interrupt, or a stall, kills it."""
    finished = False
    try:
        chunks = []
        while not finished and select.select([reader], [], [], _STALL)[0]:
            chunks.append(os.read(reader, 1 << 20))
            finished = not chunks[-1]
    finally:
        os.close(reader)
        if not finished:
            os.kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
    return b"".join(chunks), status, usage


# In the child


def _run_in_child(work: Callable[[], object], writer: int, note: mmap.mmap) -> NoReturn:
    """Do the work, write its outcome, and exit without the parent's exit handlers."""
    code = 1
    try:
        BoundedRunState.inside, BoundedRunState.note = True, note
        _reset_signals()
        _set_resource_limits()
        answer = memoryview(_run_and_pickle(work, note))
        while answer:
            answer = answer[os.write(writer, answer) :]
        code = 0
    finally:
        os._exit(code)


def _reset_signals() -> None:
    """Reset signal handlers; the parent's clean up files that are not this process's."""
    signal.set_wakeup_fd(-1)
    for number in _ENDING:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def _set_resource_limits() -> None:
    """Set the limits: an error when the time is spent, and SIGKILL when a single step continues."""

    def raise_out_of_time(*_: object) -> None:
        raise OutOfTime

    signal.signal(signal.SIGPROF, raise_out_of_time)
    signal.setitimer(signal.ITIMER_PROF, errors.SECONDS)
    _lower_resource_limit(resource.RLIMIT_CORE, 0)
    _lower_resource_limit(resource.RLIMIT_CPU, int(errors.SECONDS) + 1)  # of whole seconds
    sizes = Path("/proc/self/statm")  # only Linux counts and bounds the allocated memory
    if sizes.is_file():
        _lower_resource_limit(
            resource.RLIMIT_DATA,
            int(sizes.read_text(encoding="utf-8").split()[5]) * resource.getpagesize() + errors.MEMORY,
        )


def _lower_resource_limit(kind: int, limit: int) -> None:
    soft, hard = (
        limit if current == resource.RLIM_INFINITY else min(limit, current) for current in resource.getrlimit(kind)
    )
    resource.setrlimit(kind, (soft, hard))


def _run_and_pickle(work: Callable[[], object], note: mmap.mmap) -> bytes:
    try:
        return _pickle_outcome(work(), None)
    except (OutOfTime, MemoryError, SystemError, RecursionError) as error:
        return _pickle_outcome(None, errors.limit_error_or_none(error, note))
    except KilnError as error:
        return _pickle_outcome(None, error)
    except Exception as error:  # noqa: BLE001 - any error is raised again in the parent
        import traceback

        return _pickle_outcome(None, error, traceback.format_exc())


class _FrozensetAsTuplePickler(pickle.Pickler):
    """Writes frozensets as tuples: CPython's fast mode counts each as one more level of nesting, and fails at the 50th.

    Its ``save_frozenset`` (Modules/_pickle.c of 3.11) enters a level that it never leaves.
    """

    def persistent_id(self, obj: object) -> tuple[object, ...] | None:
        """Return the elements of a frozenset; None for everything else."""
        return tuple(obj) if type(obj) is frozenset else None


class _FrozensetRestoringUnpickler(pickle.Unpickler):  # kiln's own data: recipes cannot run code
    """Reads what `_FrozensetAsTuplePickler` has written."""

    def persistent_load(self, pid: tuple[object, ...]) -> frozenset[object]:
        """Return a frozenset of the elements."""
        return frozenset(pid)


def _pickle_outcome(result: object, error: BaseException | None, trace: str = "") -> bytes:
    """Return an outcome as bytes, with shared objects repeated, so that its size is bounded when it is unpacked."""
    file = io.BytesIO()
    pickler = _FrozensetAsTuplePickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.fast = True
    pickler.dump((result, error, trace))
    if file.tell() > _LARGEST:
        raise MemoryError
    return file.getvalue()
