"""``kiln check``: packages into clean prefixes, and their tests."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.cli.environment import passed_on
from kiln.cli.image import channel_name
from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from kiln.model.artifact import TestReport


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln check``."""
    parser.add_argument("packages", nargs="+", metavar="PACKAGE", type=Path, help="package files of this feedstock")
    parser.add_argument(
        "--from",
        dest="channels",
        metavar="CHANNEL",
        action="append",
        default=[],
        help="a channel with what else is needed; may be given again (default: those that the recipe names)",
    )
    parser.add_argument("--json", action="store_true", help="the reports as JSON on standard output")


def run(options: argparse.Namespace, root: Path) -> int:
    """Test the packages and print what was tested.

    Raises:
        UsageError: when a package is not there.
    """
    from kiln import command, load
    from kiln.channel import machine_virtual_packages
    from kiln.pipeline import checking

    if missing := [str(path) for path in options.packages if not path.is_file()]:
        raise UsageError(f"there is no file {', '.join(missing)}")
    wanted = checking.Checking(
        feedstock=load.find(root),
        packages=tuple(path.absolute() for path in options.packages),
        channels=tuple(map(channel_name, options.channels)),
        machine=machine_virtual_packages(os.environ),
        environment=passed_on(os.environ),
    )
    with command.termination_as_interrupt():
        reports = checking.execute(wanted, lambda name: print(f"test {name}", file=sys.stderr))
    print(json.dumps([as_data(report) for report in reports], indent=2) if options.json else checking.total(reports))
    return 0


def as_data(report: TestReport) -> dict[str, object]:
    """Return a report for programs."""
    return {
        "package": report.package,
        "verdict": report.verdict.value,
        "tests": report.commands,
        "seconds": report.seconds,
        "notes": list(report.notes),
        "log": str(report.log) if report.log else None,
    }
