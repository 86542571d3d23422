"""The matrix as a table, laid out along what varies."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from kiln.variants.axes import axes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kiln.variants.axes import Variants


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a grid: its heads, each with the rows that it spans (0: the one above goes on), and its cells.

    Each place holds the configs that belong there; mostly one, none where the matrix has no such cell.
    """

    heads: tuple[tuple[str, int], ...]
    places: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The matrix as a table: what varies most usefully across runs along the columns, all else along the rows."""

    corner: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def grid(configs: Sequence[str], variants: Variants) -> Grid:
    """Return the matrix as a table; where it is not known what varies, one row for each cell."""
    varying = axes(configs, variants)
    if not varying:
        rows = tuple(Row(heads=((config, 1),), places=((config,),)) for config in configs)
        return Grid(corner=("cell",), columns=("state",), rows=rows)
    across = next((axis for axis in varying if axis.key == "python"), min(varying, key=lambda axis: len(axis.values)))
    down = tuple(axis for axis in varying if axis is not across)
    places: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for config in configs:
        at = tuple(axis.of(variants[config]) for axis in (*down, across))
        places.setdefault(at, []).append(config)
    combinations = [
        heads
        for heads in product(*(axis.values for axis in down))
        if any((*heads, value) in places for value in across.values)
    ]
    shown = [tuple(axis.values[value] for axis, value in zip(down, heads, strict=True)) for heads in combinations]
    return Grid(
        corner=tuple(axis.name for axis in down) or ("",),
        columns=tuple(across.label(value) for value in across.values),
        rows=tuple(
            Row(
                heads=_spans(shown, index) or (("", 1),),
                places=tuple(tuple(places.get((*heads, value), ())) for value in across.values),
            )
            for index, heads in enumerate(combinations)
        ),
    )


def _spans(rows: Sequence[tuple[str, ...]], index: int) -> tuple[tuple[str, int], ...]:
    """The heads of a row: one that goes on from the row above has no height, else as many as go on below."""
    found = []
    for level, head in enumerate(rows[index]):
        begin = rows[index][: level + 1]
        if index and rows[index - 1][: level + 1] == begin:
            found.append((head, 0))
            continue
        after = next((at for at in range(index, len(rows)) if rows[at][: level + 1] != begin), len(rows))
        found.append((head, after - index))
    return tuple(found)
