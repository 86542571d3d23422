"""``kiln rerender``: write .ci_support and the CI workflow, or check that they are up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.errors import MatrixDrift, UsageError

if TYPE_CHECKING:
    import argparse

    from kiln.expand import Drift
    from kiln.template.names import Doubts

_SHOWN = 200  # lines of a difference that are shown; the rest is counted


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln rerender``."""
    parser.add_argument(
        "--check", action="store_true", help="write nothing; show the differences, and fail if there are any"
    )
    add_pinning(parser)


def add_pinning(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a pinning."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "-e",
        dest="pinning",
        metavar="PINNING/conda_build_config.yaml",
        type=Path,
        help="read this variant file before the recipe's, such as conda-forge's global pinning; migrations are read "
        "from share/conda-forge/migrations in its folder",
    )
    group.add_argument(
        "--no-pinning",
        action="store_true",
        help="use the feedstock's variant files alone, even if keys have no value then",
    )


def pinning_of(path: Path | None) -> Path | None:
    """Return the pinning's file, if one is given.

    Raises:
        UsageError: if the file does not exist.
    """
    if path is None:
        return None
    file = path.absolute() / "conda_build_config.yaml" if path.is_dir() else path.absolute()
    if not file.is_file():
        raise UsageError(f"pinning not found: {path}", hint="-e PINNING/conda_build_config.yaml")
    return file


def run(options: argparse.Namespace, root: Path) -> int:
    """Write the files, or check them.

    Raises:
        MatrixDrift: if the checked files differ.
        PinningNeeded: if keys have no value without a pinning.
    """
    from kiln import limits

    notes, lines, fault = limits.bounded(lambda: rerender(options, root))
    print("".join(f"{line}\n" for line in notes), end="", file=sys.stderr)
    print("\n".join(lines))
    if fault:
        raise fault
    return 0


def rerender(options: argparse.Namespace, root: Path) -> tuple[list[str], list[str], MatrixDrift | None]:
    """Write or check the files; return notes, the lines to print, and the error of a check."""
    from kiln import expand, load
    from kiln.expand import workflow

    feedstock = load.find(root)
    pinning = pinning_of(options.pinning)
    if pinning is None and not options.no_pinning:
        expand.require_values(feedstock)
    doubts: Doubts = {}
    configs = expand.configs(feedstock, pinning, doubts)
    notes = [f"note: {doubt}" for doubt in doubts.values()]
    total = f"{len(configs)} configs in {feedstock.configs}"
    if not options.check:
        changes = summary(expand.write(feedstock, configs)) or "nothing to change"
        return notes, [f"{total}: {changes}", *workflow.write(feedstock, configs)], None
    drift, workflow_lines = expand.drift(feedstock, configs), workflow.drift(feedstock, configs)
    if not drift and not workflow_lines:
        return notes, [f"{total} are up to date"], None
    lines = [*drift.lines, *workflow_lines]
    more = [f"... and {len(lines) - _SHOWN} more lines"] if len(lines) > _SHOWN else []
    why = [part for part in (summary(drift), f"{workflow.NAME} differs" if workflow_lines else "") if part]
    fault = MatrixDrift(
        f"{'.ci_support' if drift else workflow.NAME} is not up to date with the recipe and the variant files",
        why=", ".join(why),
        hint="kiln rerender" + (f" -e {options.pinning}" if options.pinning else " --no-pinning" * options.no_pinning),
    )
    return notes, [*lines[:_SHOWN], *more], fault


def summary(drift: Drift) -> str:
    """Return a drift in one line: ``2 added, 1 changed, 3 removed``."""
    counts = (("added", drift.missing), ("changed", drift.changed), ("removed", drift.stale))
    return ", ".join(f"{len(names)} {word}" for word, names in counts if names)
