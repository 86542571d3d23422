"""Bound the processor time and the memory that hostile input can make kiln spend.

A check inside a process runs between two steps of the interpreter, and one step of a template (a text repeated, a long
number read, nested lists compared) can take gigabytes or run forever. So recipes and variant files are read in a fork
of this process under the system's own limits. A fork costs some milliseconds and has all modules and caches of this
process; a fork around a whole job serves all the calls inside it.

Windows has no fork: there, the work is done in this process, see `kiln.base.limits.in_process`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeVar

from kiln.base.limits.errors import BoundedRunState, OutOfTime, record_place

if sys.platform == "win32":
    from kiln.base.limits.in_process import run_bounded as _limited
else:
    from kiln.base.limits.forked import run_bounded as _limited

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OutOfTime", "record_place", "run_bounded"]

Result = TypeVar("Result")


def run_bounded(work: Callable[[], Result]) -> Result:
    """Return the result of ``work``, run under limits; under limits already, call it directly.

    The result is copied where that is possible: it must be plain data. Other changes of ``work`` in memory are lost.

    Raises:
        UnsafeTemplate: the work needs too much processor time or memory.
        Exception: the errors of ``work``.
    """
    return work() if BoundedRunState.inside else _limited(work)
