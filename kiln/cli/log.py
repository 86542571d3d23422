"""``kiln log``: print the log of a config's build."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from kiln.errors import UnknownConfig, UsageError, did_you_mean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable
    from pathlib import Path

    from kiln.model.feedstock import Feedstock
    from kiln.model.run import ConfigRun, MatrixReport

_LINE = 1 << 20  # bytes of a line that are read at once


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln log``."""
    parser.add_argument("config", metavar="CONFIG", help="name of a config's file in .ci_support")
    parser.add_argument(
        "--run", dest="number", metavar="N", type=int, help="number of the run (default: the last that built CONFIG)"
    )
    parser.add_argument("--json", action="store_true", help="print the log with its run, state and path as JSON")


def run(options: argparse.Namespace, root: Path) -> int:
    """Print the log, and on standard error its run, state and path."""
    from kiln import feedstock_folder_check
    from kiln.report import tail

    feedstock = feedstock_folder_check.load(root)
    name = options.config.removesuffix(".yaml").removeprefix(".ci_support/")
    number, config, path = recorded_config_and_log_path(feedstock, name, options.number)
    with tail.open_log(path) as file:
        if options.json:
            text = file.read().decode(errors="replace")
            about = {"run": number, "config": name, "state": config.state.value, "reason": config.reason}
            print(json.dumps({**about, "log": str(path), "text": text}, indent=2))
            return 0
        print(f"run {number}, {config.state.value}: {path}", file=sys.stderr, flush=True)
        while line := file.readline(_LINE):
            sys.stdout.write(line.decode(errors="replace"))
    return 0


def recorded_config_and_log_path(feedstock: Feedstock, name: str, number: int | None) -> tuple[int, ConfigRun, Path]:
    """Return a run, a config's record in it, and its log: of the last run that has a log of it, or of one run.

    Raises:
        UsageError: the run does not exist, or it has no log.
        UnknownConfig: no run has the config.
    """
    from kiln.cli.report import recorded_run
    from kiln.cli.runs import latest_runs_and_total
    from kiln.store.layout import ArtifactLayout

    reports = (recorded_run(feedstock, number),)
    runs = _runs_with_config(reports if number is not None else latest_runs_and_total(feedstock, None)[0], name)
    layout = ArtifactLayout.for_feedstock(feedstock)
    for run_number, config in runs:
        places = (config.log, layout.log_file(run_number, name))  # the second, where the feedstock was moved
        if path := next((place for place in places if place is not None and place.is_file()), None):
            return run_number, config, path
    run_number, config = runs[0]
    cached = "a cached config is not built, and has no log" if config.state.value == "cached" else "it was removed"
    raise UsageError(
        f"run {run_number} has no log of {name}",
        why=config.reason.partition("\n")[0] or cached,
        hint="kiln runs lists the runs; --run N selects one",
    )


def _runs_with_config(reports: Iterable[MatrixReport], name: str) -> list[tuple[int, ConfigRun]]:
    """Return the number and the record of a config in each run that has it; raises UnknownConfig where none has."""
    names: dict[str, None] = {}
    matches = []
    for report in reports:
        for config in report.configs:
            names[config.config] = None
            if config.config == name:
                matches.append((report.run, config))
    if not matches:
        hint = did_you_mean(name, names) or f"it has {', '.join(list(names)[:3]) or 'none'}"
        raise UnknownConfig(f"no recorded run has the config {name!r}", hint=hint)
    return matches
