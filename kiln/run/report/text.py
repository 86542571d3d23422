"""A run as text: tables, the matrix as a grid, JUnit's XML, packages, the end of a log."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import product
from typing import IO, TYPE_CHECKING
from xml.etree import ElementTree as ET

from kiln.base import files, process
from kiln.base.patterns import lazy_pattern
from kiln.base.system.files import open_regular_file
from kiln.base.text import (
    duration,
    hanging_indent_lines,
    line_as_terminal_shows,
    sanitized_line,
    table,
    table_with_whole_names,
    unindented_terminal_line,
    wrapped_lines,
)
from kiln.recipe.variants.space import config_labels, distinguishing_axes
from kiln.run.report import comparison
from kiln.run.view.state import SIGNS, TRACED_VARIABLE, expected_config_period_text, state_count_text
from kiln.state.results import BAD, GOOD, ConfigRun, ConfigState, MatrixReport, PackageReport, TestVerdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from kiln.recipe.variants.space import Variants
    from kiln.state.results import RunCost


_CENT = 0.01


def cost_text(cost: RunCost) -> str:
    """Return the cost of a run so far, and in the end if that is more: ``3.20 of about 16.20 USD``."""
    if not cost.currency:
        return "price unknown"
    if cost.expected - cost.spent < _CENT / 2:
        return f"{cost.spent:.2f} {cost.currency}"
    return f"{cost.spent:.2f} of about {cost.expected:.2f} {cost.currency}"


LINES = 40
WIDTH = 300  # characters of a line
_BYTES = 1 << 16
_TIME = lazy_pattern(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: |$)")  # before each line of a config's log


def open_log(log: Path) -> IO[bytes]:
    """Open a log to read it; a build could have replaced it by a link or a pipe, which are not read.

    Raises:
        OSError: it is missing, or not a regular file.
    """
    return open(open_regular_file(log), "rb")  # noqa: PTH123 - a descriptor has no path


def end_of_log(log: Path) -> str:
    """Return the last lines of a log, or an empty text if it is missing or not a regular file.

    Empty lines and the trace of a script's variables are left out.
    """
    with contextlib.suppress(OSError):
        with open_log(log) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _BYTES))
            lines = file.read(_BYTES).decode(errors="replace").split("\n")
        texts = []
        for text in map(line_as_terminal_shows, lines):
            content = _TIME.sub("", text, count=1)
            if content.strip() and not TRACED_VARIABLE.match(content):
                texts.append(cut_to_width(text))
        return "\n".join(texts[-LINES:])
    return ""


def cut_to_width(text: str, width: int = WIDTH) -> str:
    """Return text of at most ``width`` characters; cut text ends in an ellipsis."""
    return text if len(text) <= width else text[: width - 1] + "…"


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


EXPECTED = "expected"
HEADER: tuple[str, ...] = ("config", "state", "took", "memory", "cached", "packages", "tests", EXPECTED, "why")
_RIGHT = (2, 3, 4, 5)
_MARKED = lazy_pattern(r"([\\`*_{}\[\]<>()#+!|~&:@-])")


def run_table_text(report: MatrixReport, variants: Variants, width: int | None = None) -> str:
    """Return a run as a table for a terminal of a width, with the total, and where its time went."""
    titles, *rows = _titles_and_config_rows(report, variants)
    kept = [column for column, title in enumerate(titles) if title == "state" or any(row[column] for row in rows)]
    widths = [max(len(row[column]) for row in (titles, *rows)) for column in kept]
    reasons: list[str] = []
    if width is not None and sum(widths) + 2 * (len(widths) - 1) > width and titles[kept[-1]] == "why":
        # A reason is a sentence, which a narrow column would have one word a line of.
        kept.pop()
        told = [f"{row[1][:1]} {row[0]}: {row[-1]}" for row in rows if row[-1]]
        reasons = ["", *(part for line in told for part in hanging_indent_lines(line, width))]
    right = [place for place, column in enumerate(kept) if column in _RIGHT]
    header, *lines = ([row[column] for column in kept] for row in (titles, *rows))
    shown = table_with_whole_names(header, lines, right=right, width=width)
    end = comparison.end_or_last_recorded_time(report, time.time())
    phases = comparison.time_by_phase(report.configs, end)
    whole = sum(phases.values())
    spent = [(name, duration(seconds), f"{100 * seconds / whole:.0f} %") for name, seconds in phases.items()]
    times = ["", table(("phase", "time", "share"), spent, right=(1, 2), width=width)] if spent else []
    return "\n".join([shown, *reasons, *times, "", _total_line(report)])


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
    end = comparison.end_or_last_recorded_time(report, now)
    rows = [HEADER]
    rows += [
        _config_row(config, names[config.config], end, expected_config_period_text(report.cost, config, now))
        for config in report.configs
    ]
    has_forecast = comparison.is_running(report) and report.cost is not None and report.cost.config_ends
    return rows if has_forecast else [row[:column] + row[column + 1 :] for row in rows]


def _config_row(config: ConfigRun, name: str, end: float, expected: str) -> tuple[str, ...]:
    seconds = comparison.elapsed_seconds(config, end)
    return (
        unindented_terminal_line(name),
        f"{SIGNS[config.state]} {config.state.value}",
        "" if seconds is None else duration(seconds),
        "" if config.peak_memory is None else files.human_readable_size(config.peak_memory),
        comparison.compile_cache_hits_text(config),
        f"{len(config.packages)}, {files.human_readable_size(comparison.total_package_size(config.packages))}"
        if config.packages
        else "",
        str(comparison.config_test_totals(config)),
        expected,
        cut_to_width(unindented_terminal_line(config.reason.partition("\n")[0]), 80),
    )


def _total_line(report: MatrixReport) -> str:
    end = comparison.end_or_last_recorded_time(report, time.time())
    kind = ", a rehearsal" if report.rehearsal else ""
    states = state_count_text(report.configs)
    cost = f", {cost_text(report.cost)}" if report.cost and report.cost.is_charged else ""
    return f"run {report.run}{kind}: {states} in {duration(end - report.started)}{cost}"


def as_junit(report: MatrixReport, now: float) -> str:
    """Return a run as JUnit's XML; ``now`` is the time in seconds since the epoch, for a run in progress."""
    end = comparison.end_or_last_recorded_time(report, now)
    root = ET.Element("testsuites", name=f"kiln run {report.run}", time=_seconds_text(end - report.started))
    for config in report.configs:
        root.append(_test_suite_element(report, config, end))
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _test_suite_element(report: MatrixReport, config: ConfigRun, end: float) -> ET.Element:
    """Return the suite of a config: its steps, its packages' tests, and the config as a whole."""
    name = unindented_terminal_line(config.config)
    suite = ET.Element("testsuite", name=name)
    moment = datetime.fromtimestamp(config.started or report.started, tz=timezone.utc)
    suite.set("timestamp", moment.strftime("%Y-%m-%dT%H:%M:%S"))
    suite.set("hostname", unindented_terminal_line(config.worker or report.machine))
    for step in config.steps:
        _add_test_case(suite, name, unindented_terminal_line(step.title), step.seconds)
    for package in config.packages:
        _add_package_tests(suite, name, package)
    _add_config_result(suite, name, config, end)
    suite.set("time", _seconds_text(comparison.elapsed_seconds(config, end) or 0.0))
    for count, kind in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(sum(1 for _ in suite.iter(kind))))
    return suite


