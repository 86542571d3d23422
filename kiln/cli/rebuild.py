"""``kiln rebuild``: rebuild a published package from its provenance, and compare it byte for byte."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.cli import verify

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln rebuild``."""
    verify.add_published_package_arguments(parser)
    parser.add_argument(
        "--into",
        metavar="DIR",
        type=Path,
        help="make the feedstock again in this new folder, from the package and its record alone, and build there",
    )


def run(options: argparse.Namespace, root: Path) -> int:
    """Verify the record, rebuild from it, and compare the packages."""
    from kiln import feedstock_folder_check, signals
    from kiln.cli.environment_filters import container_client_variables, variables_passed_to_builds
    from kiln.job.host_environment_and_python import HostMachine
    from kiln.job.job_descriptions import BuildOptions
    from kiln.release import rebuild, restored_feedstock
    from kiln.run.options import RunOptions

    feedstock = None if options.into else feedstock_folder_check.load(root)
    record = verify.verified_package(options).record
    feedstock = feedstock or restored_feedstock.restore_feedstock(options.package, record, options.into)
    rebuild.require_same_recipe(feedstock, record)
    request = RunOptions(
        configs=(record["config"],),
        command="kiln rebuild",
        container=record["container"],
        image=rebuild.recorded_image_name(record),
        build=BuildOptions(
            engine=record["engine"], executable=os.environ.get("DOCKER_EXECUTABLE") or None, rebuild=True
        ),
        caller_variables=rebuild.recorded_build_variables(record),
        client=container_client_variables(os.environ),
    )
    machine = HostMachine(environment=variables_passed_to_builds(os.environ), python=Path(sys.executable))
    # The build's output is in its log; printed here, it would hide the result.
    with signals.termination_as_interrupt(), contextlib.redirect_stdout(io.StringIO()):
        package = rebuild.rebuild_and_compare(feedstock, request, machine, options.package, image=record["image"])
    print(f"reproduced, byte for byte: {package.name} {record['sha256']}")
    return 0
