"""The index of a channel in all its forms."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from kiln import repodata
from kiln.compression import zstd
from kiln.errors import BrokenIndex, BrokenPackage
from kiln.repodata import Subdir
from tests.packages import release_package

if TYPE_CHECKING:
    from pathlib import Path


def index(tmp_path: Path, *names: str) -> Subdir:
    entries = [repodata.read(release_package(tmp_path, *name.split("-"))) for name in names]
    return Subdir.empty("linux-64").with_packages(entries)


def offered(subdir: Subdir, form: str = "repodata.json") -> dict[str, Any]:
    told: dict[str, Any] = json.loads(repodata.forms(subdir)[form])["packages.conda"]
    return told


def test_a_record_has_the_metadata_and_the_hashes_of_the_file(tmp_path: Path) -> None:
    package = release_package(tmp_path, "small", depends=["python >=3.11"])
    entry = repodata.read(package)
    assert entry.path == "linux-64/small-1-0.conda"
    assert entry.record["depends"] == ["python >=3.11"]
    assert entry.record["sha256"] == hashlib.sha256(package.read_bytes()).hexdigest()
    assert entry.record["md5"] == hashlib.md5(package.read_bytes()).hexdigest()
    assert entry.record["size"] == package.stat().st_size
    assert entry.run_exports == {"weak": ["small >=1"]}


def test_a_renamed_package_is_refused(tmp_path: Path) -> None:
    package = release_package(tmp_path, "small")
    with pytest.raises(BrokenPackage, match=r"small-1-0\.conda"):
        repodata.read(package.rename(tmp_path / "small-2-0.conda"))


def test_metadata_that_no_client_could_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenPackage, match="no client can read"):
        repodata.read(release_package(tmp_path, "small", depends="python"))


def test_all_forms_say_the_same(tmp_path: Path) -> None:
    subdir = index(tmp_path, "small-1", "small-2", "large-1")
    forms = repodata.forms(subdir)
    assert json.loads(zstd.decompress(forms["repodata.json.zst"])) == json.loads(forms["repodata.json"])
    listing = msgpack.unpackb(zstd.decompress(forms["repodata_shards.msgpack.zst"]))
    assert listing["info"] == {"subdir": "linux-64", "base_url": "", "shards_base_url": "./shards/"}
    found: dict[str, Any] = {}
    for name, digest in listing["shards"].items():
        data = forms[f"shards/{digest.hex()}.msgpack.zst"]
        assert hashlib.sha256(data).digest() == digest
        shard = msgpack.unpackb(zstd.decompress(data))["packages.conda"]
        assert {record["name"] for record in shard.values()} == {name}
        found |= shard
    plain = offered(subdir)
    assert found.keys() == plain.keys()
    for file, record in found.items():
        assert record.pop("run_exports") == {"weak": [f"{record['name']} >={record['version']}"]}
        assert {**record, "sha256": record["sha256"].hex(), "md5": record["md5"].hex()} == plain[file]
    exports = json.loads(forms["run_exports.json"])["packages.conda"]
    assert exports["large-1-0.conda"] == {"run_exports": {"weak": ["large >=1"]}}


def test_the_index_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    subdir = index(tmp_path, "small-1", "large-1").withdrawn(["small-1-0.conda"]).patched("large-1-0.conda", {"a": 1})
    forms = repodata.forms(subdir)
    again = repodata.loaded("linux-64", forms.get)
    assert repodata.forms(again) == forms
    assert again.records == subdir.records
    assert again.offered == subdir.offered


def test_current_has_the_newest_versions_and_their_requirements(tmp_path: Path) -> None:
    subdir = index(tmp_path, "lib-1", "lib-2", "lib-3", "other-1.9", "other-1.10", "other-1.10-1")
    needing = [repodata.read(release_package(tmp_path, "app", depends=["lib <3", "other 1.10.*", "gone >1"]))]
    assert set(offered(subdir.with_packages(needing), "current_repodata.json")) == {
        *("app-1-0.conda", "lib-3-0.conda", "lib-2-0.conda", "other-1.10-0.conda", "other-1.10-1.conda"),
    }


def test_a_withdrawn_package_is_offered_by_no_form_and_known_as_removed(tmp_path: Path) -> None:
    forms = repodata.forms(index(tmp_path, "small-1", "large-1").withdrawn(["small-1-0.conda"]))
    for name in ("repodata.json", "current_repodata.json", "run_exports.json"):
        assert set(json.loads(forms[name])["packages.conda"]) == {"large-1-0.conda"}
    shards = msgpack.unpackb(zstd.decompress(forms["repodata_shards.msgpack.zst"]))["shards"]
    shard = msgpack.unpackb(zstd.decompress(forms[f"shards/{shards['small'].hex()}.msgpack.zst"]))
    assert shard == {"packages": {}, "packages.conda": {}, "removed": ["small-1-0.conda"]}
    assert json.loads(forms["repodata.json"])["removed"] == ["small-1-0.conda"]
    assert set(json.loads(forms[repodata.BASE])["packages.conda"]) == {"small-1-0.conda", "large-1-0.conda"}


def test_a_later_index_keeps_a_patched_record(tmp_path: Path) -> None:
    subdir = index(tmp_path, "small-1").patched("small-1-0.conda", {"depends": ["python <3.13"]})
    assert offered(subdir)["small-1-0.conda"]["depends"] == ["python <3.13"]
    assert subdir.records["small-1-0.conda"]["depends"] == []
    assert offered(subdir.with_packages([]))["small-1-0.conda"]["depends"] == ["python <3.13"]


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"packages.conda": 3}', b"\xff"])
def test_a_damaged_index_is_reported(data: bytes) -> None:
    with pytest.raises(BrokenIndex, match="linux-64"):
        repodata.adopted("linux-64", data)
