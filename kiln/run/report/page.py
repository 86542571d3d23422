"""Runs as JSON, and as web pages that need no network: one of the run, and one of each config with its log."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
import shlex
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from kiln import __version__
from kiln.base import files, git
from kiln.base.serialization import to_json
from kiln.base.text import count_text, duration, elapsed_text, unindented_terminal_line
from kiln.recipe.variants.space import config_labels
from kiln.run.report import comparison
from kiln.run.report.comparison import compare_with_earlier_runs, lay_out_timeline, step_bars
from kiln.run.report.contents import (
    environment_changes,
    environment_entries,
    package_histories,
    removed_from_environment,
    variant_texts,
)
from kiln.run.report.log import LogOutline, read_log
from kiln.run.report.text import SPEC, cut_to_width, end_of_log, lay_out_grid
from kiln.run.view.state import SIGNS, expected_config_period_text, state_count_text, time_of_day_text
from kiln.state.results import BAD, ConfigState, MatrixReport, RunCost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from jinja2 import Environment
    from markupsafe import Markup

    from kiln.recipe.variants.space import Variants
    from kiln.run.report.contents import EnvironmentEntry, PackageHistory
    from kiln.state.results import ConfigRun


def report_as_json(report: MatrixReport) -> dict[str, Any]:
    """Return the report of a run, with the seconds that all configs together spent on each phase."""
    running = {
        config.config: config.started
        for config in report.configs
        if config.state is ConfigState.RUNNING and config.started is not None
    }
    end = comparison.end_or_last_recorded_time(report, time.time())
    phases = {name: round(seconds, 3) for name, seconds in comparison.time_by_phase(report.configs, end).items()}
    cost = cost_as_json(report.cost, start=report.started, running=running)
    return {**to_json(report), "cost": cost, "phases": phases}


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


def render_page(template: str, folder: Path, *, script: str = "", **values: Any) -> str:
    """Return a page that is written into a folder, with its style sheet, its script and their hashes for its policy."""
    from markupsafe import Markup

    style = (HERE / "page.css").read_text(encoding="utf-8")
    page = _jinja_environment().get_template(template)
    return page.render(
        **values,
        folder=folder,
        style=Markup(style),  # noqa: S704 - a trusted file of this package
        style_hash=_policy_hash(style),
        script=Markup(script),  # noqa: S704 - another one
        script_hash=_policy_hash(script) if script else "",
        writer=__version__,
    )


def _clean(text: object) -> str:
    return cut_to_width(unindented_terminal_line(str(text)))


def _breakable_name(text: object) -> Markup:
    """Return a config's name, which a narrow screen breaks between its parts."""
    from markupsafe import Markup, escape

    return escape(_clean(text)).replace("_", Markup("_<wbr>"))


def _policy_hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


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
    environment.globals |= {"commit_url": commit_url, "base_commit": git.base_commit, "is_dirty": git.is_dirty}
    environment.filters |= {
        "clean": _clean,
        "name": _breakable_name,
        "reason": _reason_text,
        "clock": elapsed_text,
        "duration": duration,
        "short_duration": short_duration,
        "size": files.human_readable_size,
        "moment": lambda seconds: time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds)),
        "kind": lambda state: state.name.lower().replace("_", "-"),
        "tail": end_of_log,
        # relative to the page; a name cannot be mistaken for a scheme or a host
        "href": jinja2.pass_context(lambda page, path: relative_link(path, page["folder"])),
        # a line of a config's log: on its own page, or from that of the run
        "log_place": jinja2.pass_context(
            lambda page, view, line: (
                f"#L{line}"
                if page.get("view") is view
                else f"{relative_link(view.page, page['folder'])}#{f'L{line}' if line else 'the-log'}"
            )
        ),
        "polyline": polyline_points,
        "there": lambda path: path is not None and path.is_file(),
        "is_web": is_web_url,
    }
    return environment


def relative_link(path: Path, folder: Path) -> str:
    """Return a path as a link from a page in a folder; a name cannot be mistaken for a scheme or a host."""
    return re.sub(r"^(?!\.)", "./", quote(os.path.relpath(path, folder)))


