"""The metadata of an unpacked package, read without following links."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kiln.conda_package import reader
from kiln.operating_system.file_operations import open_regular_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LARGEST_LIST = 1 << 28  # bytes of a package's list of files; 100,000 files take a tenth of that


def read_unpacked_info_json(folder: Path, name: str) -> Any:
    """Return the content of a JSON file in ``info/``."""
    return reader.parse_strict_json(_read_regular_file(folder / "info" / name).encode())


def listed_paths(folder: Path) -> list[str]:
    """Return the paths that a package lists; older packages have them in a file for each purpose."""
    if (folder / "info" / "paths.json").exists():
        listed = [str(item["_path"]) for item in read_unpacked_info_json(folder, "paths.json")["paths"]]
    else:
        listed = _read_regular_file(folder / "info" / "files").splitlines()
    if (longest := max(map(len, listed), default=0)) > reader.LONGEST_PATH:
        raise ValueError(f"it has a path of {longest:,} characters")
    return listed


def link_targets(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the text of the paths that are symbolic links."""
    return {name: str((folder / name).readlink()) for name in names if (folder / name).is_symlink()}


def _read_regular_file(file: Path) -> str:
    """Return the text of a regular file; a link or a device is not read."""
    with os.fdopen(open_regular_file(file), "rb") as opened:
        if (size := os.fstat(opened.fileno()).st_size) > LARGEST_LIST:
            raise ValueError(f"{file.name} has {size:,} bytes")
        return opened.read(LARGEST_LIST).decode()
