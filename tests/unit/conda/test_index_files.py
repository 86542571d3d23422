"""An index is read whichever tool wrote it, and refused where kiln would lose a part of it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from kiln.base.errors import BrokenIndex
from kiln.base.zstd import zstd
from kiln.conda.index import SubdirIndex
from kiln.conda.index_files import index_from_repodata, read_packages_only, read_whole_index, render_index_files
from tests.unit.conda.index import index

if TYPE_CHECKING:
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


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"packages.conda": 3}', b"\xff"])
def test_a_damaged_index_is_reported(data: bytes) -> None:
    with pytest.raises(BrokenIndex, match="linux-64"):
        index_from_repodata("linux-64", data)


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
