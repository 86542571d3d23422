"""The folder of the cells' files: how it differs from a matrix, and writing it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import files
from kiln.expand.files import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kiln.model.cell import Cell
    from kiln.model.feedstock import Feedstock


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How .ci_support differs from the matrix: names of files to add, to change and to remove, and each as text."""

    missing: tuple[str, ...]
    changed: tuple[str, ...]
    stale: tuple[str, ...]
    lines: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.changed or self.stale)


def drift(feedstock: Feedstock, cells: Iterable[Cell]) -> Drift:
    """How the files in .ci_support differ from those that the cells make."""
    wanted, there = _wanted(cells), _there(feedstock)
    names = sorted(wanted.keys() | there.keys())
    return Drift(
        missing=tuple(name for name in names if name not in there),
        changed=tuple(name for name in names if name in there and name in wanted and there[name] != wanted[name]),
        stale=tuple(name for name in names if name not in wanted),
        lines=tuple(line for name in names for line in _difference(name, there, wanted)),
    )


def write(feedstock: Feedstock, cells: Iterable[Cell]) -> Drift:
    """Make .ci_support hold exactly the cells' files, each written whole or not at all; tells what was done."""
    wanted = _wanted(cells)
    there = _there(feedstock)
    for name, content in wanted.items():
        if there.get(name) != content:
            files.write_text(feedstock.configs / name, content)
    stale = tuple(sorted(there.keys() - wanted.keys()))
    for name in stale:
        files.remove(feedstock.configs / name)
    return Drift(
        missing=tuple(sorted(wanted.keys() - there.keys())),
        changed=tuple(sorted(name for name in wanted if name in there and there[name] != wanted[name])),
        stale=stale,
        lines=(),
    )


def _wanted(cells: Iterable[Cell]) -> dict[str, str]:
    return {f"{cell.name}.yaml": text(cell) for cell in cells}


def _there(feedstock: Feedstock) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8", errors="replace") for path in feedstock.configs.glob("*.yaml")}


def _difference(name: str, there: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    before, after = (texts.get(name, "").splitlines() for texts in (there, wanted))
    old = f".ci_support/{name}" if name in there else "/dev/null"
    new = f".ci_support/{name}" if name in wanted else "/dev/null"
    yield from difflib.unified_diff(before, after, old, new, n=1, lineterm="")
