"""``kiln cache``: what compiles have left in their caches, and the removal of what is no longer wanted."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from kiln.bazel.cache import Caches, Entry


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln cache``."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--to", metavar="SIZE", help="remove what was used longest ago until the rest takes less: 50GB")
    what.add_argument(
        "--clean",
        action="store_true",
        help="keep of each kind the one used last: new compilers or images leave old ones behind",
    )
    what.add_argument("--all", action="store_true", help="remove all caches that no build uses at this moment")
    parser.add_argument("--json", action="store_true", help="the caches as JSON on standard output")


def run(options: argparse.Namespace, root: Path) -> int:
    """Remove what was asked for, and print what is left."""
    from kiln import load
    from kiln.pipeline.layout import Layout

    caches = Layout.of(load.find(root)).compile_caches
    freed = remove(caches, options)
    entries = [entry for entry in caches.entries() if entry.size]
    if options.json:
        print(json.dumps({"caches": [dataclasses.asdict(entry) for entry in entries], "freed": freed}, indent=2))
    else:
        print(as_text(entries, caches.root, freed))
    return 0


def remove(caches: Caches, options: argparse.Namespace) -> int:
    """Remove what was asked for and return the bytes that this freed."""
    from kiln.cli.wishes import size

    if options.to:
        return caches.trim(size(options.to))
    if not (options.clean or options.all):
        return 0
    entries = caches.entries()
    newest = {entry.label: entry.key for entry in reversed(entries)}  # of each kind, the one used last
    return sum(caches.remove(entry) for entry in entries if options.all or newest[entry.label] != entry.key)


def as_text(entries: list[Entry], root: Path, freed: int) -> str:
    """Return the caches as a table, and what they take together."""
    from kiln import files
    from kiln.console import table

    rows = [
        (entry.key, entry.label, time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)), _size(entry.size))
        for entry in entries
    ]
    told = [table(("key", "for", "last used", "size"), rows, right=(3,)), ""] if rows else []
    total = f"{files.size_text(sum(entry.size for entry in entries))} in {root}"
    return "\n".join([*told, total, *([f"{files.size_text(freed)} freed"] if freed else [])])


def _size(size: int) -> str:
    from kiln import files

    return files.size_text(size)
