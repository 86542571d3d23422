"""Which cell is rehearsed, and with what: wheels, and an interpreter of this machine."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import expand
from kiln import rehearse as parts
from kiln.errors import UnknownConfig, UnsupportedPython, UsageError
from kiln.pipeline.cuda import cuda_of
from kiln.pipeline.memo import digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.model.cell import Cell
    from kiln.model.feedstock import Feedstock
    from kiln.pipeline.machine import Machine


SYSTEM = Path("/usr")  # what lies there cannot be taken into a container, which has its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a cell is rehearsed with; ``interpreter`` is this machine's, None when it has none of the cell's Python."""

    wheels: parts.RehearsalPlan
    interpreter: parts.Interpreter | None

    @property
    def key(self) -> str:
        """A hash of all that a rehearsal's packages are made of beside the recipe."""
        return digest([[wheel.sha256 for wheel in (self.wheels.upstream, *self.wheels.dependencies)], self._python()])

    @property
    def portable(self) -> Path | None:
        """The folder of the interpreter, where a container can be given it; None for the system's own."""
        if self.interpreter is None or self.interpreter.base_prefix.is_relative_to(SYSTEM):
            return None
        return self.interpreter.base_prefix

    def as_job(self) -> dict[str, Any]:
        """Return what a cell's job says of its rehearsal."""
        python = None if self.interpreter is None else str(self.interpreter.executable)
        return {"rehearsal": True, "python": python, "python_home": self.portable and str(self.portable)}

    def _python(self) -> list[object]:
        if self.interpreter is None:
            return []
        status = self.interpreter.executable.stat()
        return [str(self.interpreter.executable), self.interpreter.version, status.st_size, status.st_mtime_ns]


def means(cells: Iterable[Cell], machine: Machine) -> dict[str, Means]:
    """Return what each cell is rehearsed with.

    Raises:
        KilnError: UsageError for a cell of several Pythons, UnsupportedPython and VariantFault where no wheels are.
    """
    found: dict[str, parts.Interpreter | None] = {}
    made = {}
    for cell in cells:
        python = python_of(cell)
        wheels = parts.plan(python=python, cuda=cuda_of(cell))
        if python not in found:
            found[python] = _interpreter(python, machine)
        made[cell.name] = Means(wheels=wheels, interpreter=found[python])
    return made


def required(cells: Iterable[Cell], machine: Machine, *, on_host: bool) -> dict[str, Means]:
    """Return what each cell is rehearsed with, of which one at least can be rehearsed here.

    Raises:
        UnsupportedPython: when none of the cells can be rehearsed ``on_host`` for want of its Python.
        KilnError: whatever `means` raises.
    """
    found = means(cells, machine)
    if on_host and not any(each.interpreter for each in found.values()):
        for each in found.values():
            parts.find(each.wheels.python, first=(machine.python,), env=machine.environment)
    return found


def _interpreter(python: str, machine: Machine) -> parts.Interpreter | None:
    """Whoever rehearses the cell tells that there is none: a container may have one, and other cells go on."""
    with contextlib.suppress(UnsupportedPython):
        return parts.find(python, first=(machine.python,), env=machine.environment)
    return None


def missing_size(found: Mapping[str, Means], store: Path) -> int:
    """Return the bytes of all wheels that are not in ``store`` yet, each once."""
    plans = (each.wheels for each in found.values())
    return sum({wheel.file: wheel.size for plan in plans for wheel in parts.missing(plan, store)}.values())


def of_machine(feedstock: Feedstock, machine: Machine) -> str:
    """Return the name of the CPU cell of the machine's Python.

    Raises:
        UnsupportedPython: when this Python cannot be used.
        UnknownConfig: when there is no such cell.
    """
    return cpu_cell(feedstock, parts.probe(machine.python, env=machine.environment).python).name


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
