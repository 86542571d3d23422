"""``kiln matrix``: the cells as a table with what varies, and what a change does to them."""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.cli.rerender import add_pinning, pinning_of
from kiln.errors import UnsupportedPython, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from typing import Any

    from kiln.model.cell import Cell

_TREE = ("recipe", "conda-forge.yml", ".ci_support")  # what a matrix is made from


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln matrix``."""
    parser.add_argument("--json", action="store_true", help="the cells, or the differences, as JSON")
    parser.add_argument("--diff", metavar="REV", help="what has changed in the matrix since a revision of git")
    parser.add_argument(
        "--was",
        metavar="PINNING",
        type=Path,
        help="with --diff: the pinning of the earlier matrix (default: the one of -e)",
    )
    add_pinning(parser)


def run(options: argparse.Namespace, root: Path) -> int:
    """Print the matrix, or how it differs from that of a revision."""
    from kiln import expand, load

    if options.was and not options.diff:
        raise UsageError("--was needs --diff", hint="kiln matrix --diff HEAD --was OLD -e NEW")
    pinning = pinning_of(options.pinning)
    cells = expand.cells(load.find(root), pinning)
    if options.diff is None:
        print(json.dumps([plain(cell) for cell in cells]) if options.json else "\n".join(table(cells)))
        return 0
    before = cells_of(root, options.diff, pinning_of(options.was) or pinning)
    changes = compared(before, cells)
    print(json.dumps(changes) if options.json else "\n".join(told(changes, options.diff, len(cells))))
    return 0


def plain(cell: Cell) -> dict[str, Any]:
    """A cell as data."""
    return {
        "name": cell.name,
        "platform": cell.platform,
        "image": cell.image,
        "variant": {key: list(values) for key, values in cell.variant.items()},
        "zip_keys": [list(group) for group in cell.zip_keys],
    }


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """The cells, a line each, with the keys that vary between them."""
    if not cells:
        yield "no cells: the recipe is skipped everywhere"
        return
    keys = varying(cells)
    rows = [["cell", *keys]] + [
        [cell.name, *(", ".join(cell.variant.get(key, ("-",))) for key in keys)] for cell in cells
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(item.ljust(width) for item, width in zip(row, widths, strict=True)).rstrip()
    loops = sorted({key for cell in cells for key, values in cell.variant.items() if len(set(values)) > 1})
    yield ""
    yield f"{len(cells)} cells" + (f"; {', '.join(loops)} vary inside a cell" if loops else "")


def varying(cells: Sequence[Cell]) -> list[str]:
    """The keys by which cells differ."""
    every = sorted({key for cell in cells for key in cell.variant})
    return [key for key in every if len({cell.variant.get(key) for cell in cells}) > 1]


def cells_of(root: Path, revision: str, pinning: Path | None) -> tuple[Cell, ...]:
    """The cells of the feedstock as it was at a revision.

    Raises:
        UsageError: git knows no such revision here.
        UnsupportedPython: it is from before PEP 706, and would unpack links and paths that lead out of the folder.
    """
    from kiln import expand, load

    if not hasattr(tarfile, "data_filter"):
        raise UnsupportedPython("this Python cannot unpack a revision safely", hint="3.10.12, 3.11.4 or newer can")

    with tempfile.TemporaryDirectory(prefix="kiln-matrix-") as folder:
        archive, tree = Path(folder, "tree.tar"), Path(folder, "tree")
        commit = git(root, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").strip()
        names = [name for name in git(root, "ls-tree", "--name-only", commit).splitlines() if name in _TREE]
        if "recipe" not in names:
            raise UsageError(f"{revision} has no recipe in {root}")
        git(root, "archive", "--format=tar", "-o", str(archive), commit, *names)
        with tarfile.open(archive) as packed:
            packed.extractall(tree, filter="data")
        return expand.cells(load.find(tree), pinning)


def git(root: Path, *arguments: str) -> str:
    """What git answers in a folder.

    Raises:
        UsageError: git fails.
    """
    from kiln import command

    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    answer = command.capture(("git", *arguments), env=environment, cwd=root, timeout=60)
    if not answer.ok:
        raise UsageError(f"git {arguments[0]} fails in {root}", why=answer.tail.strip())
    return answer.stdout


def compared(before: Sequence[Cell], after: Sequence[Cell]) -> dict[str, Any]:
    """Which cells were added and removed, and which values of the others have changed."""
    old, new = ({cell.name: plain(cell)["variant"] for cell in cells} for cells in (before, after))
    changed = {
        name: {
            key: [old[name].get(key), new[name].get(key)]
            for key in sorted(old[name].keys() | new[name].keys())
            if old[name].get(key) != new[name].get(key)
        }
        for name in sorted(old.keys() & new.keys())
        if old[name] != new[name]
    }
    return {"added": sorted(new.keys() - old.keys()), "removed": sorted(old.keys() - new.keys()), "changed": changed}


def told(changes: dict[str, Any], revision: str, total: int) -> Iterator[str]:
    """The changes as a maintainer reads them."""
    for sign, names in (("+", changes["added"]), ("-", changes["removed"])):
        yield from (f"{sign} {name}" for name in names)
    for name, keys in changes["changed"].items():
        yield f"~ {name}"
        for key, (before, after) in keys.items():
            yield f"    {key}: {', '.join(before or ['(none)'])} -> {', '.join(after or ['(none)'])}"
    counts = {what: len(changes[what]) for what in ("added", "removed", "changed")}
    listed = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    yield f"{total} cells; since {revision}: {listed or 'no change'}"
