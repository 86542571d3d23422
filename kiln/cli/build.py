"""``kiln build``: build cells, or rehearse them."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from kiln.cli.build_arguments import arguments
from kiln.cli.cells import wanted
from kiln.cli.environment import machine_of
from kiln.cli.wishes import wishes
from kiln.errors import AlreadyRunning, BuildFailed, KilnError, TestsFailed, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.model.feedstock import Feedstock
    from kiln.model.run import MatrixReport
    from kiln.pipeline import RunPlan

__all__ = ["advice", "arguments", "build", "execute", "exit_code", "run", "said_of_images"]


def run(options: argparse.Namespace, root: Path) -> int:
    """Build or rehearse what was asked for and print the report."""
    from kiln import load
    from kiln.cli import debug

    if debug.wanted(options, os.environ) and not options.rehearse:
        return debug.run(options, load.find(root))
    if options.rehearse and options.debug:
        raise UsageError("a rehearsal has no compile to look into, and so no --debug", hint="leave one of them")
    if options.rehearse and options.from_step is not None:
        raise UsageError("a rehearsal goes on by itself where it was, and begins at no step", hint="leave --from-step")
    return build(load.find(root), options)


def build(feedstock: Feedstock, options: argparse.Namespace) -> int:
    """Build or rehearse cells, and return the exit code of what failed."""
    from kiln import pipeline

    if options.from_step is not None and options.rebuild:
        raise UsageError("--rebuild begins at the beginning, --from-step does not", hint="leave one of them")
    configs = wanted(feedstock, options)
    if not configs:
        print("nothing failed in the last run, nothing to build", file=sys.stderr)
        return 0
    planned = pipeline.plan(feedstock, wishes(feedstock, options, configs), machine_of(options), on_line=said_of_images)
    for note in planned.notes:
        print(f"note: {note}", file=sys.stderr)
    if options.dry_run:
        print(pipeline.as_text(planned))
        return 0
    report, errors = execute(feedstock, planned)
    if options.json:
        from kiln.report import as_json

        print(json.dumps(as_json(report), indent=2))
    elif options.rehearse:
        from kiln.report import rehearsal_text

        print(rehearsal_text(report), end="")
    return exit_code(report, errors)


def said_of_images(line: str) -> None:
    """Show what a container engine says while it fetches an image, which can be gigabytes."""
    print(f"image: {line}", file=sys.stderr, flush=True)


def execute(feedstock: Feedstock, planned: RunPlan) -> tuple[MatrixReport, Mapping[str, KilnError]]:
    """Run a plan, shown on standard error as whoever reads that can see it."""
    from kiln import command, expand, pipeline
    from kiln.cli.view import add_to_summary, view
    from kiln.report import labels

    configs = [cell.config for cell in planned.cells]
    variants = {config: expand.read(feedstock, config).variant for config in configs}
    shown = view(sys.stderr, os.environ, labels(configs, variants))
    with command.termination_as_interrupt(), shown:
        report, errors = pipeline.build(feedstock, planned, shown)
    add_to_summary(report, variants, os.environ)
    return report, errors


def exit_code(report: MatrixReport, errors: Mapping[str, KilnError]) -> int:
    """Return 0 when every cell is there, the code of what failed when all failed alike, else that of a failed build."""
    from kiln.model.run import CellState

    logs = {cell.config: cell.log for cell in report.cells}
    for config, error in errors.items():
        lines = advice(error, logs.get(config))
        if lines and not isinstance(error, AlreadyRunning):
            print("\n".join((config, *lines)), file=sys.stderr)
    good = {CellState.DONE, CellState.FOUND}
    bad = [cell for cell in report.cells if cell.state not in good]
    codes = {errors[cell.config].exit_code if cell.config in errors else BuildFailed.exit_code for cell in bad}
    failed = codes - {AlreadyRunning.exit_code} or codes
    return 0 if not failed else failed.pop() if len(failed) == 1 else BuildFailed.exit_code


def advice(error: KilnError, log: Path | None) -> list[str]:
    """Return what to try: what the error itself says, and what the doctor knows of the words at the end of the log."""
    from kiln.compat import failures

    found = failures.at_the_end(log) if log is not None and isinstance(error, (BuildFailed, TestsFailed)) else ()
    told = [line for each in found[-3:] for line in (f"  cause: {each.cause}", f"  try: {each.cure}")]
    own = f"  try: {error.hint}"
    return told if own in told or not error.hint else [own, *told]
