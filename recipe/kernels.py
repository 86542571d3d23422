"""What kernels for GPUs a library holds: machine code and PTX, by compute capability.

nvcc, Clang and XLA put the kernels of one source together ("fat binary"), once for each capability. Their layout is not
documented: what is read here was compared with what cuobjdump of CUDA 12.4 lists for objects of nvcc 12.4 and 13.0, and
fits all 1,398 headers in libtensorflow_cc of upstream's 2.21.0. Standard library only.
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
HEADER = struct.Struct("<IHHQ")  # magic, version, its own size, the size of what follows
VERSION = 1
ENTRY = struct.Struct("<HHIQ")  # kind, version, its own size, the size of the kernel
ARCHITECTURE = 28  # where an entry has the capability, as 90 for 9.0
KINDS = {1: "compute", 2: "sm"}

Held = Counter[tuple[str, ...]]


def in_wheel(wheel: Path, member: str) -> Held:
    """Return what a library in a wheel holds; it is unpacked beside the wheel meanwhile. Raises KeyError without it."""
    with zipfile.ZipFile(wheel) as archive, tempfile.NamedTemporaryFile(dir=wheel.parent) as file:
        with archive.open(member) as source:
            shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        return in_library(Path(file.name))


def in_library(library: Path) -> Held:
    """Return how many fat binaries of a library hold which kernels: ``sm_90`` machine code, ``compute_90`` PTX."""
    if not library.stat().st_size:
        return Counter()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return Counter(tuple(sorted(set(found), key=order)) for found in fat_binaries(data))


def fat_binaries(data: mmap.mmap | bytes) -> Iterator[list[str]]:
    """Yield the capabilities of each fat binary; what only looks like one is passed over."""
    start = data.find(MAGIC)
    while start >= 0:
        found = kernels(data, start)
        if found:
            yield found
        start = data.find(MAGIC, start + len(MAGIC))


def kernels(data: mmap.mmap | bytes, start: int) -> list[str]:
    """Return the capabilities of the fat binary that begins at a place; none where its parts do not fit together."""
    if start + HEADER.size > len(data):
        return []
    _, version, header, size = HEADER.unpack_from(data, start)
    at, end = start + header, start + header + size
    found = []
    while version == VERSION and at + ARCHITECTURE + 4 <= min(end, len(data)):
        kind, _, own, kernel = ENTRY.unpack_from(data, at)
        if kind not in KINDS:
            return []
        (architecture,) = struct.unpack_from("<I", data, at + ARCHITECTURE)
        found.append(f"{KINDS[kind]}_{architecture}")
        at += max(own, ENTRY.size) + kernel
    return found if at == end else []


def order(capability: str) -> tuple[str, int]:
    """Return what sorts capabilities: PTX last, each kind by number."""
    kind, _, number = capability.partition("_")
    return ("" if kind == "sm" else kind, int(number))


def missing(held: Held, wanted: tuple[str, ...]) -> list[str]:
    """Return which of the wanted capabilities no fat binary has."""
    return [each for each in wanted if not any(each in found for found in held)]


def told(held: Held) -> list[str]:
    """Return a line for each set of capabilities, the most frequent first."""
    return [f"{count} x {' '.join(found)}" for found, count in held.most_common()]
