"""``kiln runs``: list the runs that the ledger has recorded."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kiln.cli.commands_in_hints import make_pasteable
from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from kiln.model.feedstock import Feedstock
    from kiln.model.run import MatrixReport

_SHOWN = 20  # runs that are listed by default


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln runs``."""
    parser.add_argument("--last", metavar="N", type=int, default=_SHOWN, help="list the last N runs (default: 20)")
    parser.add_argument("--all", action="store_true", help="list all runs")
    parser.add_argument("--json", action="store_true", help="print a JSON list, the latest run first")


def run(options: argparse.Namespace, root: Path) -> int:
    """Print the runs, the latest first."""
    from kiln import feedstock_folder_check

    if options.last < 1:
        raise UsageError(f"--last is {options.last}", hint="a number from 1, or --all")
    feedstock = feedstock_folder_check.load(root)
    reports, total = latest_runs_and_total(feedstock, None if options.all else options.last)
    now = time.time()
    if options.json:
        print(json.dumps([run_as_json(report, now) for report in reports], indent=2))
    elif not reports:
        print(make_pasteable("no run is recorded yet: kiln build --all starts one", root))
    else:
        print(runs_as_table(reports, now))
        if total > len(reports):
            print(make_pasteable(f"\n{total - len(reports)} earlier runs: kiln runs --all", root))
    return 0


def latest_runs_and_total(feedstock: Feedstock, most: int | None) -> tuple[tuple[MatrixReport, ...], int]:
    """Return the latest runs of the ledger, the latest first, and the number of all runs."""
    from kiln.ledger import Ledger
    from kiln.store.layout import ArtifactLayout

    path = ArtifactLayout.for_feedstock(feedstock).ledger
    if not path.is_file():  # Ledger() would create it
        return (), 0
    with Ledger(path) as ledger:
        numbers = ledger.run_numbers()
        return tuple(filter(None, map(ledger.run_report, numbers[:most]))), len(numbers)


def run_as_json(report: MatrixReport, now: float) -> dict[str, Any]:
    """Return a run as JSON values: times in seconds since the epoch, ``seconds`` up to now for a run in progress."""
    from kiln.report import totals

    return {
        "run": report.run,
        "command": report.command,
        "commit": report.commit,
        "rehearsal": report.rehearsal,
        "verdict": totals.run_verdict(report),
        "started": report.started,
        "finished": report.finished,
        "seconds": round(totals.end_or_last_recorded_time(report, now) - report.started, 3),
        "configs": {config.config: config.state.value for config in report.configs},
    }


def runs_as_table(reports: Sequence[MatrixReport], now: float) -> str:
    """Return the runs as a table."""
    from kiln import git
    from kiln.cli.run_view_choice_and_printing import terminal_width
    from kiln.console.progress_text import state_count_text
    from kiln.console.text import duration, table
    from kiln.report import totals

    rows = [
        (
            str(report.run),
            f"{datetime.fromtimestamp(report.started).astimezone():%Y-%m-%d %H:%M}",
            git.short_commit(report.commit),
            "rehearsal" if report.rehearsal else "build",
            totals.run_verdict(report),
            duration(totals.end_or_last_recorded_time(report, now) - report.started),
            state_count_text(report.configs),
        )
        for report in reports
    ]
    header = ("run", "started", "commit", "kind", "verdict", "took", "configs")
    return table(header, rows, right=(0, 5), width=terminal_width(sys.stdout))
