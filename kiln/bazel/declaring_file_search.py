"""The files of a source that can declare external repositories for Bazel: found, and read within limits.

They are MODULE.bazel, its lock file, and workspace files.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import TYPE_CHECKING

from kiln.operating_system import file_operations

if TYPE_CHECKING:
    from pathlib import Path

LARGEST_FILE = 1 << 18  # bytes; the largest of TensorFlow has 49 KB
LARGEST_LOCK = 1 << 24
LARGEST_ALL = 1 << 20  # bytes of all files other than lock files
MOST_FILES = 500
LONGEST_TEXT = 1000  # characters of a name, a version or an address
LOCK = "MODULE.bazel.lock"
_FILES = re.compile(r"(?:.*/)?(?:MODULE\.bazel(?:\.lock)?|WORKSPACE(?:\.bazel|\.bzlmod)?|workspace\d?\.bzl)")
MOST_ENTRIES = 500_000  # of all folders; TensorFlow's sources have 40,000
DEEPEST = 10  # TensorFlow's deepest file is in third_party/xla/third_party/tsl/third_party/py/ml_dtypes
LARGEST_LOCKS = 2 * LARGEST_LOCK  # bytes of all lock files
_OUTPUT_BASE = "execroot"  # a folder in Bazel's output base, which has the sources of other projects
_LEFT_OUT = frozenset({".git", ".hg", ".svn", "node_modules"})


def is_declaration_file_path(path: str) -> bool:
    """Return whether a path of a source is that of a file that can declare external repositories."""
    return len(path) <= LONGEST_TEXT and _FILES.fullmatch(path) is not None


def read_declaring_files(folder: Path) -> dict[str, bytes]:
    """Return the files that can declare external repositories, by their paths below a folder, the nearest first."""
    files: dict[str, bytes] = {}
    left = {True: LARGEST_LOCKS, False: LARGEST_ALL}
    for path in _declaring_paths(folder):
        is_lock = posixpath.basename(path) == LOCK
        largest = LARGEST_LOCK if is_lock else LARGEST_FILE
        data = _bounded_content(folder, path, min(largest, left[is_lock]))
        if data is not None:
            left[is_lock] -= len(data)
            files[path] = data
    return files


def _declaring_paths(folder: Path) -> list[str]:
    """Return the paths of files that can declare repositories, the nearest folders first, then by name."""
    paths: list[str] = []
    level, entries_left = [""], MOST_ENTRIES
    for _ in range(DEEPEST):
        below = []
        for place in level:
            entries, entries_left = _bounded_folder_entries(folder / place, entries_left)
            names = {entry.name for entry in entries}
            if _OUTPUT_BASE in names:
                continue
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = posixpath.join(place, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    below += [path] if entry.name not in _LEFT_OUT else []
                elif entry.is_file(follow_symlinks=False) and is_declaration_file_path(path):
                    paths.append(path)
            if len(paths) > MOST_FILES or entries_left <= 0:
                return paths[:MOST_FILES]
        level = below
    return paths


def _bounded_folder_entries(folder: Path, most: int) -> tuple[list[os.DirEntry[str]], int]:
    """Return the entries of a folder, at most as many as are left, and how many are left then."""
    entries: list[os.DirEntry[str]] = []
    try:
        with os.scandir(folder) as scan:
            for entry in scan:
                if len(entries) >= most:
                    break
                entries.append(entry)
    except OSError:  # not readable, or removed meanwhile
        pass
    return entries, most - len(entries)


def _bounded_content(folder: Path, path: str, largest: int) -> bytes | None:
    """Return the content of a regular file, None for one that is larger or cannot be read."""
    try:
        with os.fdopen(file_operations.open_regular_file(folder / path), "rb") as file:
            data = file.read(largest + 1)
    except (OSError, ValueError):
        return None
    return data if len(data) <= largest else None
