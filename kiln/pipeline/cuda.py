"""Which CUDA a cell is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kiln.model.cell import Cell


def cuda_of(cell: Cell) -> str | None:
    """Return the version of CUDA that a cell is for, ``12.9``, or None."""
    version = cell.variant.get("cuda_compiler_version", ("None",))[0]
    return None if version == "None" else version
