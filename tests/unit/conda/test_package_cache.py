"""Packages of the cache that a script has changed through a hard link in its prefix are removed from it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from kiln.conda.package_cache import discard_damaged_entries

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OLD = 1_000_000_000  # seconds: the time of a file in its package


def unpacked(cache: Path, name: str = "a-1-0") -> Path:
    """Write the folder of a package in a cache as it is unpacked: the times are those in the package."""
    entry = cache / name
    (entry / "info").mkdir(parents=True)
    listed = []
    for file, data in (("one", b"1"), ("two", b"2")):
        (entry / file).write_bytes(data)
        os.utime(entry / file, (OLD, OLD))
        listed.append({"_path": file, "size_in_bytes": 1, "sha256": hashlib.sha256(data).hexdigest()})
    (entry / "link").symlink_to("missing")
    listed.append({"_path": "link"})
    (entry / "info" / "paths.json").write_text(json.dumps({"paths": listed}))
    (entry / "info" / "index.json").write_text("{}")
    return entry


def prefix_with(folder: Path, entry: Path, record: str = "a-1-0") -> Path:
    prefix = folder / "prefix"
    (prefix / "conda-meta").mkdir(parents=True, exist_ok=True)
    (prefix / "conda-meta" / f"{record}.json").write_text("changed by the script, too")
    for name in ("one", "two"):
        os.link(entry / name, prefix / name)
    return prefix


def _append(file: Path) -> None:
    with file.open("ab") as stream:
        stream.write(b"9")


def _replace(file: Path) -> None:
    file.unlink()
    file.write_bytes(b"9")


def _rewrite_with_its_time(file: Path) -> None:
    file.write_bytes(b"longer")
    os.utime(file, (OLD, OLD))


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "overwritten": (lambda file: file.write_bytes(b"9"), True),
    "appended to": (_append, True),
    "emptied": (lambda file: os.truncate(file, 0), True),
    "with its time": (_rewrite_with_its_time, True),
    "replaced": (_replace, False),
    "removed": (os.unlink, False),
    "touched": (lambda file: file.touch(), False),
    "nothing": (lambda _: None, False),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_was_changed_through_a_link_is_removed_and_nothing_else(kind: str, tmp_path: Path) -> None:
    change, damaged = CHANGES[kind]
    cache = tmp_path / "pkgs"
    entry, other = unpacked(cache), unpacked(cache, "b-1-0")
    prefix = prefix_with(tmp_path, entry)
    change(prefix / "one")
    assert discard_damaged_entries(cache, [prefix]) == (("one of a-1-0",) if damaged else ())
    assert entry.exists() is not damaged
    assert other.is_dir()


def test_a_package_of_another_origin_has_a_hash_at_the_end_of_its_name(tmp_path: Path) -> None:
    entry = unpacked(tmp_path / "pkgs", "a-1-0-5f3c")
    (prefix_with(tmp_path, entry) / "two").write_text("9")
    assert discard_damaged_entries(tmp_path / "pkgs", [tmp_path / "prefix"]) == ("two of a-1-0-5f3c",)


def test_a_prefix_that_names_others_removes_nothing_outside(tmp_path: Path) -> None:
    outside = unpacked(tmp_path, "outside")
    prefix = prefix_with(tmp_path, outside, "..")
    (outside / "one").write_text("9")
    assert discard_damaged_entries(tmp_path / "pkgs", [prefix]) == ()
    unpacked(tmp_path / "pkgs", "c-1-0")
    (tmp_path / "pkgs" / "a-1-0").symlink_to(outside)
    assert discard_damaged_entries(tmp_path / "pkgs", [prefix_with(tmp_path / "2", outside)]) == ()
    assert outside.is_dir()


def test_a_cache_that_is_not_there_or_has_old_packages_is_left_alone(tmp_path: Path) -> None:
    entry = unpacked(tmp_path / "pkgs")
    prefix = prefix_with(tmp_path, entry)
    (entry / "info" / "paths.json").unlink()
    (prefix / "one").write_text("9")
    assert discard_damaged_entries(tmp_path / "pkgs", [prefix]) == ()
    shutil.rmtree(tmp_path / "pkgs")
    assert discard_damaged_entries(tmp_path / "pkgs", [prefix]) == ()
