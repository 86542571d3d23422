"""``kiln collect``: take over the packages that jobs of a CI have built, for a release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln collect``."""
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="FOLDER",
        type=Path,
        help="the folder of a job, or of several: report.json, as 'kiln report --json' prints it, and the packages in "
        "their subdirs",
    )


def run(options: argparse.Namespace, root: Path) -> int:
    """Collect the packages, and print each config with their number."""
    from kiln import feedstock_folder_check
    from kiln.console.text import count_text
    from kiln.release import ci_job_results_import

    for config, count in ci_job_results_import.import_ci_job_results(
        feedstock_folder_check.load(root), options.folders
    ):
        print(f"{config}: {count_text(count, 'package')}")
    return 0
