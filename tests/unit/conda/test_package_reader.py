"""A package's metadata is read and changed, its payload is not."""

from __future__ import annotations

import io
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BrokenPackage
from kiln.base.zstd import FAST, compressing_file
from kiln.conda.package_reader import open_package_members, read_info_json
from kiln.conda.package_writer import rewrite_info
from tests.packages import conda_package

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(
    "metadata", ["", "{}", "[]", '{"conda_pkg_format_version": 99}', '{"conda_pkg_format_version": "2"}']
)
def test_a_package_of_another_format_is_refused(tmp_path: Path, metadata: str) -> None:
    old = conda_package(tmp_path / "old.conda", {"index.json": {}})
    with zipfile.ZipFile(old) as source, zipfile.ZipFile(tmp_path / "p.conda", "w") as target:
        for name in source.namelist():
            target.writestr(name, metadata if name == "metadata.json" else source.read(name))
    with pytest.raises(BrokenPackage):
        read_info_json(tmp_path / "p.conda", "index.json")


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_a_device_or_a_pipe_in_a_package_is_refused(tmp_path: Path, kind: bytes) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        member = tarfile.TarInfo("bin/program")
        member.type = kind
        archive.addfile(member)
    packed = io.BytesIO()
    with compressing_file(packed, level=FAST) as file:
        file.write(plain.getvalue())
    old = conda_package(tmp_path / "old.conda", {"index.json": {}})
    with zipfile.ZipFile(old) as source, zipfile.ZipFile(tmp_path / "p.conda", "w") as target:
        for name in source.namelist():
            target.writestr(name, packed.getvalue() if name.startswith("pkg-") else source.read(name))
    with pytest.raises(BrokenPackage, match="device or a pipe"), open_package_members(tmp_path / "p.conda") as members:
        list(members)
