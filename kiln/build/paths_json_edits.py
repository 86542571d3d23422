"""The list of a package's files: what of it conda-build writes differently, and its older forms."""

from __future__ import annotations

import fnmatch
import hashlib
from typing import TYPE_CHECKING, Any

from kiln.errors import BuildFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PREFIX = ("file_mode", "prefix_placeholder")


def corrected_paths_json(
    paths: Mapping[str, Any], no_link: Iterable[str], prefix_files: Mapping[str, Iterable[str]]
) -> dict[str, Any]:
    """Return paths.json with the files that are never linked, and without a prefix in files where it is not replaced.

    ``no_link`` are globs; ``prefix_files`` are globs of the only files of a mode, ``text`` or ``binary``, in which the
    prefix is replaced (record_prefix_files in conda_build/build.py).

    Raises:
        BuildFailed: a glob matches no file with the prefix.
    """
    unlinked, only = tuple(no_link), {mode: tuple(globs) for mode, globs in prefix_files.items()}
    entries = [dict(entry) for entry in paths.get("paths", ())]
    for mode, globs in only.items():
        _require_files_with_prefix(entries, mode, globs)
    for entry in entries:
        if _matches_any_glob(entry["_path"], unlinked):
            entry["no_link"] = True
        listed = only.get(entry.get("file_mode", ""))
        if listed is not None and not _matches_any_glob(entry["_path"], listed):
            for key in _PREFIX:
                entry.pop(key, None)
    return {**paths, "paths": entries}


def path_entry(path: str, data: bytes) -> dict[str, Any]:
    """Return the entry of a file in paths.json."""
    digest = hashlib.sha256(data).hexdigest()
    return {"_path": path, "path_type": "hardlink", "sha256": digest, "size_in_bytes": len(data)}


def _require_files_with_prefix(entries: Iterable[Mapping[str, Any]], mode: str, globs: Iterable[str]) -> None:
    with_prefix = [entry["_path"] for entry in entries if entry.get("file_mode") == mode]
    for glob in globs:
        if not any(fnmatch.fnmatchcase(path, glob) for path in with_prefix):
            key = "has_prefix_files" if mode == "text" else "binary_has_prefix_files"
            raise BuildFailed(
                f"build/{key} names {glob}, and no such file of the package has the prefix",
                hint="correct the name, or leave the list out: files with the prefix are found without it",
            )


def legacy_file_lists(paths: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the lists of files that clients read before paths.json, by their names below ``info/``."""
    entries = sorted(paths.get("paths", ()), key=lambda entry: str(entry["_path"]))
    with_prefix = [entry for entry in entries if entry.get("prefix_placeholder")]
    lists = {
        "files": [entry["_path"] for entry in entries],
        "has_prefix": [f"{entry['prefix_placeholder']} {entry['file_mode']} {entry['_path']}" for entry in with_prefix],
        "no_link": [entry["_path"] for entry in entries if entry.get("no_link")],
    }
    return {
        name: "".join(f"{line}\n" for line in lines).encode()
        for name, lines in lists.items()
        if lines or name == "files"
    }


def _matches_any_glob(path: str, globs: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, glob) for glob in globs)
