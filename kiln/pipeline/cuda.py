"""Which CUDA a cell is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kiln.channel import VirtualPackages
    from kiln.model.cell import Cell


def cuda_of(cell: Cell) -> str | None:
    """Return the version of CUDA that a cell is for, ``12.9``, or None."""
    version = cell.variant.get("cuda_compiler_version", ("None",))[0]
    return None if version == "None" else version


def offered(machine: VirtualPackages, cell: Cell) -> VirtualPackages:
    """Return what a cell's packages may count on: a machine without a GPU installs and tests CUDA builds, too."""
    cuda = cuda_of(cell)
    return machine if cuda is None or "__cuda" in machine else {**machine, "__cuda": (cuda, "0")}
