"""The files of an index: all forms that clients request have the same packages."""

from __future__ import annotations

import bz2
import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

import msgpack

from kiln.base.zstd import zstd
from kiln.conda.index import BASE, read_index_entry
from kiln.conda.index_files import render_index_files
from tests.packages import release_package
from tests.unit.conda.index import index, offered

if TYPE_CHECKING:
    from pathlib import Path


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


def test_current_has_the_newest_versions_and_their_requirements(tmp_path: Path) -> None:
    subdir = index(tmp_path, "lib-1", "lib-2", "lib-3", "other-1.9", "other-1.10", "other-1.10-1")
    needing = [read_index_entry(release_package(tmp_path, "app", depends=["lib <3", "other 1.10.*", "gone >1"]))]
    assert set(offered(subdir.with_packages(needing), "current_repodata.json")) == {
        *("app-1-0.conda", "lib-3-0.conda", "lib-2-0.conda", "other-1.10-0.conda", "other-1.10-1.conda"),
    }


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
