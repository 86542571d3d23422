"""The index entry of a package: its metadata, its hashes, its run exports."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BrokenPackage
from kiln.conda.index import read_index_entry
from tests.packages import conda_package, release_package

if TYPE_CHECKING:
    from pathlib import Path


def test_a_record_has_the_metadata_and_the_hashes_of_the_file(tmp_path: Path) -> None:
    package = release_package(tmp_path, "small", depends=["python >=3.11"])
    entry = read_index_entry(package)
    assert entry.path == "linux-64/small-1-0.conda"
    assert entry.record["depends"] == ["python >=3.11"]
    assert entry.record["sha256"] == hashlib.sha256(package.read_bytes()).hexdigest()
    assert entry.record["md5"] == hashlib.md5(package.read_bytes()).hexdigest()
    assert entry.record["size"] == package.stat().st_size
    assert entry.run_exports == {"weak": ["small >=1"]}


def test_a_renamed_package_is_refused(tmp_path: Path) -> None:
    package = release_package(tmp_path, "small")
    with pytest.raises(BrokenPackage, match=r"small-1-0\.conda"):
        read_index_entry(package.rename(tmp_path / "small-2-0.conda"))


def test_metadata_that_no_client_could_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenPackage, match="no client can read"):
        read_index_entry(release_package(tmp_path, "small", depends="python"))


@pytest.mark.parametrize("exports", [[], {"weak": "a >=1"}, {"weak": [1]}, None])
def test_run_exports_of_another_form_are_refused(tmp_path: Path, exports: object) -> None:
    index = {"name": "small", "version": "1", "build": "0", "build_number": 0, "subdir": "linux-64", "depends": []}
    package = conda_package(tmp_path / "small-1-0.conda", {"index.json": index, "run_exports.json": exports})
    with pytest.raises(BrokenPackage, match="not an object of lists of specs"):
        read_index_entry(package)


def test_a_subdir_that_conda_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenPackage, match="no client can read"):
        read_index_entry(release_package(tmp_path, "small", subdir="../linux-64"))


def test_a_missing_file_or_a_folder_is_refused_and_a_link_is_read(tmp_path: Path) -> None:
    (tmp_path / "folder-1-0.conda").mkdir()
    (tmp_path / "loop-1-0.conda").symlink_to("loop-1-0.conda")
    for name in ("folder", "missing", "loop"):
        with pytest.raises(BrokenPackage, match=f"{name}-1-0"):
            read_index_entry(tmp_path / f"{name}-1-0.conda")
    package = release_package(tmp_path / "store", "small")
    link = tmp_path / package.name
    link.symlink_to(package)
    assert read_index_entry(link) == read_index_entry(package)
