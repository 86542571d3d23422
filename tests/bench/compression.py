"""The size of packages, and the time of packing them, at the levels of rehearsals and of releases."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.zstd import compressing_file

if TYPE_CHECKING:
    from tests.bench.timing import Row

LEVELS = (1, 10, 16, 19)
MOST = 120_000_000  # bytes of installed files


def rows() -> list[Row]:
    """Pack the installed files of this Python, and of its packages with their libraries."""
    payload = contents(Path(sys.prefix), Path(sys.base_prefix))
    figures = {level: packed(payload, level) for level in LEVELS}
    return [
        (f"level {level} of {len(payload) / 1e6:.0f} MB", cell(*figures[level], first=figures[LEVELS[0]]), "")
        for level in LEVELS
    ]


def cell(size: int, seconds: float, processor: float, *, first: tuple[int, float, float]) -> str:
    """Return the figures of a level as text, with their ratios to the first level's."""
    ratios = size / first[0], processor / first[2]
    return f"{size / 1e6:.1f} MB ({ratios[0]:.2f}), {seconds:.1f} s, {processor:.1f} s of processor ({ratios[1]:.0f})"


def contents(*roots: Path) -> bytes:
    """Return a tar archive of installed files, as a package has them, up to a size."""
    sink, total = io.BytesIO(), 0
    files = (file for root in roots for file in sorted((root / "lib").rglob("*")) if not file.is_symlink())
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for file in files:
            if file.is_file() and total + file.stat().st_size < MOST:
                total += file.stat().st_size
                archive.add(file, arcname=str(file.relative_to("/")))
    return sink.getvalue()


def packed(payload: bytes, level: int) -> tuple[int, float, float]:
    """Return the packed size, and the seconds that packing took: those that passed, and those of all cores."""
    sink = io.BytesIO()
    start, before = time.perf_counter(), os.times()
    with compressing_file(sink, level=level) as file:
        file.write(payload)
    after = os.times()
    return len(sink.getvalue()), time.perf_counter() - start, after.user + after.system - before.user - before.system
