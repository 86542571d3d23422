"""``kiln build --debug``: a shell in the place where an output's script runs."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import TYPE_CHECKING

from kiln.cli import build, cells
from kiln.cli.environment import machine_of
from kiln.cli.wishes import wishes
from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from kiln.model.feedstock import Feedstock

TERMINAL = ("TERM", "COLORTERM", "LINES", "COLUMNS")


def wanted(options: argparse.Namespace, environment: Mapping[str, str]) -> bool:
    """Whether a shell is asked for: by the option, or by conda-forge's variable."""
    return bool(options.debug) or environment.get("BUILD_WITH_CONDA_DEBUG") == "1"


def run(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Make an output ready and hand the terminal over; returns the shell's exit code.

    Raises:
        UsageError: when it is not one cell that is asked for.
    """
    from kiln import command, pipeline

    configs = cells.wanted(feedstock, options)
    if len(configs) != 1:
        raise UsageError(f"--debug opens a shell in one cell, not in {len(configs)}", hint="name one CONFIG")
    pattern = options.output_id or os.environ.get("BUILD_OUTPUT_ID", "")
    asked = wishes(feedstock, options, configs)
    variables = {"BUILD_WITH_CONDA_DEBUG": "1", **({"BUILD_OUTPUT_ID": pattern} if pattern else {})}
    asked = dataclasses.replace(asked, debug=pattern, given={**asked.given, **variables})
    planned = pipeline.plan(feedstock, asked, machine_of(options), on_line=build.said_of_images)
    for note in planned.notes:
        print(f"note: {note}", file=sys.stderr)
    if options.dry_run:
        print(pipeline.as_text(planned))
        return 0
    found = {name: os.environ[name] for name in TERMINAL if name in os.environ}
    with command.termination_as_interrupt():
        return pipeline.debug(feedstock, planned, terminal=found if sys.stdin.isatty() else None, say=said)


def said(line: str) -> None:
    """Show what is done before the shell."""
    print(line, file=sys.stderr, flush=True)
