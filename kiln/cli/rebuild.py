"""``kiln rebuild``: build a published package again from its record, and compare it byte for byte."""

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


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln rebuild``."""
    verify.common(parser)


def run(options: argparse.Namespace, root: Path) -> int:
    """Verify the record, build by it, compare, and print that the package is the same."""
    from kiln import command, load, pipeline
    from kiln.cli.environment import client, passed_on
    from kiln.pipeline import rebuild

    feedstock = load.find(root)
    link, _ = verify.record(options)
    record = link.record
    rebuild.require_same_recipe(feedstock, record)
    wishes = pipeline.Wishes(
        configs=(record["cell"],),
        command="kiln rebuild",
        engine=record["engine"],
        container=record["container"],
        image=rebuild.image_of(record),
        executable=os.environ.get("DOCKER_EXECUTABLE") or None,
        rebuild=True,
        given=rebuild.given_by(record),
        client=client(os.environ),
    )
    machine = pipeline.Machine(environment=passed_on(os.environ), python=Path(sys.executable))
    # What the build says goes into its log; here it would only hide the answer.
    with command.termination_as_interrupt(), contextlib.redirect_stdout(io.StringIO()):
        same = rebuild.rebuild(feedstock, wishes, machine, options.package, image=record["image"])
    print(f"the same, byte for byte: {same.name} {record['sha256']}")
    return 0
