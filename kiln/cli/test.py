"""``kiln test``: install packages into clean prefixes and run their tests."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.cli import common_arguments
from kiln.cli.environment_filters import variables_passed_to_builds
from kiln.errors import UnsupportedPlatform, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from kiln.model.build_results import TestReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln test``."""
    parser.add_argument(
        "packages",
        nargs="+",
        metavar="PACKAGE",
        type=Path,
        help="package files to test; other packages of their channel are used too",
    )
    common_arguments.add_channel_arguments(parser, default="the channels that the recipe names")
    parser.add_argument("--gpu", action="store_true", help="require a GPU on this machine, and name it in the report")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON")


def run(options: argparse.Namespace, root: Path) -> int:
    """Test the packages and print the results.

    Raises:
        UsageError: when a package file does not exist.
        UnsupportedPlatform: with ``--gpu``, when this machine has no GPU.
    """
    from kiln import feedstock_folder_check, signals
    from kiln.install import install_and_test
    from kiln.virtual_packages import machine_virtual_packages

    if absent := [str(path) for path in options.packages if not path.is_file()]:
        raise UsageError(f"no such file: {', '.join(absent)}")
    gpus = require_gpus() if options.gpu else None
    feedstock, machine = feedstock_folder_check.load(root), machine_virtual_packages(os.environ)
    with signals.termination_as_interrupt():
        reports = install_and_test.install_and_test_packages(
            feedstock,
            [path.absolute() for path in options.packages],
            channels=tuple(options.channels),
            machine=machine,
            environment=variables_passed_to_builds(os.environ),
            on_package=lambda name: print(f"test {name}", file=sys.stderr),
        )
    if options.json:
        print(json.dumps([report_of_tests_as_data(report, gpus) for report in reports], indent=2))
    else:
        print("\n".join([install_and_test.summarize_test_reports(reports), *(gpus or ())]))
    return 0


def require_gpus() -> tuple[str, ...]:
    """Return the GPUs of this machine.

    Raises:
        UnsupportedPlatform: when it has none that works.
    """
    from kiln.compat import machine_facts

    gpus, notes = machine_facts.gpu_descriptions(os.environ)
    if not gpus:
        raise UnsupportedPlatform(
            "this machine has no GPU to test on",
            why="; ".join(notes) or "the driver lists none",
            hint="'kiln fleet test --gpu' tests on a worker that has one; without --gpu, tests run here",
        )
    return gpus


def report_of_tests_as_data(report: TestReport, gpus: Sequence[str] | None = None) -> dict[str, object]:
    """Return a report as JSON values, with the GPUs if one was required."""
    return {
        **({} if gpus is None else {"gpus": list(gpus)}),
        "package": report.package,
        "verdict": report.verdict.value,
        "tests": report.commands,
        "seconds": report.seconds,
        "notes": list(report.notes),
        "log": str(report.log) if report.log else None,
    }
