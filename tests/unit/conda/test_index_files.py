"""An index is read whichever tool wrote it, and refused where kiln would lose a part of it."""

from __future__ import annotations

import bz2
import dataclasses
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from kiln.base.errors import BrokenIndex
from kiln.base.zstd import zstd
from kiln.conda.index import BASE, IndexEntry, SubdirIndex
from kiln.conda.index_files import (
    channeldata_with_entries,
    newest_records_and_dependencies,
    read_packages_only,
    read_whole_index,
    render_index_files,
)
from tests.unit.conda.index import index, offered

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LISTING = "repodata_shards.msgpack.zst"


def packed(value: object) -> bytes:
    return zstd.compress(msgpack.packb(value))


def test_the_index_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    subdir = (
        index(tmp_path, "small-1", "large-1")
        .with_packages_withdrawn(["small-1-0.conda"])
        .with_patched_record("large-1-0.conda", {"a": 1})
    )
    forms = render_index_files(subdir)
    again = read_whole_index("linux-64", forms.get)
    assert render_index_files(again) == forms
    assert again.records == subdir.records
    assert again.visible_records == subdir.visible_records


def test_a_channel_with_a_compressed_index_alone_is_read(tmp_path: Path) -> None:
    forms = render_index_files(index(tmp_path, "small-1"))
    assert set(read_whole_index("linux-64", {"repodata.json.zst": forms["repodata.json.zst"]}.get).records) == {
        "small-1-0.conda"
    }


def test_a_channel_without_an_index_is_empty() -> None:
    assert read_whole_index("linux-64", lambda _: None) == SubdirIndex.empty("linux-64")


def test_a_channel_of_shards_alone_is_refused() -> None:
    with pytest.raises(BrokenIndex, match=r"has shards, but no repodata\.json"):
        read_whole_index("linux-64", {LISTING: packed({"info": {}, "shards": {}})}.get)


@pytest.mark.parametrize(
    ("file", "data", "reason"),
    [
        ("repodata.json.zst", b"no frame", "cannot be read"),
        ("patch_instructions.json", b'{"patch_instructions_version": 2}', "has the version 2"),
        ("run_exports.json", b"[]", r"run_exports\.json: "),
        ("current_repodata.json", b"{", r"current_repodata\.json: "),
        (LISTING, b"no frame", "cannot be read"),
        (LISTING, zstd.compress(b"\xc1"), "cannot be read"),
        (LISTING, packed([]), "it is not an object"),
        (LISTING, packed({"shards": []}), "it is not a list of shards"),
        (LISTING, packed({"version": 2}), "has the version 2"),
    ],
)
def test_each_invalid_file_is_named(tmp_path: Path, file: str, data: bytes, reason: str) -> None:
    forms = render_index_files(index(tmp_path, "small-1"))
    if file.startswith("repodata.json"):
        forms.pop("repodata.json")
    with pytest.raises(BrokenIndex) as caught:
        read_whole_index("linux-64", {**forms, file: data}.get)
    assert re.search(reason, f"{caught.value.what} {caught.value.why}")


def test_run_exports_come_from_records_else_from_shards(tmp_path: Path) -> None:
    """Other tools write no run_exports.json; builders would not find the run exports that only shards have."""
    forms = render_index_files(index(tmp_path, "small-1", "large-1"))
    forms.pop("run_exports.json")
    subdir = read_whole_index("linux-64", forms.get)
    assert subdir.exports.records()["small-1-0.conda"] == {"run_exports": {"weak": ["small >=1"]}}
    plain = json.loads(forms["repodata.json"])
    plain["packages.conda"]["small-1-0.conda"]["run_exports"] = {"weak": ["other"]}
    changed = read_whole_index("linux-64", {**forms, "repodata.json": json.dumps(plain).encode()}.get)
    assert changed.exports.records()["small-1-0.conda"] == {"run_exports": {"weak": ["other"]}}
    assert changed.exports.records()["large-1-0.conda"] == {"run_exports": {"weak": ["large >=1"]}}


@pytest.mark.parametrize("place", ["https://elsewhere.example/", "/abs/", "../up/", "a/../../up/"])
def test_shards_outside_the_subdir_are_not_read(tmp_path: Path, place: str) -> None:
    forms = render_index_files(index(tmp_path, "small-1"))
    forms.pop("run_exports.json")
    listing = msgpack.unpackb(zstd.decompress(forms[LISTING]))
    listing["info"]["shards_base_url"] = place
    requests: list[str] = []

    def read(file: str) -> bytes | None:
        requests.append(file)
        return {**forms, LISTING: packed(listing)}.get(file)

    assert read_whole_index("linux-64", read).exports.records() == {}
    assert not [file for file in requests if "://" in file or ".." in file or file.startswith("/")]


