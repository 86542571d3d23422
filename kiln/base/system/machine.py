"""The memory, cores and disk writes of this process, and the system's limits on them."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


PACKAGE_ROOT = Path(__file__).parents[3]  # the folder that holds the kiln package, for `python -m`


UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineResources:
    """The resources of a machine: cores, and bytes of memory."""

    cores: int
    memory: int

    @classmethod
    def of_this_machine(cls) -> MachineResources:
        """Return the resources that this process may use, within its control group's limits."""
        return cls(cores=core_count(), memory=min(machine_memory(), _cgroup_memory_limit()))


def _cgroup_memory_limit() -> int:
    """Return the memory limit of this process's control group, in bytes; a huge number without one."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return int(Path("/sys/fs/cgroup", name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
    return UNLIMITED


if sys.platform == "win32":
    import ctypes

    from kiln.base.system import windows

    def machine_memory() -> int:
        """Return the bytes of memory of this machine."""
        status = windows.MemoryStatus()
        status.size = ctypes.sizeof(status)
        windows.call_kernel32("GlobalMemoryStatusEx", ctypes.byref(status))
        return int(status.total)

    def processor_name() -> str:
        """Return the name of the processor."""
        return os.environ.get("PROCESSOR_IDENTIFIER", "")

    def c_library_version() -> str:
        """Return the name and version of the GNU C library: empty."""
        return ""

    def private_memory() -> int:
        """Return the bytes of memory that are this process's alone."""
        counters = windows.ProcessMemoryCounters()
        counters.size = size = ctypes.sizeof(counters)
        process = windows.call_kernel32("GetCurrentProcess")
        windows.call_kernel32("K32GetProcessMemoryInfo", process, ctypes.byref(counters), size)
        return int(counters.private)

    def bytes_written() -> int:
        """Return the number of bytes that this process has written since it started."""
        counters = (ctypes.c_uint64 * 6)()  # IO_COUNTERS
        windows.call_kernel32(
            "GetProcessIoCounters", windows.call_kernel32("GetCurrentProcess"), ctypes.byref(counters)
        )
        return int(counters[4])

    def free_inode_count(folder: Path) -> int:  # noqa: ARG001
        """Return the number of files that the disk can still hold; 0, as NTFS has no such limit."""
        return 0

    def resource_hard_limit(name: str) -> int:  # noqa: ARG001
        """Return the most that this process may have of ``nofile`` or ``nproc``."""
        return UNLIMITED

    class _MemoryLimitJob:
        """The job of this process, which limits its memory; made at the first limit, and kept."""

        handle: int | None = None

        @classmethod
        def limit_memory(cls, memory: int | None) -> None:
            """Have the system refuse this process more bytes of memory than ``memory``; None for no limit."""
            if cls.handle is None:
                cls.handle = windows.call_kernel32("CreateJobObjectW", None, None)
                windows.call_kernel32(
                    "AssignProcessToJobObject", cls.handle, windows.call_kernel32("GetCurrentProcess")
                )
            flags = 0 if memory is None else windows.LIMIT_PROCESS_MEMORY
            windows.set_job_limits(cls.handle, flags=flags, process_memory=memory or 0)

    def limit_memory_and_file_size(*, memory: int, file_size: int | None) -> None:  # noqa: ARG001
        """Have the system limit this process's memory; Windows has no limit on the size of its files."""
        _MemoryLimitJob.limit_memory(memory)

    @contextlib.contextmanager
    def limit_memory_growth(amount: int) -> Iterator[None]:
        """Have the system refuse more than ``amount`` further bytes of memory during the block."""
        _MemoryLimitJob.limit_memory(private_memory() + amount)
        try:
            yield
        finally:
            _MemoryLimitJob.limit_memory(None)

else:
    import resource

    def machine_memory() -> int:
        """Return the bytes of memory of this machine."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def c_library_version() -> str:
        """Return the name and version of the GNU C library; empty with another one."""
        return os.confstr("CS_GNU_LIBC_VERSION") or "" if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""

    def free_inode_count(folder: Path) -> int:
        """Return the number of files that the disk can still hold; 0 where it has no such limit."""
        return os.statvfs(folder).f_ffree

    def resource_hard_limit(name: str) -> int:
        """Return the most that this process may have of ``nofile`` or ``nproc``."""
        kinds = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
        limit = resource.getrlimit(kinds[name])[1]
        return UNLIMITED if limit == resource.RLIM_INFINITY else limit

    def limit_memory_and_file_size(*, memory: int, file_size: int | None) -> None:
        """Have the kernel limit this process's memory and the size of its files."""
        _set_soft_limit(resource.RLIMIT_DATA, memory)
        _set_soft_limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY if file_size is None else file_size)

    def _set_soft_limit(kind: int, amount: int) -> None:
        _, most = resource.getrlimit(kind)
        resource.setrlimit(kind, (amount if most == resource.RLIM_INFINITY else min(amount, most), most))

    @contextlib.contextmanager
    def limit_memory_growth(amount: int) -> Iterator[None]:
        """Have the kernel refuse more than ``amount`` further bytes of memory during the block."""
        before = resource.getrlimit(resource.RLIMIT_DATA)
        _set_soft_limit(resource.RLIMIT_DATA, private_memory() + amount)
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)

    if sys.platform == "linux":
        _ANONYMOUS = re.compile(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)
        _WRITTEN = re.compile(r"^wchar: (\d+)$", re.MULTILINE)

        def processor_name() -> str:
            """Return the model name of the processor; empty where the kernel gives none."""
            lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")

        def private_memory() -> int:
            """Return the bytes of memory of this process that are not of files."""
            match = _ANONYMOUS.search(Path("/proc/self/status").read_text(encoding="utf-8", errors="replace"))
            return 1024 * int(match[1]) if match else 0

        def bytes_written() -> int:
            """Return the number of bytes that this process has written since it started."""
            match = _WRITTEN.search(Path("/proc/self/io").read_text(encoding="utf-8"))
            return int(match[1]) if match else 0

    else:

        def processor_name() -> str:
            """Return the model name of the processor, which macOS gives to programs alone: none."""
            return ""

        def private_memory() -> int:
            """Return the most memory that this process has had: macOS gives no other number without a program."""
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, see getrusage(2) there

        def bytes_written() -> int:
            """Return the number of blocks that this process has written, as bytes."""
            return 512 * resource.getrusage(resource.RUSAGE_SELF).ru_oublock


if sys.platform == "linux":

    def core_count() -> int:
        """Return the number of cores that this process may use."""
        return len(os.sched_getaffinity(0))

else:

    def core_count() -> int:
        """Return the number of cores."""
        return os.cpu_count() or 1
