"""A package that kiln writes has the metadata that every client of conda reads."""

from __future__ import annotations

import hashlib
import random
import zipfile
from typing import TYPE_CHECKING

import pytest
import rattler

from kiln.base.system.machine import MachineResources
from kiln.conda.package_reader import open_package_members, read_info_json
from kiln.conda.package_writer import PackageMetadata, rewrite_info, write_package
from tests.packages import conda_package

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


def test_the_number_of_cores_makes_no_difference_to_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = {"share/random": random.Random(1).randbytes(9_000_000)}
    old = conda_package(tmp_path / "old.conda", {"index.json": {}}, payload=payload)
    packages = []
    for cores, memory in ((1, 1 << 40), (3, 1 << 40), (64, 1)):
        here = MachineResources(cores=cores, memory=memory)
        monkeypatch.setattr(MachineResources, "of_this_machine", lambda here=here: here)
        rewrite_info(old, tmp_path / "new.conda", lambda _, data: data, mtime=1, level=3)
        packages.append((tmp_path / "new.conda").read_bytes())
    assert packages[0] == packages[1] == packages[2]


def test_one_file_is_edited_and_the_rest_stays(tmp_path: Path) -> None:
    old = conda_package(tmp_path / "old.conda", {"index.json": {"a": 1}, "about.json": {"b": 2}})
    rewrite_info(old, tmp_path / "new.conda", lambda name, data: b'{"a": 3}' if name == "index.json" else data)
    assert read_info_json(tmp_path / "new.conda", "index.json") == {"a": 3}
    assert read_info_json(tmp_path / "new.conda", "about.json") == {"b": 2}
    with zipfile.ZipFile(tmp_path / "new.conda") as file:
        assert file.read("pkg-old.tar.zst") == b"payload"


def test_a_file_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read_info_json(conda_package(tmp_path / "p.conda", {}), "about.json") == {}


def test_a_higher_level_makes_a_smaller_package_of_the_same_content(tmp_path: Path) -> None:
    words = b" ".join(str(number * number).encode() for number in range(20_000))
    old = conda_package(tmp_path / "old.conda", {"index.json": {"a": 1}}, payload={"share/words": words})
    sizes = {}
    for level in (1, 16):
        new = tmp_path / f"{level}.conda"
        rewrite_info(old, new, lambda _, data: data, mtime=1, level=level)
        sizes[level] = new.stat().st_size
        with open_package_members(new) as members:
            assert {member.name: content.read() for member, content in members if content}["share/words"] == words
    assert sizes[16] < 0.9 * sizes[1]
