"""``kiln runs``, ``log``, ``report`` and ``cache``: what past runs have left."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.errors import KilnError, UnknownConfig, UsageError, did_you_mean
from kiln.base.text import count_text, first_of
from kiln.cli import arguments
from kiln.cli.main import make_pasteable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from kiln.recipe.feedstock import Feedstock
    from kiln.recipe.variants.space import Variants
    from kiln.state.results import ConfigRun, MatrixReport


def add_cache_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln cache``."""
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument(
        "--to",
        metavar="SIZE",
        type=arguments.parse_size,
        help="remove the least recently used entries until the rest is smaller: 50GB",
    )
    actions.add_argument(
        "--clean",
        action="store_true",
        help="keep only the most recently used cache of each kind, and remove those of earlier compilers and images",
    )
    actions.add_argument("--all", action="store_true", help="remove all caches that are not in use by a build")
    parser.add_argument("--json", action="store_true", help="print the caches as JSON")


def run_cache(options: argparse.Namespace, root: Path) -> int:
    """Remove the selected caches, and print the remaining ones."""
    from kiln.base import files
    from kiln.base.text import table
    from kiln.cli.output import terminal_width
    from kiln.recipe import feedstock as recipe_feedstock
    from kiln.state.store.layout import ArtifactLayout

    caches = ArtifactLayout.for_feedstock(recipe_feedstock.load(root)).compile_caches
    freed = 0
    if options.to is not None:
        freed = caches.trim_to_size(options.to)
    elif options.clean or options.all:
        entries = caches.all_caches()
        newest = {entry.label: entry.key for entry in reversed(entries)}  # the most recently used one of each kind
        removed = [entry for entry in entries if options.all or newest[entry.label] != entry.key]
        freed = sum(map(caches.remove_cache, removed))
    remaining = [entry for entry in caches.all_caches() if entry.size]
    if options.json:
        print(json.dumps({"caches": [dataclasses.asdict(entry) for entry in remaining], "freed": freed}, indent=2))
        return 0
    rows = [
        (
            entry.key,
            entry.label,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)),
            files.human_readable_size(entry.size),
        )
        for entry in remaining
    ]
    if rows:
        header = ("key", "for", "last used", "size")
        print(table(header, rows, right=(3,), width=terminal_width(sys.stdout)), end="\n\n")
    print(f"{files.human_readable_size(sum(entry.size for entry in remaining))} in {caches.root}")
    if freed:
        print(f"{files.human_readable_size(freed)} freed")
    return 0


_LINE = 1 << 20  # bytes of a line that are read at once


def add_log_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln log``."""
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="name of a config's file in .ci_support (default: the run's only one)",
    )
    parser.add_argument(
        "--run", dest="number", metavar="N", type=int, help="number of the run (default: the last that built CONFIG)"
    )
    parser.add_argument("--json", action="store_true", help="print the log with its run, state and path as JSON")


def run_log(options: argparse.Namespace, root: Path) -> int:
    """Print the log, and on standard error its run, state and path."""
    from kiln.recipe import feedstock as recipe_feedstock
    from kiln.run.report import text as report_text

    feedstock = recipe_feedstock.load(root)
    given = options.config or _only_config(recorded_run(feedstock, options.number))
    name = given.removesuffix(".yaml").removeprefix(".ci_support/")
    number, config, path = recorded_config_and_log_path(feedstock, name, options.number)
    with report_text.open_log(path) as file:
        if options.json:
            text = file.read().decode(errors="replace")
            about = {"run": number, "config": name, "state": config.state.value, "reason": config.reason}
            print(json.dumps({**about, "log": str(path), "text": text}, indent=2))
            return 0
        print(f"run {number}, {config.state.value}: {path}", file=sys.stderr, flush=True)
        while line := file.readline(_LINE):
            sys.stdout.write(line.decode(errors="replace"))
    return 0


def _only_config(report: MatrixReport) -> str:
    names = [config.config for config in report.configs]
    if len(names) != 1:
        raise UsageError(
            f"run {report.run} has {count_text(len(names), 'config')}", hint=f"name one: {first_of(names, 3)}"
        )
    return names[0]


def recorded_config_and_log_path(feedstock: Feedstock, name: str, number: int | None) -> tuple[int, ConfigRun, Path]:
    """Return a run, a config's record in it, and its log: of the last run that has a log of it, or of one run."""
    from kiln.state.store.layout import ArtifactLayout

    recorded_run(feedstock, number)  # which is to exist
    runs = _runs_with_config(latest_runs_and_total(feedstock, None)[0], name, number)
    layout = ArtifactLayout.for_feedstock(feedstock)
    for run_number, config in runs:
        places = (config.log, layout.log_file(run_number, name))  # the second, where the feedstock was moved
        if path := next((place for place in places if place is not None and place.is_file()), None):
            return run_number, config, path
    run_number, config = runs[0]
    gone = "it was removed" if config.log else "it was not collected with the packages"
    cached = "a cached config is not built, and has no log" if config.state.value == "cached" else gone
    raise UsageError(
        f"run {run_number} has no log of {name}",
        why=config.reason.partition("\n")[0] or cached,
        hint="kiln runs lists the runs; --run N selects one",
    )


