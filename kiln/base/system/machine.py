"""The memory, cores and disk writes of this process, and the system's limits on them."""

from __future__ import annotations

import os
import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

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

    def core_count() -> int:
        """Return the number of cores that this process may use."""
        return len(os.sched_getaffinity(0))

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

    def core_count() -> int:
        """Return the number of cores."""
        return os.cpu_count() or 1
