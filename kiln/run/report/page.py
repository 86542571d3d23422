"""Runs as JSON, and as self-contained web pages without scripts."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from kiln import __version__
from kiln.base import files, git
from kiln.base.serialization import to_json
from kiln.base.text import duration, elapsed_text, unindented_terminal_line
from kiln.recipe.variants.space import config_labels
from kiln.run.report import comparison
from kiln.run.report.comparison import compare_with_earlier_runs, lay_out_timeline, step_bars
from kiln.run.report.text import SPEC, cut_to_width, end_of_log, lay_out_grid
from kiln.run.view.state import SIGNS, expected_config_period_text, state_count_text, time_of_day_text
from kiln.state.results import BAD, ConfigState, MatrixReport, RunCost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jinja2 import Environment

    from kiln.recipe.variants.space import Variants


def report_as_json(report: MatrixReport) -> dict[str, Any]:
    """Return the report of a run."""
    running = {
        config.config: config.started
        for config in report.configs
        if config.state is ConfigState.RUNNING and config.started is not None
    }
    return {**to_json(report), "cost": cost_as_json(report.cost, start=report.started, running=running)}


def cost_as_json(cost: RunCost | None, *, start: float, running: Mapping[str, float]) -> dict[str, Any] | None:
    """Return the cost of a run on workers and its expected times; None for a run that has neither.

    ``start`` is that of the run, ``running`` those of the configs that are being built, in seconds since the epoch.
    """
    if cost is None:
        return None
    starts = {**cost.config_starts, **running}
    return {
        "currency": cost.currency or None,
        "spent": cost.spent if cost.currency else None,
        "expected": cost.expected if cost.currency else None,
        "controller": to_json(cost.controller),
        "start": start,
        "end": cost.end or None,
        "configs": {config: {"start": starts.get(config), "end": end} for config, end in cost.config_ends.items()},
    }


HERE = Path(__file__).parent
LONGEST = 4000  # characters of a reason


def render_page(template: str, folder: Path, **values: Any) -> str:
    """Return a page that is written into a folder, with the style sheet and its hash for the page's policy."""
    from markupsafe import Markup

    style = (HERE / "page.css").read_text(encoding="utf-8")
    page = _jinja_environment().get_template(template)
    return page.render(
        **values,
        folder=folder,
        style=Markup(style),  # noqa: S704 - a trusted file of this package
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
    )


@functools.cache
def _jinja_environment() -> Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"SIGNS": SIGNS, "totals": comparison}
    environment.globals |= {"commit_url": commit_url, "short_commit": git.short_commit}
    environment.filters |= {
        "clean": lambda text: cut_to_width(unindented_terminal_line(str(text))),
        "reason": _reason_text,
        "clock": elapsed_text,
        "duration": duration,
        "short_duration": short_duration,
        "size": files.human_readable_size,
        "moment": lambda seconds: time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds)),
        "kind": lambda state: state.name.lower().replace("_", "-"),
        "tail": end_of_log,
        # relative to the page; a name cannot be mistaken for a scheme or a host
        "href": jinja2.pass_context(
            lambda page, path: re.sub(r"^(?!\.)", "./", quote(os.path.relpath(path, page["folder"])))
        ),
        "there": lambda path: path is not None and path.is_file(),
        "is_web": is_web_url,
    }
    return environment


def is_web_url(url: str) -> bool:
    """Return whether a text is the address of a web page, without credentials; others become no link."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    is_plain = url.isascii() and url.isprintable() and " " not in url
    return is_plain and parts.scheme in {"http", "https"} and bool(parts.hostname) and "@" not in parts.netloc


def commit_url(report: MatrixReport) -> str:
    """Return the page of a run's commit, as GitHub, GitLab and Forgejo have it; empty where it is unknown."""
    commit = git.base_commit(report.commit)
    url = f"{report.remote_url.rstrip('/').removesuffix('.git')}/commit/{commit}"
    return url if re.fullmatch("[0-9a-f]{7,64}", commit) and is_web_url(report.remote_url) else ""