def _runs_with_config(reports: Iterable[MatrixReport], name: str, number: int | None) -> list[tuple[int, ConfigRun]]:
    """Return the number and the record of a config in each run that has it, or in one run.

    Raises:
        UnknownConfig: where none has it.
    """
    every = [(report.run, config) for report in reports for config in report.configs]
    matches = [(run, config) for run, config in every if config.config == name]
    if not matches:
        names = dict.fromkeys(config.config for _, config in every)
        hint = did_you_mean(name, names) or f"recorded are {first_of(names, 3) or 'none'}"
        raise UnknownConfig(f"no recorded run has the config {name!r}", hint=hint)
    found = [(run, config) for run, config in matches if number in {None, run}]
    if not found:
        hint = f"runs with it: {first_of((str(run) for run, _ in matches), 10)}"
        raise UnknownConfig(f"run {number} has no config {name!r}", hint=hint)
    return found


_SHOWN = 20  # runs that are listed by default


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln runs``."""
    parser.add_argument("--last", metavar="N", type=int, default=_SHOWN, help="list the last N runs (default: 20)")
    parser.add_argument("--all", action="store_true", help="list all runs")
    parser.add_argument("--json", action="store_true", help="print a JSON list, the latest run first")


def run(options: argparse.Namespace, root: Path) -> int:
    """Print the runs, the latest first."""
    from kiln.base import git
    from kiln.base.text import duration, table
    from kiln.cli.output import terminal_width
    from kiln.recipe import feedstock as recipe_feedstock
    from kiln.run.report import comparison
    from kiln.run.view.state import state_count_text

    if options.last < 1:
        raise UsageError(f"--last is {options.last}", hint="a number from 1, or --all")
    feedstock = recipe_feedstock.load(root)
    reports, total = latest_runs_and_total(feedstock, None if options.all else options.last)
    now = time.time()
    seconds = [comparison.end_or_last_recorded_time(report, now) - report.started for report in reports]
    if options.json:
        entries = [
            {
                "run": report.run,
                "command": report.command,
                "commit": report.commit,
                "rehearsal": report.rehearsal,
                "verdict": comparison.run_verdict(report),
                "started": report.started,
                "finished": report.finished,
                "seconds": round(took, 3),
                "configs": {config.config: config.state.value for config in report.configs},
            }
            for report, took in zip(reports, seconds, strict=True)
        ]
        print(json.dumps(entries, indent=2))
        return 0
    if not reports:
        print(make_pasteable("no run is recorded yet: kiln build --all starts one", root))
        return 0
    rows = [
        (
            str(report.run),
            f"{datetime.fromtimestamp(report.started).astimezone():%Y-%m-%d %H:%M}",
            git.short_commit(report.commit),
            "rehearsal" if report.rehearsal else "build",
            comparison.run_verdict(report),
            duration(took),
            state_count_text(report.configs),
        )
        for report, took in zip(reports, seconds, strict=True)
    ]
    header = ("run", "started", "commit", "kind", "verdict", "took", "configs")
    print(table(header, rows, right=(0, 5), width=terminal_width(sys.stdout)))
    if total > len(reports):
        print(make_pasteable(f"\n{total - len(reports)} earlier runs: kiln runs --all", root))
    return 0


def latest_runs_and_total(feedstock: Feedstock, most: int | None) -> tuple[tuple[MatrixReport, ...], int]:
    """Return the latest runs of the ledger, the latest first, and the number of all runs."""
    from kiln.state.ledger.ledger import Ledger
    from kiln.state.store.layout import ArtifactLayout

    path = ArtifactLayout.for_feedstock(feedstock).ledger
    if not path.is_file():  # Ledger() would create it
        return (), 0
    with Ledger(path) as ledger:
        numbers = ledger.run_numbers()
        return tuple(filter(None, map(ledger.run_report, numbers[:most]))), len(numbers)


INDEXED = 50  # runs in the index; a run is compared with these. To read 50 of 192 configs takes four seconds


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln report``."""
    parser.add_argument("run", nargs="?", type=int, metavar="RUN", help="number of the run (default: the latest)")
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="write the page to this file (default: build_artifacts/reports/RUN.html; no page with --json)",
    )
    parser.add_argument(
        "--junit", metavar="FILE", type=Path, help="write the run to this file as JUnit's XML, for a CI"
    )
    parser.add_argument("--json", action="store_true", help="print the run as JSON")


