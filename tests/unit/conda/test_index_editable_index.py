"""The index of a subdir as a value: packages are added, removed, withdrawn and patched."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kiln.conda.index import SubdirIndex, read_index_entry
from kiln.conda.index_files import render_index_files
from tests.packages import release_package
from tests.unit.conda.index import index, offered

if TYPE_CHECKING:
    from pathlib import Path


def test_a_later_index_keeps_a_patched_record(tmp_path: Path) -> None:
    subdir = index(tmp_path, "small-1").with_patched_record("small-1-0.conda", {"depends": ["python <3.13"]})
    assert offered(subdir)["small-1-0.conda"]["depends"] == ["python <3.13"]
    assert subdir.records["small-1-0.conda"]["depends"] == []
    assert offered(subdir.with_packages([]))["small-1-0.conda"]["depends"] == ["python <3.13"]


def test_packages_of_another_subdir_are_not_added(tmp_path: Path) -> None:
    entry = read_index_entry(release_package(tmp_path, "small", subdir="noarch", noarch="generic"))
    assert SubdirIndex.empty("linux-64").with_packages([entry]).records == {}
    assert set(SubdirIndex.empty("noarch").with_packages([entry]).records) == {"small-1-0.conda"}


def test_a_withdrawn_package_stays_withdrawn_when_it_is_added_again(tmp_path: Path) -> None:
    subdir = index(tmp_path, "small-1", "large-1").with_packages_withdrawn(["small-1-0.conda"])
    again = subdir.with_packages([read_index_entry(tmp_path / "small-1-0.conda")])
    assert set(again.visible_records) == {"large-1-0.conda"}
    assert set(again.records) == {"large-1-0.conda", "small-1-0.conda"}
    assert again.removed_files == {"small-1-0.conda"}


def test_a_removed_package_leaves_no_trace(tmp_path: Path) -> None:
    subdir = index(tmp_path, "small-1", "large-1").with_patched_record("small-1-0.conda", {"license": "MIT"})
    without = subdir.with_packages_withdrawn(["small-1-0.conda"]).without_packages(["small-1-0.conda"])
    expected = render_index_files(index(tmp_path, "large-1"))
    assert render_index_files(without) == expected
    assert without.changed == {"small", "large"}


def test_only_the_names_of_removed_packages_count_as_changed(tmp_path: Path) -> None:
    """current_repodata.json is made again for names that changed, and keeps the others."""
    subdir = dataclasses.replace(index(tmp_path, "small-1", "large-1"), changed=frozenset())
    assert subdir.without_packages(["small-1-0.conda"]).changed == {"small"}
    assert subdir.with_packages_withdrawn(["small-1-0.conda"]).changed == {"small"}
    assert render_index_files(subdir.without_packages(["missing-1-0.conda"])) == render_index_files(subdir)


def test_the_patches_of_a_record_add_up(tmp_path: Path) -> None:
    subdir = (
        index(tmp_path, "small-1")
        .with_patched_record("small-1-0.conda", {"a": 1, "b": 1})
        .with_patched_record("small-1-0.conda", {"b": 2})
    )
    record = offered(subdir)["small-1-0.conda"]
    assert (record["a"], record["b"]) == (1, 2)
    assert subdir.instructions.records() == {"small-1-0.conda": {"a": 1, "b": 2}}


def test_package_files_are_next_to_the_index_unless_it_has_another_url(tmp_path: Path) -> None:
    subdir = index(tmp_path, "small-1")
    records = {"app-1.whl": {"name": "app", "version": "1"}}
    mixed = dataclasses.replace(subdir, base=subdir.base.with_records(records))
    assert mixed.base_url == ""
    assert mixed.files_next_to_index == {"small-1-0.conda"}
    info = {**subdir.repodata.value, "info": {"base_url": "https://files.example/"}}
    elsewhere = dataclasses.replace(mixed, repodata=dataclasses.replace(subdir.repodata, value=info))
    assert (elsewhere.base_url, elsewhere.files_next_to_index) == ("https://files.example/", frozenset())


def test_withdrawing_twice_changes_nothing(tmp_path: Path) -> None:
    once = index(tmp_path, "small-1").with_packages_withdrawn(["small-1-0.conda"])
    assert render_index_files(once.with_packages_withdrawn(["small-1-0.conda"])) == render_index_files(once)


def test_records_are_read_once_however_many_packages_ask(tmp_path: Path) -> None:
    subdir = index(tmp_path, "small-1", "large-1").with_packages_withdrawn(["small-1-0.conda"])
    assert subdir.records is subdir.records
    assert subdir.removed_files is subdir.removed_files
