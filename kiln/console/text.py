"""Text for people: tables, times, and somebody else's output made harmless and fitted into a line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST = 4096  # characters of a line that are looked at
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
# Controls of C0 and C1, what reorders or hides text (bidirectional marks, zero widths), and what no encoding can write.
_CONTROLS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]"
)
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def plain(text: str) -> str:
    """Return a line of somebody else's output without what could move, colour, reorder or hide text."""
    text = _ESCAPES.sub("", text[:_LONGEST]).replace("\t", "    ")
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", text))


def one_line(text: str) -> str:
    """Return what a terminal would leave standing of a line, harmless: of a progress bar, its latest state."""
    parts = [part for part in text[-_LONGEST:].split("\r") if part.strip()]
    return plain(parts[-1]).strip() if parts else ""


def fit(text: str, width: int) -> str:
    """Return text cut to, or filled up to, ``width`` columns of a terminal; a cut ends in an ellipsis."""
    from rich.cells import cell_len, set_cell_size

    if width <= 0:
        return ""
    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def fit_name(text: str, width: int) -> str:
    """Return a name in ``width`` columns as `fit` does, cut in its middle: names that differ often end otherwise."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width or width < 5:
        return fit(text, width)
    end = text[-(width // 2) :]
    while cell_len(end) > width // 2:
        end = end[1:]
    return f"{set_cell_size(text, width - 1 - cell_len(end))}…{end}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Return rows aligned under a header; ``right`` are the columns that hold numbers."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def duration(seconds: float) -> str:
    """Return a time for people: ``0.4 s``, ``1 min 05 s``, ``3 h 12 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def clock(seconds: float) -> str:
    """Return a time that counts: ``0:07``, ``12:05``, ``3:12:05``."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
