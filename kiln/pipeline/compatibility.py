"""Whether a cell can work at all, asked before hours are spent on it: the doctor's rules over the cell's versions."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kiln import compat, expand, render
from kiln.compat import recipe
from kiln.compat.answer import Verdict
from kiln.errors import IncompatibleVersions
from kiln.pipeline.cuda import cuda_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.compat import Answer, Combination
    from kiln.model.cell import Cell
    from kiln.model.feedstock import Feedstock

# The outputs whose version is TensorFlow's, and Serving's.
TENSORFLOW = ("tensorflow", "tensorflow-base", "libtensorflow_framework")
SERVING = ("tensorflow-serving",)


def combinations(feedstock: Feedstock, config: str) -> tuple[Combination, ...]:
    """Return what a cell puts together, once for each of its Pythons.

    Raises:
        UnknownConfig: when there is no such cell.
    """
    return _of_cell(feedstock, expand.read(feedstock, config))


def require(feedstock: Feedstock, cells: Iterable[Cell]) -> None:
    """Refuse to begin with a cell that cannot work.

    Raises:
        IncompatibleVersions: naming the rows that say so, and what works instead.
    """
    faults = [fault for cell in cells for fault in _faults(feedstock, cell)]
    if faults:
        first, *others = faults
        raise IncompatibleVersions(first.what, why=first.why, hint=first.hint, others=others)


def _faults(feedstock: Feedstock, cell: Cell) -> list[IncompatibleVersions]:
    answers = [compat.judge(each) for each in _of_cell(feedstock, cell)]
    return [_fault(cell.name, answer) for answer in answers if answer.verdict is Verdict.CANNOT]


def _fault(name: str, answer: Answer) -> IncompatibleVersions:
    worst = [finding for finding in answer.findings if finding.verdict is Verdict.CANNOT]
    rows = "; ".join(f"{row.place}, {row.source}" for finding in worst for row in finding.rows[:1])
    instead = "; or ".join(suggestion.combination.text for suggestion in answer.nearest[:2])
    return IncompatibleVersions(
        f"{name} cannot work: {'; '.join(finding.reason for finding in worst)}",
        why=rows,
        hint=f"kiln doctor {name}" + (f"; near it, {instead} would do" if instead else ""),
    )


def _of_cell(feedstock: Feedstock, cell: Cell) -> tuple[Combination, ...]:
    versions = {output.name: output.version for output in render.render(feedstock, cell).outputs}
    found = compat.of_variant(
        cell.variant,
        tf=next((versions[name] for name in TENSORFLOW if name in versions), None),
        serving=next((versions[name] for name in SERVING if name in versions), None),
    )
    listed = recipe.built_for(feedstock.recipe, cuda_of(cell) or "")
    return tuple(each if each.built_for else dataclasses.replace(each, built_for=listed) for each in found)
