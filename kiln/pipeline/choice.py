"""Which cell is rehearsed with which interpreter."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln import expand
from kiln import rehearse as parts
from kiln.errors import UnknownConfig, UsageError
from kiln.pipeline.cuda import cuda_of

if TYPE_CHECKING:
    from kiln.model.cell import Cell
    from kiln.model.feedstock import Feedstock
    from kiln.pipeline.machine import Machine


def choose(feedstock: Feedstock, config: str | None, machine: Machine) -> tuple[Cell, parts.Interpreter]:
    """Return the cell of that name with an interpreter for it, or the CPU cell of the machine's Python with that.

    Raises:
        UnknownConfig: when there is no such cell.
        UnsupportedPython: when no interpreter of the cell's Python can be used.
    """
    if config is not None:
        cell = expand.read(feedstock, config)
        found = parts.find(python_of(cell), first=(machine.python,), env=machine.environment)
        return cell, found
    interpreter = parts.probe(machine.python, env=machine.environment)
    return cpu_cell(feedstock, interpreter.python), interpreter


def cpu_cell(feedstock: Feedstock, python: str) -> Cell:
    """Return the one cell of a Python that has no CUDA.

    Raises:
        UnknownConfig: when the matrix has none, or several.
    """
    cells = (expand.read(feedstock, file.stem) for file in sorted(feedstock.configs.glob("*.yaml")))
    matching = [cell for cell in cells if cuda_of(cell) is None and python_of(cell) == python]
    if len(matching) != 1:
        names = ", ".join(cell.name for cell in matching) or "none"
        raise UnknownConfig(
            f"not one cell of {feedstock.root} is the CPU build for Python {python}, but {names}",
            hint="name the cell: python build-locally.py --rehearse CONFIG (kiln matrix shows them)",
        )
    return matching[0]


def python_of(cell: Cell) -> str:
    """Return the minor version of Python that a cell is for, ``3.11``.

    Raises:
        UsageError: when it is for several, or for none.
    """
    versions = {match[0] for value in cell.variant.get("python", ()) if (match := re.match(r"3\.\d+", value))}
    if len(versions) != 1:
        raise UsageError(
            f"{cell.name} cannot be rehearsed", why=f"it is for {len(versions)} Pythons, a rehearsal is for one"
        )
    return versions.pop()
