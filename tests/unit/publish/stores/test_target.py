"""Packages are withdrawn, patched and indexed in a channel that no publication is changing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BrokenIndex, BrokenPackage, HashMismatch, PublicationPending, UsageError
from kiln.publish.stores import target as stores_target
from tests.unit.publish.test_transaction import package, publish, target

if TYPE_CHECKING:
    from collections.abc import Mapping
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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depends": "lib"}, "expected a sequence"),
        ({"depends": ["lib >>1"]}, "'lib >>1'"),
        ({"timestamp": "now"}, "expected i64"),
        ({"sha256": "00"}, "'sha256' is not patched"),
        ({"name": None}, "'name' is not patched"),
        ({"depend": ["lib"]}, "did you mean 'depends'"),
    ],
)
def test_a_patch_that_clients_could_not_read_or_of_another_field_is_refused(
    target: StoreTarget, tmp_path: Path, fields: Mapping[str, object], message: str
) -> None:
    publish(target, package(tmp_path, "app", "lib"))
    stores_target.yank_packages(target, ["app-1-0.conda"])
    before = target.store.read("noarch/patch_instructions.json")
    with pytest.raises(UsageError) as error:
        stores_target.patch_record(target, "app-1-0.conda", fields)
    assert message in str(error.value)
    assert target.store.read("noarch/patch_instructions.json") == before


def test_a_deleted_package_is_not_patched(target: StoreTarget, tmp_path: Path) -> None:
    publish(target, package(tmp_path, "app"))
    stores_target.yank_packages(target, ["app-1-0.conda"], delete=True)
    with pytest.raises(UsageError, match="was deleted"):
        stores_target.patch_record(target, "app-1-0.conda", {"depends": []})


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


def test_reindexing_reads_files_whose_hash_the_index_does_not_have(target: StoreTarget, tmp_path: Path) -> None:
    packages = [package(tmp_path, name) for name in ("app", "lib")]
    publish(target, *packages)
    target.store.write("noarch/app-1-0.conda", b"App noarch")  # of the same size
    entries = {entry.path: entry for _, entry in packages}
    wrong = target.store.read("noarch/repodata.json") or b""
    lib = entries["noarch/lib-1-0.conda"].sha256
    target.store.write("noarch/repodata.json", wrong.replace(lib.encode(), lib[::-1].encode()))

    def read(path: str) -> IndexEntry:
        if path == "noarch/app-1-0.conda":
            raise BrokenPackage(f"{path} is damaged")
        return entries[path]

    count, errors = stores_target.reindex_channel(target, read)
    assert (count, [error.what for error in errors]) == (1, ["noarch/app-1-0.conda is damaged"])
    assert target.package_hashes() == {"noarch/lib-1-0.conda": lib}
    assert publish(target, *packages) == ("noarch/app-1-0.conda",), "it is published anew"
    assert target.store.has_file_with_hash("noarch/app-1-0.conda", entries["noarch/app-1-0.conda"].sha256)
    assert stores_target.reindex_channel(target, read) == (0, ())


@pytest.mark.parametrize("content", [None, b"cut"])
def test_a_package_that_the_channel_offers_without_its_file_is_published_anew(
    target: StoreTarget, tmp_path: Path, content: bytes | None
) -> None:
    packages = [package(tmp_path, name) for name in ("app", "lib", "gone")]
    publish(target, *packages)
    stores_target.yank_packages(target, ["gone-1-0.conda"], delete=True)
    assert target.damaged_paths() == frozenset()
    target.store.remove("noarch/app-1-0.conda")
    if content is not None:
        target.store.write("noarch/app-1-0.conda", content)
    assert target.damaged_paths() == {"noarch/app-1-0.conda"}
    assert publish(target, *packages[:2]) == ("noarch/app-1-0.conda",)
    assert target.damaged_paths() == frozenset()
    assert target.store.read("noarch/app-1-0.conda") == packages[0][0].read_bytes()


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


@pytest.mark.parametrize("broken", [("repodata.json",), ("repodata.json", "repodata.json.zst"), ("run_exports.json",)])
@pytest.mark.parametrize("content", [b"{", b""])
def test_reindexing_replaces_unreadable_files_of_the_index_and_keeps_what_was_withdrawn_or_patched(
    target: StoreTarget, tmp_path: Path, broken: tuple[str, ...], content: bytes
) -> None:
    packages = [package(tmp_path, name) for name in ("app", "bad", "lib")]
    entries = {entry.path: entry for _, entry in packages}
    publish(target, *packages)
    stores_target.yank_packages(target, ["bad-1-0.conda"])
    stores_target.patch_record(target, "app-1-0.conda", {"depends": ["lib"]})
    for name in broken:
        target.store.write(f"noarch/{name}", content)
    notes: list[str] = []
    stores_target.reindex_channel(target, entries.__getitem__, notes.append)
    assert [note.partition(" ")[0] for note in notes] == [f"noarch/{name}" for name in broken]
    subdir = target.channel_index.subdir_indexes()["noarch"]
    assert {file: record["depends"] for file, record in subdir.visible_records.items()} == {
        "app-1-0.conda": ["lib"],
        "lib-1-0.conda": [],
    }
    assert "noarch/bad-1-0.conda" in target.package_hashes()


def test_reindexing_replaces_a_record_that_no_client_can_read(target: StoreTarget, tmp_path: Path) -> None:
    packages = [package(tmp_path, name, "lib") for name in ("app", "other")]
    publish(target, *packages)
    stores_target.patch_record(target, "app-1-0.conda", {"license": "MIT"})
    stores_target.patch_record(target, "other-1-0.conda", {"license": "MIT"})
    for name in ("repodata.json", "repodata_from_packages.json", "patch_instructions.json"):
        index = json.loads(target.store.read(f"noarch/{name}") or b"")
        index["packages.conda"]["app-1-0.conda"]["depends"] = "lib"
        target.store.write(f"noarch/{name}", json.dumps(index).encode())
    notes: list[str] = []
    entries = {entry.path: entry for _, entry in packages}
    assert stores_target.reindex_channel(target, entries.__getitem__, notes.append) == (1, ())
    assert [note.partition(" ")[0] for note in notes] == ["noarch/app-1-0.conda"]
    records = target.channel_index.subdir_packages("noarch").visible_records
    assert [(record["depends"], record.get("license")) for record in records.values()] == [
        (["lib"], None),
        (["lib"], "MIT"),
    ]


def test_reindexing_refuses_an_index_that_it_could_not_keep(target: StoreTarget, tmp_path: Path) -> None:
    publish(target, package(tmp_path, "app"))
    for file in ("repodata.json", "repodata.json.zst"):
        target.store.remove(f"noarch/{file}")
    with pytest.raises(BrokenIndex, match="has shards"):
        stores_target.reindex_channel(target, lambda _: package(tmp_path, "app")[1])
