"""A run as a table: for the terminal, and in Markdown for the job summary of a CI."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kiln import files
from kiln.console.expected_time_text import expected_config_period_text
from kiln.console.progress_text import SIGNS, state_count_text
from kiln.console.text import cost_text, duration, table, unindented_terminal_line
from kiln.lazy_pattern import lazy_pattern
from kiln.report import totals
from kiln.report.tail import cut_to_width
from kiln.variants.varying_keys import config_labels

if TYPE_CHECKING:
    from kiln.model.run import ConfigRun, MatrixReport
    from kiln.variants.varying_keys import Variants

EXPECTED = "expected"
HEADER: tuple[str, ...] = ("config", "state", "took", "memory", "cached", "packages", "tests", EXPECTED, "why")
_RIGHT = (2, 3, 4, 5)
_MARKED = lazy_pattern(r"([\\`*_{}\[\]<>()#+!|~&:@-])")


def run_table_text(report: MatrixReport, variants: Variants, width: int | None = None) -> str:
    """Return a run as a table for a terminal of a width, with the total."""
    titles, *rows = _titles_and_config_rows(report, variants)
    return "\n".join([table(titles, rows, right=_RIGHT, width=width), "", _total_line(report)])


def run_table_markdown(report: MatrixReport, variants: Variants) -> str:
    """Return a run as Markdown for the job summary of GitHub Actions; it ends in an empty line."""
    header, *configs = _titles_and_config_rows(report, variants)
    lines = [header, tuple("--:" if column in _RIGHT else "---" for column in range(len(header)))]
    lines += [tuple(_MARKED.sub(r"\\\1", item) for item in row) for row in configs]
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"### {_total_line(report)}", "", *rows, "", ""])


def _titles_and_config_rows(report: MatrixReport, variants: Variants) -> list[tuple[str, ...]]:
    """Return the titles and a row for each config; expected times are for a run on workers in progress alone."""
    names = config_labels([config.config for config in report.configs], variants)
    now, column = time.time(), HEADER.index(EXPECTED)
    end = totals.end_or_last_recorded_time(report, now)
    rows = [HEADER]
    rows += [
        _config_row(config, names[config.config], end, expected_config_period_text(report.cost, config, now))
        for config in report.configs
    ]
    has_forecast = totals.is_running(report) and report.cost is not None and report.cost.config_ends
    return rows if has_forecast else [row[:column] + row[column + 1 :] for row in rows]


def _config_row(config: ConfigRun, name: str, end: float, expected: str) -> tuple[str, ...]:
    seconds = totals.elapsed_seconds(config, end)
    return (
        unindented_terminal_line(name),
        f"{SIGNS[config.state]} {config.state.value}",
        "" if seconds is None else duration(seconds),
        "" if config.peak_memory is None else files.human_readable_size(config.peak_memory),
        totals.compile_cache_hits_text(config),
        f"{len(config.packages)}, {files.human_readable_size(totals.total_package_size(config.packages))}"
        if config.packages
        else "",
        str(totals.config_test_totals(config)),
        expected,
        cut_to_width(unindented_terminal_line(config.reason.partition("\n")[0]), 80),
    )


def _total_line(report: MatrixReport) -> str:
    end = totals.end_or_last_recorded_time(report, time.time())
    kind = ", a rehearsal" if report.rehearsal else ""
    states = state_count_text(report.configs)
    cost = f", {cost_text(report.cost)}" if report.cost and report.cost.is_charged else ""
    return f"run {report.run}{kind}: {states} in {duration(end - report.started)}{cost}"