def _add_test_case(suite: ET.Element, config: str, name: str, seconds: float) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=config, name=name, time=_seconds_text(seconds))


def _add_package_tests(suite: ET.Element, config: str, package: PackageReport) -> None:
    tests, artifact = package.tests, package.artifact
    name = unindented_terminal_line(f"tests of {artifact.name} {artifact.version} {artifact.build_string}")
    case = _add_test_case(suite, config, name, tests.install_seconds + tests.seconds)
    if tests.verdict is TestVerdict.FAILED:
        ET.SubElement(case, "failure", message="the package's tests fail").text = _xml_safe_text("\n".join(tests.notes))
    elif tests.verdict is TestVerdict.NONE:
        ET.SubElement(case, "skipped", message="the package has no tests")
    elif tests.verdict is TestVerdict.SKIPPED:
        reason = unindented_terminal_line("; ".join(tests.notes)) or "the tests were skipped"
        ET.SubElement(case, "skipped", message=reason)


def _add_config_result(suite: ET.Element, name: str, config: ConfigRun, end: float) -> None:
    """Add the config's own case, with the reason of its failure and the end of its log."""
    case = _add_test_case(suite, name, "build", comparison.elapsed_seconds(config, end) or 0.0)
    message = unindented_terminal_line(config.reason.partition("\n")[0]) or config.state.value
    if config.state in BAD:
        log = end_of_log(config.log) if config.log is not None else ""
        failure = ET.SubElement(case, "failure", type=config.state.value, message=message)
        failure.text = _xml_safe_text("\n\n".join(part for part in (config.reason, log) if part))
    elif config.state is ConfigState.INTERRUPTED:
        ET.SubElement(case, "error", type=config.state.value, message=message)
    elif config.state in {ConfigState.WAITING, ConfigState.RUNNING, ConfigState.LOCKED}:
        ET.SubElement(case, "skipped", message=message)
    if config.log is not None:
        ET.SubElement(case, "system-out").text = _xml_safe_text(f"log: {config.log}")


def _seconds_text(seconds: float) -> str:
    return f"{max(0.0, seconds):.3f}"


