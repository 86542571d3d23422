"""Packages are withdrawn, patched and indexed in a channel that no publication is changing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BrokenPackage, HashMismatch, PublicationPending, UsageError
from kiln.publish.stores import target as stores_target
from tests.unit.publish.test_transaction import package, publish, target

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.conda.index import IndexEntry
    from kiln.publish.stores.target import StoreTarget

__all__ = ["target"]  # the fixture


def test_a_withdrawn_package_is_not_offered_and_its_file_stays_unless_deleted(
    target: StoreTarget, tmp_path: Path
) -> None:
    publish(target, package(tmp_path, "old"), package(tmp_path, "bad"))
    assert stores_target.yank_packages(target, ["old-1-0.conda"]) == ("noarch/old-1-0.conda",)
    stores_target.yank_packages(target, ["bad-1-0.conda"], delete=True)
    assert target.channel_index.subdir_packages("noarch").visible_records == {}
    assert target.store.package_sizes("noarch").keys() == {"old-1-0.conda"}
    assert target.package_hashes().keys() == {"noarch/old-1-0.conda", "noarch/bad-1-0.conda"}, "no name is used twice"


def test_a_patch_replaces_fields_of_the_record_alone(target: StoreTarget, tmp_path: Path) -> None:
    publish(target, package(tmp_path, "app", "lib"))
    assert stores_target.patch_record(target, "app-1-0.conda", {"depends": ["lib <2"]}) == "noarch/app-1-0.conda"
    subdir = target.channel_index.subdir_indexes()["noarch"]
    assert subdir.visible_records["app-1-0.conda"]["depends"] == ["lib <2"]
    assert subdir.records["app-1-0.conda"]["depends"] == ["lib"]


def test_an_unknown_package_is_answered_with_the_nearest_name(target: StoreTarget, tmp_path: Path) -> None:
    publish(target, package(tmp_path, "app"))
    with pytest.raises(UsageError, match=r"no package 'ap-1-0\.conda'") as error:
        stores_target.yank_packages(target, ["ap-1-0.conda"])
    assert "app-1-0.conda" in error.value.hint


def test_a_pending_publication_is_not_disturbed(target: StoreTarget, tmp_path: Path) -> None:
    publish(target, package(tmp_path, "old"))
    with pytest.raises(HashMismatch):
        publish(target, package(tmp_path, "new"), fails=True)
    with pytest.raises(PublicationPending, match="new-1-0"):
        stores_target.yank_packages(target, ["old-1-0.conda"])
    assert target.channel_index.subdir_packages("noarch").visible_records.keys() == {"old-1-0.conda"}


def test_reindexing_leaves_out_unreadable_files_and_returns_their_errors(target: StoreTarget, tmp_path: Path) -> None:
    entries: dict[str, IndexEntry] = {}
    for name in ("app", "broken"):
        file, entry = package(tmp_path, name)
        target.store.store_package(file, entry.path, entry.sha256)
        entries[entry.path] = entry
    del entries["noarch/broken-1-0.conda"]

    def read(path: str) -> IndexEntry:
        if path not in entries:
            raise BrokenPackage(f"{path} cannot be read")
        return entries[path]

    count, errors = stores_target.reindex_channel(target, read)
    assert (count, [error.what for error in errors]) == (1, ["noarch/broken-1-0.conda cannot be read"])
    assert target.channel_index.subdir_packages("noarch").visible_records.keys() == {"app-1-0.conda"}


def test_a_package_that_several_platforms_have_is_named_by_its_path(target: StoreTarget, tmp_path: Path) -> None:
    for subdir in ("linux-64", "linux-aarch64"):
        publish(target, package(tmp_path, "lib", subdir=subdir))
    with pytest.raises(UsageError, match="2 subdirs") as error:
        stores_target.yank_packages(target, ["lib-1-0.conda"])
    assert "linux-aarch64/lib-1-0.conda" in error.value.hint
    stores_target.patch_record(target, "linux-aarch64/lib-1-0.conda", {"depends": ["zlib"]})
    subdirs = target.channel_index.subdir_indexes()
    assert [subdirs[name].visible_records["lib-1-0.conda"]["depends"] for name in ("linux-64", "linux-aarch64")] == [
        [],
        ["zlib"],
    ]
    assert stores_target.yank_packages(target, ["linux-64/lib-1-0.conda"], delete=True) == ("linux-64/lib-1-0.conda",)
    assert list(target.channel_index.subdir_packages("linux-aarch64").visible_records) == ["lib-1-0.conda"]
    assert target.channel_index.subdir_packages("linux-64").visible_records == {}


def test_reindexing_finds_packages_of_every_platform(target: StoreTarget, tmp_path: Path) -> None:
    publish(target, package(tmp_path, "lib", subdir="linux-64"))
    file, entry = package(tmp_path, "lib", subdir="linux-aarch64")
    target.store.store_package(file, entry.path, entry.sha256)
    target.store.remove("linux-64/lib-1-0.conda")
    assert stores_target.reindex_channel(target, lambda _: entry) == (1, ())
    assert target.package_hashes().keys() == {"linux-aarch64/lib-1-0.conda"}