def run_report(options: argparse.Namespace, root: Path) -> int:
    """Write the page or JUnit's XML, and print the run as a table with the page's path; or print JSON."""
    from kiln.base import files
    from kiln.cli.output import terminal_width
    from kiln.recipe import feedstock as recipe_feedstock
    from kiln.run.report.page import INDEX, page_name, report_as_json, run_index_html, write_run_pages
    from kiln.run.report.text import run_table_text
    from kiln.state.store.layout import ArtifactLayout

    feedstock = recipe_feedstock.load(root)
    matrix_report = recorded_run(feedstock, options.run)
    variants = variants_of_existing_configs(feedstock, (config.config for config in matrix_report.configs))
    if options.json:
        print(json.dumps(report_as_json(matrix_report), indent=2))
    else:
        print(run_table_text(matrix_report, variants, terminal_width(sys.stdout)))
    if options.junit:
        write_junit(matrix_report, options.junit)
    if options.out or not (options.json or options.junit):
        folder = ArtifactLayout.for_feedstock(feedstock).safe_path("reports").absolute()
        path = (options.out or folder / page_name(matrix_report.run)).absolute()
        recorded, total = latest_runs_and_total(feedstock, INDEXED)
        has_index, name = path.parent == folder, feedstock.root.name
        path = files.safe_path_inside(path, folder) if has_index else path
        paste = partial(make_pasteable, root=root)
        write_run_pages(
            matrix_report, variants, name=name, path=path, earlier=recorded, has_index=has_index, paste=paste
        )
        if has_index:
            index = run_index_html(recorded, name=name, folder=folder, omitted=total - len(recorded))
            files.write_text(files.safe_path_inside(folder / INDEX, folder), index)
        print(f"page: {path}", file=sys.stderr if options.json else sys.stdout)
    return 0


def write_junit(matrix_report: MatrixReport, path: Path) -> None:
    """Write a run as JUnit's XML."""
    from kiln.base import files
    from kiln.run.report.text import as_junit

    files.write_text(path.absolute(), as_junit(matrix_report, time.time()))


def recorded_run(feedstock: Feedstock, number: int | None) -> MatrixReport:
    """Return a run from the ledger, the latest one by default."""
    from kiln.state.ledger.ledger import Ledger
    from kiln.state.store.layout import ArtifactLayout

    path = ArtifactLayout.for_feedstock(feedstock).ledger
    runs: tuple[int, ...] = ()
    if path.is_file():  # Ledger() would create it
        with Ledger(path) as ledger:
            if (matrix_report := ledger.run_report(number)) is not None:
                return matrix_report
            runs = ledger.run_numbers()
    if not runs:
        raise UsageError("no run is recorded yet", why=f"{path} contains no run", hint="kiln build --all")
    raise UsageError(f"run {number} not found", hint=f"the latest is {runs[0]}, the first {runs[-1]}")


def variants_of_existing_configs(feedstock: Feedstock, configs: Iterable[str]) -> Variants:
    """Return the variants of the configs that still exist: a run may be older than the files in .ci_support."""
    from kiln.base import limits
    from kiln.feedstock import config_file

    def read_existing_variants() -> Variants:
        variants = {}
        for config in configs:
            with suppress(KilnError):
                variants[config] = config_file.read_config(feedstock, config).variant
        return variants

    return limits.run_bounded(read_existing_variants)
