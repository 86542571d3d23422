"""Functions of Windows' kernel32, by their documented names; see learn.microsoft.com/windows/win32."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

PROCESS_QUERY_LIMITED_INFORMATION, SYNCHRONIZE = 0x1000, 0x0010_0000
WAIT_TIMEOUT = 258
_EXTENDED_LIMIT_INFORMATION = 9  # of JOBOBJECTINFOCLASS
_RETURN_HANDLES = frozenset({"CreateJobObjectW", "GetCurrentProcess", "OpenProcess"})
LIMIT_PROCESS_MEMORY, LIMIT_KILL_ON_JOB_CLOSE = 0x0100, 0x2000  # JOB_OBJECT_LIMIT_...


class JobBasicLimits(ctypes.Structure):
    """JOBOBJECT_BASIC_LIMIT_INFORMATION."""

    _fields_ = (
        ("process_time", ctypes.c_int64),
        ("job_time", ctypes.c_int64),
        ("flags", ctypes.c_uint32),
        ("smallest_working_set", ctypes.c_size_t),
        ("largest_working_set", ctypes.c_size_t),
        ("processes", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("priority", ctypes.c_uint32),
        ("scheduling", ctypes.c_uint32),
    )


class JobExtendedLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION; ``io`` are the counters of IO_COUNTERS, which are not set."""

    _fields_ = (
        ("basic", JobBasicLimits),
        ("io", ctypes.c_uint64 * 6),
        ("process_memory", ctypes.c_size_t),
        ("job_memory", ctypes.c_size_t),
        ("peak_process_memory", ctypes.c_size_t),
        ("peak_job_memory", ctypes.c_size_t),
    )


class ProcessMemoryCounters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS_EX: ``private`` is the memory that is the process's alone."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("page_faults", ctypes.c_uint32),
        *((name, ctypes.c_size_t) for name in ("peak_working_set", "working_set", "peak_paged", "paged")),
        *((name, ctypes.c_size_t) for name in ("peak_nonpaged", "nonpaged", "page_file", "peak_page_file", "private")),
    )


class MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        *((name, ctypes.c_uint64) for name in ("free", "total_page_file", "free_page_file")),
        *((name, ctypes.c_uint64) for name in ("total_virtual", "free_virtual", "free_extended")),
    )


if sys.platform == "win32":

    def call_kernel32(name: str, *arguments: Any) -> int:
        """Call a function of kernel32 and return its result; integers are handles.

        Raises:
            OSError: the result is 0.
        """
        function = getattr(ctypes.WinDLL("kernel32", use_last_error=True), name)
        function.restype = ctypes.c_void_p if name in _RETURN_HANDLES else ctypes.c_uint32
        words = [ctypes.c_void_p(word) if isinstance(word, int) else word for word in arguments]
        result = function(*words)
        if not result:
            raise ctypes.WinError(ctypes.get_last_error())
        return int(result)

    def set_job_limits(job: int, *, flags: int, process_memory: int = 0) -> None:
        """Set the limits of a job, which replace those that it had."""
        limits = JobExtendedLimits()
        limits.basic.flags, limits.process_memory = flags, process_memory
        size = ctypes.sizeof(limits)
        call_kernel32("SetInformationJobObject", job, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), size)
