"""``kiln report``: a run over the matrix as one web page, or as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.errors import KilnError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from kiln.model.feedstock import Feedstock
    from kiln.model.run import MatrixReport
    from kiln.variants.axes import Variants


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln report``."""
    parser.add_argument("run", nargs="?", type=int, metavar="RUN", help="the number of the run (default: the latest)")
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="where to write the page (default: build_artifacts/reports/RUN.html, and nowhere with --json)",
    )
    parser.add_argument("--json", action="store_true", help="the run as JSON on standard output")


def run(options: argparse.Namespace, root: Path) -> int:
    """Write the page, and print the run as a table and where the page lies; or print JSON."""
    from kiln import load, report

    feedstock = load.find(root)
    found = recorded(feedstock, options.run)
    variants = variants_of(feedstock, (cell.config for cell in found.cells))
    if options.json:
        print(json.dumps(report.as_json(found), indent=2))
    else:
        print(report.matrix_text(found, variants))
    if options.out or not options.json:
        place = (options.out or feedstock.artifacts / "reports" / f"{found.run:04d}.html").absolute()
        write(feedstock, found, variants, place)
        print(f"page: {place}", file=sys.stderr if options.json else sys.stdout)
    return 0


def write(feedstock: Feedstock, found: MatrixReport, variants: Variants, place: Path) -> None:
    """Write the page of a run.

    Raises:
        DiskFull: nothing is written then.
    """
    from kiln import files, report

    files.write_text(place, report.as_html(found, variants, name=feedstock.root.name, folder=place.parent))


def recorded(feedstock: Feedstock, number: int | None) -> MatrixReport:
    """A run as the ledger has it, the latest when no number is given.

    Raises:
        UsageError: there is no such run.
    """
    from kiln.ledger import Ledger
    from kiln.pipeline.layout import Layout

    place = Layout.of(feedstock).ledger
    runs: tuple[int, ...] = ()
    if place.is_file():  # to open it would begin one
        with Ledger(place) as ledger:
            if (found := ledger.report(number)) is not None:
                return found
            runs = ledger.runs()
    if not runs:
        raise UsageError("no run is recorded here yet", why=f"{place} has none", hint="kiln build --all")
    raise UsageError(f"there is no run {number}", hint=f"the latest is {runs[0]}, the first {runs[-1]}")


def variants_of(feedstock: Feedstock, configs: Iterable[str]) -> Variants:
    """What is still known of the cells' variants: a run may be older than the files in .ci_support."""
    from kiln import expand

    found = {}
    for config in configs:
        try:
            found[config] = expand.read(feedstock, config).variant
        except KilnError:
            continue
    return found