def _xml_safe_text(text: str) -> str:
    """Return text without the characters that XML does not allow, or that hide other text."""
    return "\n".join(map(sanitized_line, text.splitlines()))


SPEC = "tensorflow"  # the package of its rehearsal's install command; of others it is the last package
_HEADER: tuple[str, ...] = ("package", "version", "build string", "size", "built", "tests", "tested")


def built_packages_text(
    report: MatrixReport,
    width: int | None = None,
    env: Mapping[str, str] = os.environ,
    channels: Sequence[str] = ("conda-forge",),
) -> str:
    """Return the built packages as text, with the channel, and the command that installs from it.

    ``width`` is that of the terminal, which tables and notes keep to; commands stay on one line, to be copied. ``env``
    has the PATH, on which the installer is found. ``channels`` have the dependencies of packages that are no rehearsal.
    """
    states = set(ConfigState) if report.rehearsal else GOOD
    configs = [config for config in report.configs if config.packages and config.state in states]
    if not configs:
        return ""
    lines = [
        *_package_table_lines(configs, width),
        _total_line(report),
        *_install_lines(configs, () if report.rehearsal else channels, env),
    ]
    if report.rehearsal:
        names = {package.artifact.name for config in configs for package in config.packages}
        parts = "their compiled parts are upstream's" if SPEC in names else "made on this machine's programs and wheels"
        said = f"These packages are a rehearsal{':' if SPEC in names else ','} {parts}. They cannot be published."
        lines += [said] if width is None else wrapped_lines(said, width)
    return "\n" + "\n".join(lines) + "\n"


def _package_table_lines(configs: Sequence[ConfigRun], width: int | None) -> Iterator[str]:
    distinct = comparison.distinct_packages(configs)
    header, rows = _HEADER, [_package_row(package) for package in distinct]
    if len({package.artifact.subdir for package in distinct if not package.artifact.is_wheel} - {"noarch"}) > 1:
        header = (*header, "subdir")  # packages of two platforms may have equal names
        rows = [(*row, package.artifact.subdir) for row, package in zip(rows, distinct, strict=True)]
    yield table_with_whole_names(header, rows, right=(3,), width=width)
    yield ""
    yield from dict.fromkeys(line for config in configs for line in _package_note_lines(config, width))


def _install_lines(configs: Sequence[ConfigRun], others: Sequence[str], env: Mapping[str, str]) -> Iterator[str]:
    """Yield the channels, of which each rehearsed config has its own, and the command that installs from the last.

    The dependencies are in ``others``; a rehearsed config's channel has them itself.
    """
    channels: dict[Path, list[str]] = {}
    for config in configs:
        artifacts = [package.artifact for package in config.packages if not package.artifact.is_wheel]
        if artifacts:
            channels[artifacts[0].path.parents[1]] = list(dict.fromkeys(artifact.name for artifact in artifacts))
    for channel in channels:
        yield f"channel  {channel}"
    if channels:
        channel, names = list(channels.items())[-1]
        specs = names if others else [SPEC if SPEC in names else names[-1]]
        yield f"install  {install_command((channel.absolute().as_uri(), *others), specs, env)}"


def install_command(channels: Sequence[str], specs: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the command that installs packages from channels alone, with the installer that the machine has."""
    known = ("mamba", "conda", "micromamba", "pixi")
    installer = next((name for name in known if process.program_on_path(name, env=env)), "kiln")
    name, words = specs[-1], shlex.join(specs)
    option = "--channel" if installer == "pixi" else "-c"
    sources = " ".join(f"{option} {shlex.quote(channel)}" for channel in channels)
    if installer == "pixi":
        return f"pixi global install --environment {name} {sources} {words}"
    if installer == "kiln":
        return f"kiln install -p ./{name} {sources} {words}"
    return f"{installer} create -n {name} --override-channels {sources} {words}"


def _package_row(package: PackageReport) -> tuple[str, ...]:
    artifact, tests = package.artifact, package.tests
    count = "" if tests.verdict in {TestVerdict.NONE, TestVerdict.SKIPPED} else f"{tests.commands} "
    built = "cached" if package.reused else duration(package.build_seconds)
    tested = duration(tests.seconds) if tests.commands else ""
    size = files.human_readable_size(artifact.size)
    return (
        artifact.name,
        artifact.version,
        artifact.build_string,
        size,
        built,
        f"{count}{tests.verdict.value}",
        tested,
    )


def _package_note_lines(config: ConfigRun, width: int | None) -> list[str]:
    tests = [(package.tests.package, note) for package in config.packages for note in package.tests.notes]
    of_tests = {note for _, note in tests}
    steps = [note for step in config.steps for note in step.notes if note not in of_tests]
    notes = [*steps, *(f"{package}: {note}" for package, note in tests)]
    lines = [line for note in notes for line in ([note] if width is None else wrapped_lines(note, width))]
    return lines + [""] * bool(notes)
