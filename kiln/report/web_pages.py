"""A run as a self-contained web page, without scripts and other files, and the index of such pages.

Reasons, names of packages and ends of logs come from builds and are untrusted: the template escapes them, and the
page's content security policy forbids scripts and external resources.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kiln import __version__, files
from kiln.console.expected_time_text import expected_config_period_text, time_of_day_text
from kiln.console.progress_text import state_count_text
from kiln.model.run import BAD, MatrixReport, RunCost
from kiln.report import template_environment, totals
from kiln.report.built_packages_text import SPEC
from kiln.report.grid import lay_out_grid
from kiln.report.run_comparison import compare_with_earlier_runs
from kiln.report.timeline import lay_out_timeline, step_bars
from kiln.variants.varying_keys import config_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kiln.variants.varying_keys import Variants

TAILS = 24  # number of failed configs with the end of their log; the others have a link
CHANGES = 60  # number of changes that are shown
INDEX = "index.html"


def page_name(run: int) -> str:
    """Return the name of a run's page."""
    return f"{run:04d}.html"


def run_page_html(
    report: MatrixReport,
    variants: Variants,
    *,
    name: str,
    folder: Path,
    now: float | None = None,
    earlier: Iterable[MatrixReport] = (),
    has_index: bool = False,
) -> str:
    """Return a run as a page.

    ``name`` is the feedstock's, ``folder`` the page's folder, which links to logs are relative to; ``now`` is the time
    of writing in seconds since the epoch. ``earlier`` are runs to compare with, the latest first; ``has_index`` is True
    for a page in the same folder as an index of runs.
    """
    moment = time.time() if now is None else now
    return template_environment.render_page(
        "page.html.j2",
        folder,
        name=name,
        report=report,
        configs=report.configs,
        labels=config_labels([config.config for config in report.configs], variants),
        numbers={config.config: number for number, config in enumerate(report.configs, 1)},
        of={config.config: config for config in report.configs},
        grid=lay_out_grid([config.config for config in report.configs], variants),
        chart=lay_out_timeline(report, moment),
        step_bars=step_bars,
        failures=[config for config in report.configs if config.state in BAD],
        tails_shown=TAILS,
        figures=_headline_figures(report, moment),
        history=compare_with_earlier_runs(report, earlier),
        page_of=lambda run: folder / page_name(run),
        changes_shown=CHANGES,
        writer=__version__,
        index=INDEX if has_index else "",
        is_running=totals.is_running(report),
        expected=_expected_config_periods(report, moment),
        rehearsal=_rehearsal_notice(report) if report.rehearsal else "",
        end=totals.end_or_last_recorded_time(report, moment),
        written=moment,
    )


def run_index_html(
    reports: Sequence[MatrixReport], *, name: str, folder: Path, omitted: int = 0, now: float | None = None
) -> str:
    """Return the index of runs, the latest first; a run is a link if its page is in the folder.

    ``name`` is the feedstock's, ``omitted`` the number of earlier runs, ``now`` the time of writing in seconds since
    the epoch.
    """
    moment = time.time() if now is None else now
    rows = [
        (report, totals.end_or_last_recorded_time(report, moment) - report.started, state_count_text(report.configs))
        for report in reports
    ]
    return template_environment.render_page(
        "index.html.j2",
        folder,
        name=name,
        rows=rows,
        page_of=lambda run: folder / page_name(run),
        omitted=omitted,
        written=moment,
        writer=__version__,
    )


def _rehearsal_notice(report: MatrixReport) -> str:
    names = {package.artifact.name for config in report.configs for package in config.packages}
    parts = "have upstream's compiled parts" if SPEC in names else "are made on this machine's programs and wheels"
    return f"A rehearsal: its packages {parts}. They cannot be published."


def _headline_figures(report: MatrixReport, now: float) -> list[tuple[str, str, str]]:
    """Return the figures at the top of the page: title, value and remark."""
    end = totals.end_or_last_recorded_time(report, now)
    elapsed = end - report.started
    work = sum(totals.elapsed_seconds(config, end) or 0.0 for config in report.configs)
    packages = [package for config in report.configs for package in config.packages]
    peak = max((config.peak_memory or 0 for config in report.configs), default=0)
    slots = f"{report.jobs} in parallel" if report.jobs > 1 else "one at a time"
    return [
        (
            "configs",
            str(len(report.configs)),
            _counts_with_nonbreaking_spaces(state_count_text(report.configs)),
        ),
        ("so far" if totals.is_running(report) else "took", template_environment.short_duration(elapsed), slots),
        (
            "work",
            template_environment.short_duration(work),
            f"{work / elapsed:.1f} configs in parallel on average" if elapsed > 0 else "",
        ),
        ("peak memory", files.human_readable_size(peak) if peak else "?", "of one config" if peak else "not measured"),
        ("packages", str(len(packages)), files.human_readable_size(totals.total_package_size(packages))),
        ("tests", *_passed_tests_figure(report)),
        *_expected_end_figures(report, now),
        *([_cost_figure(report.cost)] if report.cost and report.cost.is_charged else []),
    ]


def _expected_config_periods(report: MatrixReport, now: float) -> dict[str, str]:
    """Return when the open configs of a run on workers are expected to start and to end."""
    if not totals.is_running(report):
        return {}
    periods = {
        config.config: expected_config_period_text(report.cost, config, now, utc=True) for config in report.configs
    }
    return {config: period for config, period in periods.items() if period}


def _expected_end_figures(report: MatrixReport, now: float) -> list[tuple[str, str, str]]:
    """Return the expected end of a run on workers that is in progress."""
    if report.cost is None or not _expected_config_periods(report, now):
        return []
    left = template_environment.short_duration(max(60.0, report.cost.end - now))
    return [("end", time_of_day_text(report.cost.end, now, utc=True), f"UTC, expected in about {left}")]


def _cost_figure(cost: RunCost) -> tuple[str, str, str]:
    """Return the cost of a run on workers so far, and in the end."""
    remark = "in total" if cost.spent == cost.expected else f"of about {cost.expected:.2f} {cost.currency} in the end"
    return "cost", f"{cost.spent:.2f} {cost.currency}", remark


def _passed_tests_figure(report: MatrixReport) -> tuple[str, str]:
    """Return the number of passed tests and a remark, which says of how many configs where not all have results."""
    results = [(config, totals.config_test_totals(config)) for config in report.configs]
    run, passed = sum(tests.run for _, tests in results), sum(tests.passed for _, tests in results)
    if not run:
        return "0", "no results"
    tested = sum(tests.run > 0 for _, tests in results)
    untested = any(config.state in BAD and not tests.run for config, tests in results)
    note = f"; {tested} of {len(results)} configs have results" if untested else ""
    return str(passed), f"of {run} tested packages pass{note}"


def _counts_with_nonbreaking_spaces(counts: str) -> str:
    """Return counts that wrap only after a comma."""
    return ", ".join(count.replace(" ", "\N{NO-BREAK SPACE}") for count in counts.split(", "))
