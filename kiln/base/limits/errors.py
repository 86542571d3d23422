"""The limits, the record of the current file and line, and the errors of work that exceeds a limit."""

from __future__ import annotations

import mmap
from typing import ClassVar

from kiln.base.errors import UnsafeTemplate
from kiln.base.position import Place

SECONDS: float = 8  # of processor time; the slowest known feedstock takes half a second
MEMORY = 320 << 20  # bytes beyond what the process has when it begins
NOTE = 4096  # bytes for the current file and line
_WHAT = "rendering takes more work than a recipe needs"
_HINT = "reduce the work there: shorter texts, fewer values, no needless loop"

Note = mmap.mmap | bytearray


class OutOfTime(BaseException):
    """The processor time is spent; a BaseException, which handlers of ordinary errors do not catch."""


class BoundedRunState:
    """The state of this process's limits: whether they are set, and the page with the current file and line."""

    inside: ClassVar[bool] = False
    note: ClassVar[Note | None] = None


def record_place(file: str, line: int = 0) -> None:
    """Record the current file and line, for the error of work that is ended there."""
    if BoundedRunState.note is not None:
        text = f"{file}\0{line}\0".encode(errors="replace")[:NOTE]
        BoundedRunState.note[: len(text)] = text


def recorded_place(note: Note) -> Place | None:
    """Return the recorded file and line."""
    file, line, *_ = (*note[:].decode(errors="replace").split("\0"), "", "")
    return Place(file=file, line=int(line) if line.isdecimal() else 0) if file else None


def limit_error_or_none(error: BaseException, note: Note) -> UnsafeTemplate | None:
    """Return the error of work that exceeds a limit; None for every other error."""
    match error:
        case OutOfTime():
            return processor_time_error(note)
        case MemoryError() | SystemError():  # SystemError: the interpreter had no memory left for a MemoryError
            return limit_exceeded_error(note, f"it takes more than {MEMORY >> 20} MB of memory")
        case RecursionError():
            return limit_exceeded_error(note, "it is nested too deeply")
    return None


def processor_time_error(note: Note) -> UnsafeTemplate:
    """Return the error of work that takes too long."""
    return limit_exceeded_error(note, f"it takes more than {SECONDS} s of processor time")


def limit_exceeded_error(note: Note, why: str) -> UnsafeTemplate:
    """Return the error of work that exceeds a limit, at the recorded file and line."""
    return UnsafeTemplate(_WHAT, at=recorded_place(note), why=why, hint=_HINT)
