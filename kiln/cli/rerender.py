"""``kiln rerender``: write .ci_support and the CI's workflow, or say how they differ."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.errors import MatrixDrift, UsageError

if TYPE_CHECKING:
    import argparse

    from kiln.expand import Drift
    from kiln.template.names import Doubts

_SHOWN = 200  # lines of a difference; the rest is counted


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln rerender``."""
    parser.add_argument("--check", action="store_true", help="write nothing; show the difference and fail if any")
    add_pinning(parser)


def add_pinning(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a pinning."""
    parser.add_argument(
        "-e",
        dest="pinning",
        metavar="PINNING/conda_build_config.yaml",
        type=Path,
        help="a variant file that comes before the recipe's own, such as conda-forge's global pinning; migrations are "
        "read beside it, under share/conda-forge/migrations",
    )


def pinning_of(path: Path | None) -> Path | None:
    """The pinning's file, if one is given.

    Raises:
        UsageError: there is no such file.
    """
    if path is None:
        return None
    found = path.absolute() / "conda_build_config.yaml" if path.is_dir() else path.absolute()
    if not found.is_file():
        raise UsageError(f"there is no pinning at {path}", hint="-e PINNING/conda_build_config.yaml")
    return found


def run(options: argparse.Namespace, root: Path) -> int:
    """Write the files, or check them.

    Raises:
        MatrixDrift: they are checked and differ.
    """
    from kiln import expand, load
    from kiln.expand import workflow

    feedstock = load.find(root)
    doubts: Doubts = {}
    cells = expand.cells(feedstock, pinning_of(options.pinning), doubts)
    for doubt in doubts.values():
        print(f"note: {doubt}", file=sys.stderr)
    if not options.check:
        done = expand.write(feedstock, cells)
        print(f"{len(cells)} cells in {feedstock.configs}: {summary(done) or 'nothing to change'}")
        print("".join(f"{line}\n" for line in workflow.write(feedstock, cells)), end="")
        return 0
    found, of_workflow = expand.drift(feedstock, cells), workflow.drift(feedstock, cells)
    if not found and not of_workflow:
        print(f"{len(cells)} cells in {feedstock.configs} are as the recipe and the variant files make them")
        return 0
    lines = (*found.lines, *of_workflow)
    print("\n".join(lines[:_SHOWN]))
    if len(lines) > _SHOWN:
        print(f"... and {len(lines) - _SHOWN} lines more")
    raise MatrixDrift(
        f"{'.ci_support' if found else workflow.NAME} is not what the recipe and the variant files make",
        why=", ".join(part for part in (summary(found), f"{workflow.NAME} differs" if of_workflow else "") if part),
        hint="kiln rerender" + (f" -e {options.pinning}" if options.pinning else ""),
    )


def summary(drift: Drift) -> str:
    """A drift in one line: ``2 added, 1 changed, 3 removed``."""
    counts = (("added", drift.missing), ("changed", drift.changed), ("removed", drift.stale))
    return ", ".join(f"{len(names)} {what}" for what, names in counts if names)