def test_own_records_follow_files_that_another_tool_replaced(tmp_path: Path) -> None:
    """Another indexer rewrites repodata.json alone: records of files that changed since are its records."""
    forms = render_index_files(
        index(tmp_path, "same-1", "replaced-1", "gone-1").with_packages_withdrawn(["gone-1-0.conda"])
    )
    plain: dict[str, Any] = json.loads(forms["repodata.json"])
    plain["packages.conda"]["replaced-1-0.conda"] |= {"sha256": "00" * 32, "license": "new"}
    plain["packages.conda"]["added-1-0.conda"] = {**plain["packages.conda"]["same-1-0.conda"], "name": "added"}
    subdir = read_packages_only("linux-64", {**forms, "repodata.json": json.dumps(plain).encode()}.get)
    assert set(subdir.records) == {f"{name}-1-0.conda" for name in ("same", "replaced", "gone", "added")}
    assert subdir.records["replaced-1-0.conda"]["license"] == "new"
    assert subdir.records["same-1-0.conda"] == plain["packages.conda"]["same-1-0.conda"]


OTHER = {"version": "1", "subdirs": ["osx-64"], "home": "https://example.org"}


def entry(version: str, subdir: str = "linux-64", **record: Any) -> IndexEntry:
    values = {"name": "lib", "version": version, "license": f"license of {version}", **record}
    exports = {"weak": [f"lib >={version}"]}
    return IndexEntry(file=f"lib-{version}-0.conda", subdir=subdir, record=values, run_exports=exports)


def channeldata(**packages: Any) -> bytes:
    return json.dumps({"channeldata_version": 1, "packages": packages, "subdirs": ["osx-64"]}, indent=2).encode()


def test_a_new_package_is_added_and_others_stay() -> None:
    value = json.loads(channeldata_with_entries(channeldata(other=OTHER, zlib=OTHER), [entry("2", timestamp=5_999)]))
    assert value["channeldata_version"] == 1
    assert value["subdirs"] == ["linux-64", "osx-64"]
    assert list(value["packages"]) == ["lib", "other", "zlib"]
    assert value["packages"]["other"] == OTHER
    assert value["packages"]["lib"] == {
        "version": "2",
        "license": "license of 2",
        "run_exports": {"2": {"weak": ["lib >=2"]}},
        "subdirs": ["linux-64"],
        "timestamp": 5,
    }


@pytest.mark.parametrize(("version", "newest"), [("1.9", "1.10"), ("1.11", "1.11"), ("1.10", "1.10")])
def test_the_facts_are_those_of_the_newest_version(version: str, newest: str) -> None:
    existing = {"version": "1.10", "license": "license of 1.10", "run_exports": {"1.10": {}}, "timestamp": 9}
    lib = json.loads(channeldata_with_entries(channeldata(lib=existing), [entry(version, subdir="noarch")]))[
        "packages"
    ]["lib"]
    assert (lib["version"], lib["license"], lib["timestamp"]) == (newest, f"license of {newest}", 9)
    assert lib["run_exports"][version] == {"weak": [f"lib >={version}"]}
    assert lib["subdirs"] == ["noarch"]
    assert "1.10" in lib["run_exports"]


@pytest.mark.parametrize("data", [b"[]", b"{", b'{"packages": [1]}', b'{"packages": {"lib": 1}}'])
def test_an_invalid_file_is_reported(data: bytes) -> None:
    with pytest.raises(BrokenIndex, match=r"channeldata\.json cannot be read"):
        channeldata_with_entries(data, [entry("1")])


def records(**depends: tuple[str, ...]) -> dict[str, Mapping[str, Any]]:
    """Return records by files ``NAME_VERSION``, in which ``_`` stands for a dash."""
    return {
        file: {
            **dict(zip(("name", "version"), file.rsplit("_", 1), strict=True)),
            "build": "0",
            "build_number": 0,
            "subdir": "linux-64",
            "depends": list(specs),
        }
        for file, specs in depends.items()
    }


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        ((), {"lib_3"}),
        (("lib",), {"lib_3"}),
        (("lib >=2",), {"lib_3"}),
        (("lib <3",), {"lib_3", "lib_2"}),
        (("lib <2",), {"lib_3", "lib_1"}),
        (("lib >3",), {"lib_3"}),
        (("lib ==?",), {"lib_3"}),
        (("unknown 1",), {"lib_3"}),
    ],
)
def test_older_versions_that_a_newest_one_needs_are_in_it(app: tuple[str, ...], expected: set[str]) -> None:
    selection = newest_records_and_dependencies(records(lib_1=(), lib_2=(), lib_3=(), app_1=(), app_2=app))
    assert set(selection) == {"app_2", *expected}


def test_the_needs_of_older_versions_count_too() -> None:
    selection = newest_records_and_dependencies(
        records(app_1=("lib <2",), lib_1=("base <2",), lib_2=(), base_1=(), base_2=(), base_3=())
    )
    assert set(selection) == {"app_1", "lib_1", "lib_2", "base_1", "base_3"}


