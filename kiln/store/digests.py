"""Hashes of JSON values, files and folders, which decide whether a result can be reused."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from kiln import files

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def json_digest(value: object) -> str:
    """Return the SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def folder_digest(folder: Path, *, without: Iterable[str] = ()) -> str:
    """Return a hash over the names and contents of all files below a folder, without some names at its top level."""
    left_out = {folder / name for name in without}
    paths = [file for file in files.files_below(folder) if file not in left_out]
    return json_digest([(str(file.relative_to(folder)), files.sha256(file)) for file in paths])


def file_or_folder_digest(path: Path) -> str:
    """Return a hash over the content of a file, or of all files below a folder, if any."""
    return files.sha256(path) if path.is_file() else folder_digest(path)
