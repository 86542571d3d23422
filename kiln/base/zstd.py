"""Zstandard: the standard library's module from Python 3.14 on, its backport before; and packing on all cores."""

from __future__ import annotations

import sys
from typing import IO

from kiln.base.system.machine import MachineResources

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["FAST", "compressing_file", "zstd"]

FAST = 1  # a gigabyte in seconds; level 19 takes many minutes
_WORKER_MEMORY = 1 << 27  # bytes that a worker needs at a high level
_SHARE = 4  # of the memory, the part that all workers may take


def compressing_file(sink: IO[bytes], *, level: int) -> zstd.ZstdFile:
    """Return a file that packs what is written to it into ``sink``, on all cores that the memory allows.

    The bytes depend on the level, not on the number of cores.
    """
    here = MachineResources.of_this_machine()
    parameter = zstd.CompressionParameter
    options: dict[int, int] = {
        parameter.compression_level: level,
        parameter.nb_workers: max(1, min(here.cores, here.memory // _SHARE // _WORKER_MEMORY)),
        parameter.checksum_flag: 1,
    }
    return zstd.ZstdFile(sink, "w", options=options)
