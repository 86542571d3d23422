"""A package that kiln writes has the metadata that every client of conda reads."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
import rattler

from kiln.conda.package_reader import read_info_json
from kiln.conda.package_writer import PackageMetadata, write_package

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = hashlib.sha256().hexdigest()
LIBRARY = hashlib.sha256(b"library").hexdigest()


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """Return a package with links: to a file, to a link, to a folder, and out of the package."""
    facts = PackageMetadata(name="lib", version="1", build="0")
    with write_package(tmp_path, facts) as archive:
        archive.add_link("lib/liba.so", "liba.so.1")
        archive.add_link("lib/liba.so.1", "./sub/liba.so.1.2")
        archive.add_bytes("lib/sub/liba.so.1.2", b"library")
        archive.add_link("lib/folder", "sub")
        archive.add_link("lib/out", "../share/elsewhere")
        archive.add_link("lib/loop", "loop")
    return tmp_path / "lib-1-0.conda"


def test_the_row_of_a_link_has_size_and_hash_as_every_row(linked: Path) -> None:
    rows = {
        row["_path"]: (row["size_in_bytes"], row["sha256"]) for row in read_info_json(linked, "paths.json")["paths"]
    }
    assert rows == {
        "lib/liba.so": (9, LIBRARY),
        "lib/liba.so.1": (17, LIBRARY),
        "lib/sub/liba.so.1.2": (7, LIBRARY),
        "lib/folder": (3, NOTHING),
        "lib/out": (18, NOTHING),
        "lib/loop": (4, NOTHING),
    }


def test_rattler_reads_the_same(linked: Path) -> None:
    rows = {str(entry.relative_path): entry for entry in rattler.PathsJson.from_package_archive(linked).paths}
    assert rows["lib/liba.so"].size_in_bytes == 9
    assert rows["lib/liba.so"].sha256 == bytes.fromhex(LIBRARY)
