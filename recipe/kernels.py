"""The GPU kernels in a library: machine code and PTX, by compute capability.

nvcc, Clang and XLA put the kernels of one source together ("fat binary"), once for each capability. Their layout is not
documented: this reader was compared with the output of CUDA 12.4's cuobjdump for objects of nvcc 12.4 and 13.0, and
reads all 1,398 headers in libtensorflow_cc of upstream's 2.21.0. Standard library only.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import tempfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = struct.pack("<I", 0xBA55ED50)
HEADER = struct.Struct("<IHHQ")  # magic, version, size of the header, size of the content
VERSION = 1
ENTRY = struct.Struct("<HHIQ")  # kind, version, size of the entry, size of the kernel
ARCHITECTURE = 28  # offset of an entry's capability, 90 for 9.0
KINDS = {1: "compute", 2: "sm"}

Kernels = Counter[tuple[str, ...]]


def in_wheel(wheel: Path, member: str) -> Kernels:
    """Return the kernels of a library in a wheel, unpacked to the wheel's folder; raises KeyError without it."""
    with zipfile.ZipFile(wheel) as archive, tempfile.NamedTemporaryFile(dir=wheel.parent) as file:
        with archive.open(member) as source:
            shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        return in_library(Path(file.name))


def in_library(library: Path) -> Kernels:
    """Return the number of fat binaries by kernels: ``sm_90`` is machine code, ``compute_90`` PTX."""
    if not library.stat().st_size:
        return Counter()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return Counter(tuple(sorted(set(capabilities), key=order)) for capabilities in fat_binaries(data))


def fat_binaries(data: mmap.mmap | bytes) -> Iterator[list[str]]:
    """Yield the capabilities of each fat binary; a mere match of the magic number is skipped."""
    start = data.find(MAGIC)
    while start >= 0:
        capabilities = kernels(data, start)
        if capabilities:
            yield capabilities
        start = data.find(MAGIC, start + len(MAGIC))


def kernels(data: mmap.mmap | bytes, start: int) -> list[str]:
    """Return the capabilities of the fat binary that begins at an offset; empty if it is inconsistent."""
    if start + HEADER.size > len(data):
        return []
    _, version, header, size = HEADER.unpack_from(data, start)
    at, end = start + header, start + header + size
    capabilities = []
    while version == VERSION and at + ARCHITECTURE + 4 <= min(end, len(data)):
        kind, _, entry_size, kernel = ENTRY.unpack_from(data, at)
        if kind not in KINDS:
            return []
        (architecture,) = struct.unpack_from("<I", data, at + ARCHITECTURE)
        capabilities.append(f"{KINDS[kind]}_{architecture}")
        at += max(entry_size, ENTRY.size) + kernel
    return capabilities if at == end else []


def order(capability: str) -> tuple[str, int]:
    """Return the sort key of a capability: PTX last, each kind by number."""
    kind, _, number = capability.partition("_")
    return ("" if kind == "sm" else kind, int(number))


def missing(library_kernels: Kernels, capabilities: tuple[str, ...]) -> list[str]:
    """Return the capabilities that no fat binary has."""
    return [
        capability
        for capability in capabilities
        if not any(capability in held_capabilities for held_capabilities in library_kernels)
    ]


def lines(library_kernels: Kernels) -> list[str]:
    """Return a line for each set of capabilities, the most frequent first."""
    return [f"{count} x {' '.join(capabilities)}" for capabilities, count in library_kernels.most_common()]
