"""What kernels for GPUs a library holds: machine code and PTX, by compute capability.

The layout of the section ``.nv_fatbin`` is not documented; what is read here was compared with what cuobjdump of CUDA
12.4 lists, for objects of nvcc 12.4 and 13.0.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from elftools.elf.elffile import ELFFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAGIC = struct.pack("<I", 0xBA55ED50)
HEADER = struct.Struct("<IHHQ")  # magic, version, its own size, the size of what follows
ENTRY = struct.Struct("<HHIQ")  # kind, version, its own size, the size of the kernel
ARCHITECTURE = 28  # where an entry has the capability, as 90 for 9.0
KINDS = {1: "compute", 2: "sm"}


def capabilities(library: Path) -> set[str]:
    """Return what a library has kernels for: ``sm_90`` for machine code, ``compute_90`` for PTX."""
    with library.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".nv_fatbin")
        data = b"" if section is None else section.data()
    return set(_capabilities(data))


def _capabilities(data: bytes) -> Iterator[str]:
    start = data.find(MAGIC)
    while start >= 0:
        _, _, header, size = HEADER.unpack_from(data, start)
        at, end = start + header, start + header + size
        while at < end:
            kind, _, own, kernel = ENTRY.unpack_from(data, at)
            (architecture,) = struct.unpack_from("<I", data, at + ARCHITECTURE)
            yield f"{KINDS[kind]}_{architecture}"
            at += own + kernel
        start = data.find(MAGIC, end)