def polyline_points(values: Sequence[float]) -> str:
    """Return values as the points of a line in a box of 100 x 24, the least at its bottom, equal ones in the middle."""
    least, span = min(values), max(values) - min(values)
    step = 96 / max(1, len(values) - 1)
    heights = [0.5 if not span else (value - least) / span for value in values]
    return " ".join(f"{2 + index * step:.1f},{21 - 18 * height:.1f}" for index, height in enumerate(heights))


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
    """Return a short duration: ``12 s``, ``1 min 22 s``, ``49 min``, ``3 h 06``."""
    minutes, whole = round(seconds / 60), round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d}"


def _reason_text(text: str) -> str:
    lines = [
        unindented_terminal_line(line.expandtabs(4))
        if not line[:1].isspace()
        else "  " + unindented_terminal_line(line)
        for line in text.splitlines()
    ]
    return cut_to_width("\n".join(lines), LONGEST)


FAILURES, CAUSES = 12, 24  # failed configs that are shown, and those whose logs are read for the page of a run
CHANGES = 60  # number of changes that are shown
INDEX = "index.html"
_STAMP = re.compile(r'<meta name="kiln-inputs" content="([0-9a-f]{64})">')
_HEAD = 1 << 16  # bytes of a page that has its stamp: the style sheet stands before it