def short_duration(seconds: float) -> str:
    """Return a short duration: ``12 s``, ``49 min``, ``3 h 06``."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d}"


def _reason_text(text: str) -> str:
    lines = [
        unindented_terminal_line(line.expandtabs(4))
        if not line[:1].isspace()
        else "  " + unindented_terminal_line(line)
        for line in text.splitlines()
    ]
    return cut_to_width("\n".join(lines), LONGEST)


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
    rehearsal = ""
    if report.rehearsal:
        packages = {package.artifact.name for config in report.configs for package in config.packages}
        parts = (
            "have upstream's compiled parts" if SPEC in packages else "are made on this machine's programs and wheels"
        )
        rehearsal = f"A rehearsal: its packages {parts}. They cannot be published."
    return render_page(
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
        is_running=comparison.is_running(report),
        expected=_expected_config_periods(report, moment),
        rehearsal=rehearsal,
        end=comparison.end_or_last_recorded_time(report, moment),
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
        (
            report,
            comparison.end_or_last_recorded_time(report, moment) - report.started,
            state_count_text(report.configs),
        )
        for report in reports
    ]
    return render_page(
        "index.html.j2",
        folder,
        name=name,
        rows=rows,
        page_of=lambda run: folder / page_name(run),
        omitted=omitted,
        written=moment,
        writer=__version__,
    )


def _headline_figures(report: MatrixReport, now: float) -> list[tuple[str, str, str]]:
    """Return the figures at the top of the page: title, value and remark."""
    end = comparison.end_or_last_recorded_time(report, now)
    elapsed = end - report.started
    work = sum(comparison.elapsed_seconds(config, end) or 0.0 for config in report.configs)
    packages = [package for config in report.configs for package in config.packages]
    peak = max((config.peak_memory or 0 for config in report.configs), default=0)
    slots = f"{report.jobs} in parallel" if report.jobs > 1 else "one at a time"
    counts = state_count_text(report.configs).split(", ")
    figures = [
        # wrapped only after a comma
        ("configs", str(len(report.configs)), ", ".join(count.replace(" ", "\N{NO-BREAK SPACE}") for count in counts)),
        ("so far" if comparison.is_running(report) else "took", short_duration(elapsed), slots),
        ("work", short_duration(work), f"{work / elapsed:.1f} configs in parallel on average" if elapsed > 0 else ""),
        ("peak memory", files.human_readable_size(peak) if peak else "?", "of one config" if peak else "not measured"),
        ("packages", str(len(packages)), files.human_readable_size(comparison.total_package_size(packages))),
        ("tests", *_passed_tests_figure(report)),
    ]
    cost = report.cost
    if cost is not None and _expected_config_periods(report, now):
        left = short_duration(max(60.0, cost.end - now))
        figures.append(("end", time_of_day_text(cost.end, now, utc=True), f"UTC, expected in about {left}"))
    if cost is not None and cost.is_charged:
        whole = (
            "in total" if cost.spent == cost.expected else f"of about {cost.expected:.2f} {cost.currency} in the end"
        )
        figures.append(("cost", f"{cost.spent:.2f} {cost.currency}", whole))
    return figures


def _expected_config_periods(report: MatrixReport, now: float) -> dict[str, str]:
    """Return when the open configs of a run on workers are expected to start and to end."""
    if not comparison.is_running(report):
        return {}
    periods = {
        config.config: expected_config_period_text(report.cost, config, now, utc=True) for config in report.configs
    }
    return {config: period for config, period in periods.items() if period}


def _passed_tests_figure(report: MatrixReport) -> tuple[str, str]:
    """Return the number of passed tests and a remark, which says of how many configs where not all have results."""
    results = [(config, comparison.config_test_totals(config)) for config in report.configs]
    run, passed = sum(tests.run for _, tests in results), sum(tests.passed for _, tests in results)
    if not run:
        return "0", "no results"
    tested = sum(tests.run > 0 for _, tests in results)
    untested = any(config.state in BAD and not tests.run for config, tests in results)
    note = f"; {tested} of {len(results)} configs have results" if untested else ""
    return str(passed), f"of {run} tested packages pass{note}"
