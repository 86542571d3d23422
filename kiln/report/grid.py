"""The matrix as a table, laid out by the keys that vary."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from kiln.variants.varying_keys import distinguishing_axes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kiln.variants.varying_keys import Variants


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRow:
    """A row of a grid: its heads, each with the rows that it spans (0: part of the head above), and its table cells.

    Each of ``places`` has the configs of a table cell; usually one, none if the matrix has no such config.
    """

    heads: tuple[tuple[str, int], ...]
    places: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The matrix as a table: one key along the columns, all others along the rows."""

    corner: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[GridRow, ...]


def lay_out_grid(configs: Sequence[str], variants: Variants) -> Grid:
    """Return the matrix as a table; if the variants are unknown, a row for each config."""
    varying = distinguishing_axes(configs, variants)
    if not varying:
        rows = tuple(GridRow(heads=((config, 1),), places=((config,),)) for config in configs)
        return Grid(corner=("config",), columns=("state",), rows=rows)
    across = next((axis for axis in varying if axis.key == "python"), min(varying, key=lambda axis: len(axis.values)))
    down = tuple(axis for axis in varying if axis is not across)
    places: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for config in configs:
        at = tuple(axis.value_of(variants[config]) for axis in (*down, across))
        places.setdefault(at, []).append(config)
    combinations = [
        heads
        for heads in product(*(axis.values for axis in down))
        if any((*heads, value) in places for value in across.values)
    ]
    labels = [tuple(axis.values[value] for axis, value in zip(down, heads, strict=True)) for heads in combinations]
    return Grid(
        corner=tuple(axis.name for axis in down) or ("",),
        columns=tuple(across.label(value) for value in across.values),
        rows=tuple(
            GridRow(
                heads=_row_heads(labels, index) or (("", 1),),
                places=tuple(tuple(places.get((*heads, value), ())) for value in across.values),
            )
            for index, heads in enumerate(combinations)
        ),
    )


def _row_heads(rows: Sequence[tuple[str, ...]], index: int) -> tuple[tuple[str, int], ...]:
    """Return the heads of a row with the rows that they span; one that the row above has too spans 0."""
    heads: list[tuple[str, int]] = []
    for level, head in enumerate(rows[index]):
        begin = rows[index][: level + 1]
        if index and rows[index - 1][: level + 1] == begin:
            heads.append((head, 0))
            continue
        after = next((at for at in range(index, len(rows)) if rows[at][: level + 1] != begin), len(rows))
        heads.append((head, after - index))
    return tuple(heads)
