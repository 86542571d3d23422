"""``kiln report``: write the report of a run as a web page or as JSON."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.errors import KilnError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from kiln.model.feedstock import Feedstock
    from kiln.model.run import MatrixReport
    from kiln.variants.varying_keys import Variants


INDEXED = 50  # runs in the index; a run is compared with these. To read 50 of 192 configs takes four seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def run(options: argparse.Namespace, root: Path) -> int:
    """Write the page or JUnit's XML, and print the run as a table with the page's path; or print JSON."""
    from kiln import feedstock_folder_check
    from kiln.cli.run_view_choice_and_printing import terminal_width
    from kiln.report.result_table import run_table_text
    from kiln.report.run_report_as_json import report_as_json
    from kiln.report.web_pages import page_name
    from kiln.store.layout import ArtifactLayout

    feedstock = feedstock_folder_check.load(root)
    matrix_report = recorded_run(feedstock, options.run)
    variants = variants_of_existing_configs(feedstock, (config.config for config in matrix_report.configs))
    if options.json:
        print(json.dumps(report_as_json(matrix_report), indent=2))
    else:
        print(run_table_text(matrix_report, variants, terminal_width(sys.stdout)))
    if options.junit:
        write_junit(matrix_report, options.junit)
    if options.out or not (options.json or options.junit):
        folder = ArtifactLayout.for_feedstock(feedstock).safe_path("reports")
        path = (options.out or folder / page_name(matrix_report.run)).absolute()
        write_page_and_index(feedstock, matrix_report, variants, path, folder=folder.absolute())
        print(f"page: {path}", file=sys.stderr if options.json else sys.stdout)
    return 0


def write_page_and_index(
    feedstock: Feedstock, matrix_report: MatrixReport, variants: Variants, path: Path, *, folder: Path
) -> None:
    """Write the page of a run, and with a page in ``folder`` its index of all runs.

    Raises:
        DiskFull: if the disk is full; nothing is written then.
    """
    from kiln import files
    from kiln.cli.runs import latest_runs_and_total
    from kiln.report import web_pages

    recorded, total = latest_runs_and_total(feedstock, INDEXED)
    has_index, name = path.parent == folder, feedstock.root.name
    page = web_pages.run_page_html(
        matrix_report, variants, name=name, folder=path.parent, earlier=recorded, has_index=has_index
    )
    files.write_text(files.safe_path_inside(path, folder) if has_index else path, page)
    if has_index:
        index = web_pages.run_index_html(recorded, name=name, folder=folder, omitted=total - len(recorded))
        files.write_text(files.safe_path_inside(folder / web_pages.INDEX, folder), index)


def write_junit(matrix_report: MatrixReport, path: Path) -> None:
    """Write a run as JUnit's XML.

    Raises:
        DiskFull: if the disk is full; nothing is written then.
    """
    from kiln import files
    from kiln.report.junit import as_junit

    files.write_text(path.absolute(), as_junit(matrix_report, time.time()))


def recorded_run(feedstock: Feedstock, number: int | None) -> MatrixReport:
    """Return a run from the ledger, the latest one by default.

    Raises:
        UsageError: if the run does not exist.
    """
    from kiln.ledger import Ledger
    from kiln.store.layout import ArtifactLayout

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
    from kiln import expand, limits

    def read_existing_variants() -> Variants:
        variants = {}
        for config in configs:
            with suppress(KilnError):
                variants[config] = expand.read_config(feedstock, config).variant
        return variants

    return limits.run_bounded(read_existing_variants)
