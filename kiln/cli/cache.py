"""``kiln cache``: show the compile caches, or remove them."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING

from kiln.cli import option_value_parsers

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from kiln.bazel.disk_caches import DiskCaches, DiskCacheUsage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln cache``."""
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument(
        "--to",
        metavar="SIZE",
        type=option_value_parsers.parse_size,
        help="remove the least recently used entries until the rest is smaller: 50GB",
    )
    actions.add_argument(
        "--clean",
        action="store_true",
        help="keep only the most recently used cache of each kind, and remove those of earlier compilers and images",
    )
    actions.add_argument("--all", action="store_true", help="remove all caches that are not in use by a build")
    parser.add_argument("--json", action="store_true", help="print the caches as JSON")


def run(options: argparse.Namespace, root: Path) -> int:
    """Remove the selected caches, and print the remaining ones."""
    from kiln import feedstock_folder_check
    from kiln.store.layout import ArtifactLayout

    caches = ArtifactLayout.for_feedstock(feedstock_folder_check.load(root)).compile_caches
    freed = remove_selected_caches(caches, options)
    entries = [entry for entry in caches.all_caches() if entry.size]
    if options.json:
        print(json.dumps({"caches": [dataclasses.asdict(entry) for entry in entries], "freed": freed}, indent=2))
    else:
        print(caches_as_text(entries, caches.root, freed))
    return 0


def remove_selected_caches(caches: DiskCaches, options: argparse.Namespace) -> int:
    """Remove the selected caches and return the freed bytes."""
    if options.to is not None:
        return caches.trim_to_size(options.to)
    if not (options.clean or options.all):
        return 0
    entries = caches.all_caches()
    newest = {entry.label: entry.key for entry in reversed(entries)}  # the most recently used one of each kind
    return sum(caches.remove_cache(entry) for entry in entries if options.all or newest[entry.label] != entry.key)


def caches_as_text(entries: list[DiskCacheUsage], root: Path, freed: int) -> str:
    """Return the caches as a table with their total size."""
    from kiln import files
    from kiln.cli.run_view_choice_and_printing import terminal_width
    from kiln.console.text import table

    rows = [
        (
            entry.key,
            entry.label,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)),
            files.human_readable_size(entry.size),
        )
        for entry in entries
    ]
    header, width = ("key", "for", "last used", "size"), terminal_width(sys.stdout)
    lines = [table(header, rows, right=(3,), width=width), ""] if rows else []
    total = f"{files.human_readable_size(sum(entry.size for entry in entries))} in {root}"
    return "\n".join([*lines, total, *([f"{files.human_readable_size(freed)} freed"] if freed else [])])
