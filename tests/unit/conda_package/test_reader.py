"""A package's metadata is read and changed, its payload is not."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest

from kiln.conda_package.reader import read_info, rewrite_info
from kiln.errors import BrokenPackage
from tests.packages import conda_package

if TYPE_CHECKING:
    from pathlib import Path


def test_one_file_is_edited_and_the_rest_stays(tmp_path: Path) -> None:
    old = conda_package(tmp_path / "old.conda", {"index.json": {"a": 1}, "about.json": {"b": 2}})
    rewrite_info(old, tmp_path / "new.conda", lambda name, data: b'{"a": 3}' if name == "index.json" else data)
    assert read_info(tmp_path / "new.conda", "index.json") == {"a": 3}
    assert read_info(tmp_path / "new.conda", "about.json") == {"b": 2}
    with zipfile.ZipFile(tmp_path / "new.conda") as file:
        assert file.read("pkg-old.tar.zst") == b"payload"


def test_the_same_edit_gives_the_same_bytes(tmp_path: Path) -> None:
    old = conda_package(tmp_path / "old.conda", {"index.json": {}})
    for name in ("a.conda", "b.conda"):
        rewrite_info(old, tmp_path / name, lambda _, data: data)
    assert (tmp_path / "a.conda").read_bytes() == (tmp_path / "b.conda").read_bytes()


def test_a_file_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read_info(conda_package(tmp_path / "p.conda", {}), "about.json") == {}


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x05\x06" + 18 * b"\0"])
def test_an_invalid_package_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.conda").write_bytes(content)
    with pytest.raises(BrokenPackage, match=r"p\.conda is not a \.conda package"):
        read_info(tmp_path / "p.conda", "about.json")
