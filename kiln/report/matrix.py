"""A run over the matrix as a table: for the terminal, and in Markdown for a CI's summary."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from kiln import files
from kiln.console import SIGNS, counted, duration, one_line, table
from kiln.report import totals
from kiln.report.tail import cut
from kiln.variants.axes import labels

if TYPE_CHECKING:
    from kiln.model.run import CellRun, MatrixReport
    from kiln.variants.axes import Variants

HEADER = ("cell", "state", "took", "memory", "cached", "packages", "tests", "why")
_RIGHT = (2, 3, 4, 5)
_MARKED = re.compile(r"([\\`*_{}\[\]<>()#+!|~&:@-])")


def matrix_text(report: MatrixReport, variants: Variants) -> str:
    """Return a run as a table for a terminal, and its sum."""
    return "\n".join([table(HEADER, _rows(report, variants), right=_RIGHT), "", _sum(report)])


def as_markdown(report: MatrixReport, variants: Variants) -> str:
    """Return a run as Markdown, for the summary of a job in GitHub Actions; ends in an empty line."""
    lines = [HEADER, tuple("--:" if column in _RIGHT else "---" for column in range(len(HEADER)))]
    lines += [tuple(_MARKED.sub(r"\\\1", item) for item in row) for row in _rows(report, variants)]
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"### {_sum(report)}", "", *rows, "", ""])


def _rows(report: MatrixReport, variants: Variants) -> list[tuple[str, ...]]:
    names = labels([cell.config for cell in report.cells], variants)
    end = totals.last_moment(report, time.time())
    return [_row(cell, names[cell.config], end) for cell in report.cells]


def _row(cell: CellRun, name: str, end: float) -> tuple[str, ...]:
    seconds = totals.took(cell, end)
    return (
        one_line(name),
        f"{SIGNS[cell.state]} {cell.state.value}",
        "" if seconds is None else duration(seconds),
        "" if cell.peak_memory is None else files.size_text(cell.peak_memory),
        totals.cached(cell),
        f"{len(cell.packages)}, {files.size_text(totals.size(cell.packages))}" if cell.packages else "",
        str(totals.tests(cell.packages)),
        cut(one_line(cell.reason.partition("\n")[0]), 80),
    )


def _sum(report: MatrixReport) -> str:
    end = totals.last_moment(report, time.time())
    kind = ", a rehearsal" if report.rehearsal else ""
    return f"run {report.run}{kind}: {counted(cell.state for cell in report.cells)} in {duration(end - report.started)}"
