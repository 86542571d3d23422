"""A package's metadata is read and changed, its payload is not."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

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