def page_name(run: int) -> str:
    """Return the name of a run's page."""
    return f"{run:04d}.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigView:
    """A config as it is shown: ``page`` is its own page, None without one; ``repeat`` the command that builds it again.

    What is read from logs and packages is empty where the page of a run does not show it.
    """

    config: ConfigRun
    number: int
    label: str
    repeat: str
    page: Path | None = None
    outline: LogOutline = field(default_factory=LogOutline)
    histories: tuple[PackageHistory, ...] = ()
    environment: tuple[EnvironmentEntry, ...] = ()
    gone: tuple[str, ...] = ()
    variant: tuple[tuple[str, str], ...] = ()

    def line_of_step(self, title: str) -> int:
        """Return the first line of a step in the log; 0 where the log has none of it."""
        return next((step.line for step in self.outline.steps if step.title == title), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageRow:
    """The packages of one name in a run: their number, their size in bytes, and the growth since earlier runs.

    ``before`` is the size then of the ``compared`` ones, those that an earlier run has, ``largest`` the size of the
    largest now, ``largest_in`` the number of its config.
    """

    name: str
    builds: int
    size: int
    largest: int
    largest_in: int
    growth: int
    compared: int
    before: int


def write_run_pages(
    report: MatrixReport,
    variants: Variants,
    *,
    name: str,
    path: Path,
    earlier: Sequence[MatrixReport] = (),
    has_index: bool = False,
    paste: Callable[[str], str] = str,
) -> None:
    """Write the page of a run to ``path``, and beside it a page for each config that has a log.

    A config's page is written again only when its log or what it shows has changed. ``paste`` makes a command of kiln
    one that can be pasted; for the other arguments see `run_page_html`.
    """
    labels = config_labels([config.config for config in report.configs], variants)
    end = comparison.end_or_last_recorded_time(report, time.time())
    pages = {}
    for number, config in enumerate(report.configs, 1):
        if config.log is None or not config.log.is_file():
            continue
        page = pages[config.config] = path.with_name(f"{path.stem}-{number}.html")
        is_whole = len(report.configs) > 1
        about = (report, variants.get(config.config), [past.run for past in earlier], config.log.stat().st_mtime_ns)
        sources = [file.read_bytes() for file in sorted(HERE.iterdir()) if file.suffix in {".j2", ".css", ".js"}]
        stamp = hashlib.sha256(repr((about, sources, name, str(path))).encode()).hexdigest()
        if _stamp_of_page(page) == stamp:
            continue
        past = earlier if is_whole else ()
        view = _config_view(report, config, number, labels[config.config], variants, past, page, paste, with_log=True)
        seconds = comparison.elapsed_seconds(config, end)
        text = render_page(
            "config.html.j2",
            page.parent,
            script=(HERE / "log.js").read_text(encoding="utf-8"),
            name=name,
            report=report,
            view=view,
            is_whole=is_whole,
            failed=config.state in BAD,
            phases=comparison.time_by_phase([config], end),
            bars=step_bars(config, seconds),
            seconds=seconds,
            run_page=path,
            stamp=stamp,
            written=time.time(),
        )
        files.write_text(page, text)
    page_text = run_page_html(
        report, variants, name=name, folder=path.parent, earlier=earlier, has_index=has_index, pages=pages, paste=paste
    )
    files.write_text(path, page_text)


def _stamp_of_page(page: Path) -> str:
    try:
        with page.open(encoding="utf-8", errors="replace") as file:
            match = _STAMP.search(file.read(_HEAD))
    except OSError:
        return ""
    return match[1] if match else ""


def _config_view(
    report: MatrixReport,
    config: ConfigRun,
    number: int,
    label: str,
    variants: Variants,
    earlier: Sequence[MatrixReport],
    page: Path | None,
    paste: Callable[[str], str],
    *,
    with_log: bool = False,
) -> ConfigView:
    """Return all that is known of a config, with what its log and its packages have."""
    return ConfigView(
        config=config,
        number=number,
        label=label,
        repeat=paste(repeat_command(report, config)),
        page=page,
        outline=read_log(config, with_parts=with_log),
        histories=tuple(package_histories(report, config, earlier)),
        environment=tuple(environment_entries(report, config, earlier)),
        gone=tuple(removed_from_environment(report, config, earlier)),
        variant=tuple(variant_texts(config, variants)),
    )


# What of a run's command does not decide how one of its configs is built; the second need a value.
_OF_THE_RUN = frozenset(["--all", "--failed", "--changed", "--dry-run", "--json", "-v", "--verbose", "-q", "--quiet"])
_OF_THE_RUN_WITH_VALUE = frozenset(["--filter", "--since", "-j", "--jobs", "--junit", "--from-step", "--output-id"])


def repeat_command(report: MatrixReport, config: ConfigRun) -> str:
    """Return the command that builds a config of a run again, with the options of the run's own command."""
    try:
        program, *words = shlex.split(report.command)
    except ValueError:
        program, words = "", []
    if program == "kiln" and words[:1] == ["-C"]:
        words = words[2:]  # who pastes the command is in the feedstock, or gets its folder with it
    if program == "build-locally.py":
        program = "python build-locally.py"
    elif (program, words[:1]) == ("kiln", ["build"]):
        program, words = "kiln build", words[1:]
    else:  # a fleet's
        program, words = "kiln build", ["--rehearse"] if report.rehearsal else []
    configs = {other.config for other in report.configs}
    kept: list[str] = []
    before = ""
    for word in words:
        is_config = word.removesuffix(".yaml").rpartition("/")[2] in configs
        option = word.partition("=")[0]
        if (
            before not in _OF_THE_RUN_WITH_VALUE
            and not is_config
            and option not in _OF_THE_RUN | _OF_THE_RUN_WITH_VALUE
        ):
            kept.append(word)
        before = word
    return shlex.join([*program.split(), config.config, *kept])


def run_page_html(
    report: MatrixReport,
    variants: Variants,
    *,
    name: str,
    folder: Path,
    now: float | None = None,
    earlier: Iterable[MatrixReport] = (),
    has_index: bool = False,
    pages: Mapping[str, Path] = MappingProxyType({}),
    paste: Callable[[str], str] = str,
) -> str:
    """Return a run as a page.

    ``name`` is the feedstock's, ``folder`` the page's folder, which links to logs are relative to; ``now`` is the time
    of writing in seconds since the epoch. ``earlier`` are runs to compare with, the latest first; ``has_index`` is True
    for a page in the same folder as an index of runs. ``pages`` are the configs' own pages.
    """
    moment = time.time() if now is None else now
    rehearsal = ""
    if report.rehearsal:
        packages = {package.artifact.name for config in report.configs for package in config.packages}
        parts = (
            "have upstream's compiled parts" if SPEC in packages else "are made on this machine's programs and wheels"
        )
        rehearsal = f"A rehearsal: its packages {parts}. They cannot be published."
    past = sorted(earlier, key=lambda run: -run.run)
    labels = config_labels([config.config for config in report.configs], variants)
    views, read = [], 0
    for number, config in enumerate(report.configs, 1):
        label, page = labels[config.config], pages.get(config.config)
        if len(report.configs) == 1:
            views.append(_config_view(report, config, number, label, variants, past, page, paste))
            continue
        read += config.state in BAD
        is_read = config.state in BAD and read <= CAUSES
        outline = read_log(config) if is_read else LogOutline()
        repeat = paste(repeat_command(report, config))
        views.append(ConfigView(config=config, number=number, label=label, repeat=repeat, page=page, outline=outline))
    failures = [view for view in views if view.config.state in BAD]
    end = comparison.end_or_last_recorded_time(report, moment)
    history = compare_with_earlier_runs(report, past)
    phases = comparison.time_by_phase(report.configs, end)
    rows = _package_rows(report, past)
    is_alone = len(views) == 1
    sections = (
        ("matrix", "Matrix", not is_alone and views),
        ("failures", "Failures", failures),
        ("changes", "Changes", history.runs),
        ("time", "Time", phases),
        ("packages", "Packages", rows),
        ("tests", "Tests", is_alone and views[0].outline.tests),
        ("inputs", "Built from", True),
        ("configs", "Configs", not is_alone and views),
        ("log", "Log", is_alone),
    )
    kinds = Counter(ConfigState.FAILED if config.state in BAD else config.state for config in report.configs)
    return render_page(
        "page.html.j2",
        folder,
        name=name,
        report=report,
        views=views,
        of={view.config.config: view for view in views},
        grid=lay_out_grid([config.config for config in report.configs], variants),
        filters=kinds.items(),
        chart=lay_out_timeline(report, moment),
        step_bars=step_bars,
        failures=failures,
        tails_shown=FAILURES,
        figures=_headline_figures(report, moment),
        history=history,
        last=next((run for run in past if run.run in history.runs), report),
        grown=[row for row in rows if row.growth],
        input_changes=environment_changes(report, past),
        package_rows=rows,
        phases=phases,
        sections=[(anchor, title) for anchor, title, is_there in sections if is_there],
        page_of=lambda run: folder / page_name(run),
        changes_shown=CHANGES,
        index=INDEX if has_index else "",
        is_running=comparison.is_running(report),
        expected=_expected_config_periods(report, moment),
        rehearsal=rehearsal,
        end=end,
        written=moment,
    )


def _package_rows(report: MatrixReport, earlier: Sequence[MatrixReport]) -> list[PackageRow]:
    """Return a row for each name of a run's packages; what grew most comes first."""
    by_name: dict[str, list[tuple[int, int, int | None]]] = {}
    for number, config in enumerate(report.configs, 1):
        for history in package_histories(report, config, earlier, read_files=False):
            artifact = history.package.artifact
            before = artifact.size - history.growth if len(history.runs) > 1 else None
            by_name.setdefault(artifact.name, []).append((artifact.size, number, before))
    rows = [
        PackageRow(
            name=name,
            builds=len(found),
            size=sum(size for size, _, _ in found),
            largest=max(found, key=lambda item: item[0])[0],
            largest_in=max(found, key=lambda item: item[0])[1],
            growth=sum(size - before for size, _, before in found if before is not None),
            compared=sum(before is not None for _, _, before in found),
            before=sum(before for _, _, before in found if before is not None),
        )
        for name, found in by_name.items()
    ]
    return sorted(rows, key=lambda row: -abs(row.growth))


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
    )