def test_versions_are_in_condas_order_and_files_sorted() -> None:
    assert list(newest_records_and_dependencies(records(b_9=(), b_10=(), a_1=()))) == ["a_1", "b_10"]


def test_packages_that_need_each_other_end() -> None:
    assert set(newest_records_and_dependencies(records(a_1=("b 1",), a_2=("b 1",), b_1=("a 1",), b_2=()))) == {
        "a_1",
        "a_2",
        "b_1",
        "b_2",
    }


def test_all_forms_say_the_same(tmp_path: Path) -> None:
    subdir = index(tmp_path, "small-1", "small-2", "large-1")
    forms = render_index_files(subdir)
    assert json.loads(zstd.decompress(forms["repodata.json.zst"])) == json.loads(forms["repodata.json"])
    listing = msgpack.unpackb(zstd.decompress(forms["repodata_shards.msgpack.zst"]))
    assert listing["info"] == {"subdir": "linux-64", "base_url": "", "shards_base_url": "./shards/"}
    result: dict[str, Any] = {}
    for name, digest in listing["shards"].items():
        data = forms[f"shards/{digest.hex()}.msgpack.zst"]
        assert hashlib.sha256(data).digest() == digest
        shard = msgpack.unpackb(zstd.decompress(data))["packages.conda"]
        assert {record["name"] for record in shard.values()} == {name}
        result |= shard
    plain = offered(subdir)
    assert result.keys() == plain.keys()
    for file, record in result.items():
        assert record.pop("run_exports") == {"weak": [f"{record['name']} >={record['version']}"]}
        assert {**record, "sha256": record["sha256"].hex(), "md5": record["md5"].hex()} == plain[file]
    exports = json.loads(forms["run_exports.json"])["packages.conda"]
    assert exports["large-1-0.conda"] == {"run_exports": {"weak": ["large >=1"]}}


def test_a_withdrawn_package_is_offered_by_no_form_and_known_as_removed(tmp_path: Path) -> None:
    forms = render_index_files(index(tmp_path, "small-1", "large-1").with_packages_withdrawn(["small-1-0.conda"]))
    for name in ("repodata.json", "current_repodata.json", "run_exports.json"):
        assert set(json.loads(forms[name])["packages.conda"]) == {"large-1-0.conda"}
    shards = msgpack.unpackb(zstd.decompress(forms["repodata_shards.msgpack.zst"]))["shards"]
    shard = msgpack.unpackb(zstd.decompress(forms[f"shards/{shards['small'].hex()}.msgpack.zst"]))
    assert shard == {"packages": {}, "packages.conda": {}, "removed": ["small-1-0.conda"]}
    assert json.loads(forms["repodata.json"])["removed"] == ["small-1-0.conda"]
    assert set(json.loads(forms[BASE])["packages.conda"]) == {"small-1-0.conda", "large-1-0.conda"}


def test_compressed_files_are_written_where_the_channel_has_them(tmp_path: Path) -> None:
    subdir = index(tmp_path, "small-1")
    variants = frozenset({"repodata.json.bz2", f"{BASE}.zst"})
    forms = render_index_files(dataclasses.replace(subdir, variants=variants))
    assert bz2.decompress(forms["repodata.json.bz2"]) == forms["repodata.json"]
    assert zstd.decompress(forms[f"{BASE}.zst"]) == forms[BASE]
    assert forms.keys() - render_index_files(subdir).keys() == variants


def test_current_keeps_the_files_that_it_had_until_their_package_changes(tmp_path: Path) -> None:
    """conda's classic solver reads it first, and old environments are solved from it, too."""
    subdir = index(tmp_path, "lib-1", "lib-2")
    before = dataclasses.replace(subdir, current=frozenset({"lib-1-0.conda", "gone-1-0.conda"}))
    assert set(offered(before, "current_repodata.json")) == {"lib-2-0.conda"}, "its name was changed"
    unchanged = dataclasses.replace(before, changed=frozenset())
    assert set(offered(unchanged, "current_repodata.json")) == {"lib-1-0.conda", "lib-2-0.conda"}


def test_the_list_of_shards_keeps_its_keys_but_not_its_time(tmp_path: Path) -> None:
    info = {"created_at": "2026-01-01T00:00:00Z", "base_url": "https://files.example/", "more": 1}
    subdir = dataclasses.replace(index(tmp_path, "small-1"), listing={"version": 1, "info": info, "extra": 2})
    listing = msgpack.unpackb(zstd.decompress(render_index_files(subdir)["repodata_shards.msgpack.zst"]))
    assert listing["extra"] == 2
    assert listing["info"] == {
        "base_url": "https://files.example/",
        "more": 1,
        "subdir": "linux-64",
        "shards_base_url": "./shards/",
    }