def _headline_figures(report: MatrixReport, now: float) -> list[tuple[str, str, str]]:
    """Return the figures at the top of the page: title, value and remark."""
    end = comparison.end_or_last_recorded_time(report, now)
    elapsed = end - report.started
    work = sum(comparison.elapsed_seconds(config, end) or 0.0 for config in report.configs)
    packages = comparison.distinct_packages(report.configs)
    peak = max((config.peak_memory or 0 for config in report.configs), default=0)
    slots = f"{report.jobs} in parallel" if report.jobs > 1 else "one at a time"
    is_alone = len(report.configs) == 1
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
    if is_alone:  # of one config both say what others say
        figures = [(title, value, remark) for title, value, remark in figures if title not in {"configs", "work"}]
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
    # A package that several configs have is tested once.
    totals = [tests for config, tests in results if not config.packages]
    totals.append(comparison.package_test_totals(comparison.distinct_packages(report.configs)))
    run, passed = sum(tests.run for tests in totals), sum(tests.passed for tests in totals)
    if not run:
        return "0", "no results"
    tested = sum(tests.run > 0 for _, tests in results)
    untested = any(config.state in BAD and not tests.run for config, tests in results)
    note = f"; {tested} of {len(results)} configs have results" if untested else ""
    if run == passed and (number := sum(tests.tests for tests in totals)):
        return f"{number:,}", f"pass, of {count_text(run, 'package')}{note}"
    return str(passed), f"of {count_text(run, 'tested package')} pass{note}"
