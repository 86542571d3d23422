"""Channels that conda-index or rattler indexed: after a publication clients see what they saw, and the new packages."""

from __future__ import annotations

import asyncio
import bz2
import io
import json
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from kiln.base.errors import BrokenIndex, HashMismatch
from kiln.base.zstd import zstd
from kiln.conda.index import read_index_entry
from kiln.publish import transaction
from kiln.publish.stores import target
from kiln.publish.stores.folder import FolderStore
from kiln.publish.stores.target import StoreTarget
from tests.packages import conda_package, release_package
from tests.serving import served

if TYPE_CHECKING:
    from collections.abc import Callable

    from kiln.conda.index import IndexEntry

pytestmark = [pytest.mark.slow("channels are indexed by each of the tools"), pytest.mark.sampled]

ROOT = Path(__file__).parents[2]
SUBDIRS = ("linux-64", "noarch")
PATCHES = {
    "patch_instructions_version": 1,
    "packages": {},
    "packages.conda": {"old-1-0.conda": {"depends": ["kept >=1"], "license": "hotfixed"}},
    "remove": ["gone-1-0.conda"],
    "revoke": [],
}
EVERYTHING = {"write_bz2": True, "write_zst": True, "write_run_exports": True, "write_shards": True}
NEW = ("fresh", "app")
NAMES = ("old", "older", "gone", "kept", "patches", "later", *NEW)
Json = dict[str, Any]


def old_package(folder: Path) -> Path:
    """Write a package in the older format."""
    index = {"name": "older", "version": "1", "build": "0", "build_number": 0, "subdir": "linux-64", "depends": []}
    told = {"index.json": index, "about.json": {}, "paths.json": {"paths": [], "paths_version": 1}, "files": []}
    place = folder / "older-1-0.tar.bz2"
    with tarfile.open(place, "w:bz2") as tar:
        for name, value in {**told, "run_exports.json": {"strong": ["older"]}}.items():
            data = json.dumps(value).encode()
            member = tarfile.TarInfo(f"info/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return place


def packages(channel: Path) -> None:
    """Put packages into the folder of a channel."""
    for version in ("1", "2"):
        release_package(channel / "linux-64", "old", version, timestamp=1_700_000_000_000)
    release_package(channel / "linux-64", "gone")
    release_package(channel / "noarch", "kept", subdir="noarch", noarch="generic")
    old_package(channel / "linux-64")


def by_conda_index(channel: Path, **more: object) -> None:
    """Index a channel with conda-index."""
    words = (sys.executable, "-m", "tests.indexers.conda_index", str(channel), json.dumps({**EVERYTHING, **more}))
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def conda_index_patched(channel: Path) -> None:
    """Without shards: conda-index 0.13 makes them of what packages say, whatever the instructions are."""
    (channel / "linux-64" / "patch_instructions.json").write_text(json.dumps(PATCHES))
    by_conda_index(channel, write_shards=False)


def conda_index_v3(channel: Path) -> None:
    by_conda_index(channel, repodata_v3=True)


def conda_index_plain(channel: Path) -> None:
    """Only what it makes when nothing is said, for people to read."""
    by_conda_index(channel, **dict.fromkeys(EVERYTHING, False), compact_json=False)


def by_rattler(channel: Path, **more: Any) -> None:
    from rattler.index import index_fs

    asyncio.run(index_fs(channel, **more))


def rattler_v3(channel: Path) -> None:
    revisions = [{"revision": "v3", "message": "read me"}]
    by_rattler(channel, repodata_revisions=revisions, package_revision_assignment="latest")


def rattler_patched(channel: Path) -> None:
    info: Json = {
        "index.json": {
            "name": "patches",
            "version": "1",
            "build": "0",
            "build_number": 0,
            "subdir": "noarch",
            "depends": [],
        },
        "about.json": {},
        "paths.json": {"paths": [], "paths_version": 1},
    }
    payload = {"linux-64/patch_instructions.json": json.dumps(PATCHES).encode()}
    conda_package(channel / "noarch" / "patches-1-0.conda", info, payload=payload)
    by_rattler(channel, repodata_patch="patches-1-0.conda")


INDEXERS = (
    by_conda_index,
    conda_index_patched,
    conda_index_v3,
    conda_index_plain,
    by_rattler,
    rattler_v3,
    rattler_patched,
)


def by_operator(channel: Path) -> None:
    """Add what operators and other tools do: relations, signatures, keys of a record that kiln knows nothing of."""
    for subdir in SUBDIRS:
        place = channel / subdir / "repodata.json"
        index = json.loads(place.read_bytes())
        index["info"]["channel_relations"] = {"base": "../conda-forge"}
        index["signatures"] = {"old-1-0.conda": {"key": {"signature": "00"}}}
        index["x-comment"] = "grüezi"
        for record in index["packages.conda"].values():
            record["x-score"] = {"z": 1.0, "a": 1e3}
        write(place, json.dumps(index, ensure_ascii=False, separators=(",", ":")).encode())


def write(place: Path, data: bytes) -> None:
    """Write a file, and its compressed variants with the same content."""
    place.write_bytes(data)
    for ending, pack in ((".zst", zstd.compress), (".bz2", bz2.compress)):
        if (beside := place.with_name(place.name + ending)).is_file():
            beside.write_bytes(pack(data))


# What is seen of a channel


def contents(channel: Path) -> dict[str, bytes]:
    """Return the files of a channel that are not packages."""
    result = (path for path in channel.rglob("*") if path.is_file() and ".kiln" not in path.parts)
    return {
        path.relative_to(channel).as_posix(): path.read_bytes()
        for path in result
        if not path.name.endswith((".conda", ".tar.bz2")) and ".cache" not in path.parts
    }


def read(name: str, data: bytes) -> Json:
    """Return what a file of an index says."""
    plain = {".zst": zstd.decompress, ".bz2": bz2.decompress}.get(Path(name).suffix, bytes)(data)
    told: Json = msgpack.unpackb(plain) if ".msgpack" in name else json.loads(plain)
    return told


def records(index: Json) -> dict[str, bytes]:
    """Return the records of an index, as they are written."""
    plain = {key: each for kind in ("packages", "packages.conda") for key, each in index.get(kind, {}).items()}
    revised = {f"{key}.{kind}": each for kind, told in (index.get("v3") or {}).items() for key, each in told.items()}
    return {file: json.dumps(record, default=bytes.hex).encode() for file, record in {**plain, **revised}.items()}


def without_packages(index: Json) -> Json:
    """Return all else of an index."""
    return {key: told for key, told in index.items() if key not in {"packages", "packages.conda", "v3", "info"}}


async def asked(url: str, **how: bool) -> dict[str, Json]:
    """Return the records that rattler gets of all packages in a channel, with their places below the channel."""
    from rattler import Channel, Gateway, SourceConfig

    gateway = Gateway(default_config=SourceConfig(cache_action="no-cache", **how))
    result = await gateway.query(
        [Channel(url)], ["linux-64", "noarch"], [*NAMES], recursive=False, channel_relations="disabled"
    )
    told = {record.file_name: json.loads(record.to_json().replace(url, "")) for records in result for record in records}
    gone: dict[str, Json] = {f"removed {each.file_name}": {} for removed in result.removed for each in removed}
    return {**told, **gone}


WAYS: dict[str, dict[str, bool]] = {
    "plain": {"zstd_enabled": False, "bz2_enabled": False, "sharded_enabled": False},
    "bz2": {"zstd_enabled": False, "sharded_enabled": False},
    "zst": {"sharded_enabled": False},
    "shards": {},
}


def clients(url: str) -> dict[str, dict[str, Json]]:
    """Return what rattler gets of a channel, by each of its ways."""
    return {way: asyncio.run(asked(url, **how)) for way, how in WAYS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A channel at one moment."""

    files: dict[str, bytes]
    clients: dict[str, dict[str, Json]] = field(default_factory=dict)

    def require_kept_by(self, later: View, new: frozenset[str] = frozenset()) -> None:
        """Assert that a later view has all of this, and nothing new but some packages."""
        for name, data in self.files.items():
            if name.endswith((".json", ".json.zst", ".json.bz2")):
                self._require_kept(name, read(name, data), read(name, later.files[name]), new)
            elif ".msgpack" not in name:  # what shards say is asked by clients
                assert later.files[name] == data, name
        for way, seen in self.clients.items():
            result = later.clients[way]
            for file, record in seen.items():
                assert {**result[file], **record} == result[file], (way, file)
                assert result[file].keys() - record.keys() <= {"run_exports"}, "shards may have them, too"
            assert result.keys() - seen.keys() == new, way

    @staticmethod
    def _require_kept(name: str, before: Json, after: Json, new: frozenset[str]) -> None:
        had, has = records(before), records(after)
        if name.endswith("channeldata.json"):
            new = frozenset(file.split("-")[0] for file in new)
        assert {file: has.get(file) for file in had} == had, name
        assert has.keys() - had.keys() <= new, name
        if not name.endswith("channeldata.json"):
            assert without_packages(after) == without_packages(before), name
            assert after.get("info") == before.get("info"), name
            assert [key for key in after if key in before] == [*before], "in the same order"


def view(channel: Path) -> View:
    """Return what is seen of a channel in a folder."""
    with served(channel) as url:
        return View(files=contents(channel), clients=clients(url))


# Location


def made(folder: Path) -> tuple[list[Path], list[IndexEntry]]:
    """Return packages to publish."""
    paths = [release_package(folder / "built", name, subdir="noarch" if name == "app" else "linux-64") for name in NEW]
    return paths, [read_index_entry(path) for path in paths]


def of_new() -> frozenset[str]:
    return frozenset(f"{name}-1-0.conda" for name in NEW)


@pytest.fixture(params=INDEXERS, ids=lambda each: each.__name__)
def indexer(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Each indexer in turn."""
    result: Callable[[Path], None] = request.param
    return result


@pytest.fixture
def channel(tmp_path: Path, indexer: Callable[[Path], None]) -> Path:
    """A channel that another tool indexed."""
    place = tmp_path / "channel"
    packages(place)
    indexer(place)
    return place


def in_folder(channel: Path) -> StoreTarget:
    return StoreTarget(store=FolderStore(root=channel))


def test_a_publication_keeps_additions_of_operators(channel: Path, tmp_path: Path) -> None:
    by_operator(channel)
    before = view(channel)
    transaction.publish(in_folder(channel), *made(tmp_path), lambda _: None)
    after = view(channel)
    before.require_kept_by(after, of_new())
    assert "grüezi" in after.files["linux-64/repodata.json"].decode(), "not written otherwise than it was"
    listing = read("repodata_shards.msgpack.zst", after.files["linux-64/repodata_shards.msgpack.zst"])
    assert listing["info"]["channel_relations"] == {"base": "../conda-forge"}


def test_an_aborted_publication_leaves_the_channel_as_it_was(channel: Path, tmp_path: Path) -> None:
    def refuse(_: str) -> None:
        raise HashMismatch("no good")

    before = view(channel)
    with pytest.raises(HashMismatch):
        transaction.publish(in_folder(channel), *made(tmp_path), refuse)
    before.require_kept_by(view(channel))
    assert len(transaction.abort(in_folder(channel))) == 2
    before.require_kept_by(view(channel))
    transaction.publish(in_folder(channel), *made(tmp_path), lambda _: None)
    before.require_kept_by(view(channel), of_new())


def test_a_withdrawal_changes_nothing_of_other_packages(channel: Path, tmp_path: Path) -> None:
    transaction.publish(in_folder(channel), *made(tmp_path), lambda _: None)
    before = view(channel)
    target.yank_packages(in_folder(channel), ["fresh-1-0.conda"])
    target.yank_packages(in_folder(channel), ["old-2-0.conda"])
    after = view(channel)
    for way, seen in before.clients.items():
        gone = {"fresh-1-0.conda", "old-2-0.conda"}
        assert after.clients[way] == {
            **{file: told for file, told in seen.items() if file not in gone},
            **{f"removed {file}": {} for file in gone},
        }


def test_indexing_anew_drops_no_package_of_any_format(channel: Path) -> None:
    before = view(channel)
    index = in_folder(channel)
    target.reindex_channel(index, lambda path: read_index_entry(channel / path))
    before.require_kept_by(view(channel))
    release_package(channel / "linux-64", "later")
    assert target.reindex_channel(index, lambda path: read_index_entry(channel / path)) == (
        1,
        (),
    )
    before.require_kept_by(view(channel), frozenset({"later-1-0.conda"}))


def test_another_tool_indexes_it_after_kiln_and_kiln_again(
    channel: Path, tmp_path: Path, indexer: Callable[[Path], None]
) -> None:
    paths, entries = made(tmp_path)
    transaction.publish(in_folder(channel), paths[:1], entries[:1], lambda _: None)
    release_package(channel / "linux-64", "later")
    indexer(channel)
    before = view(channel)
    assert {"later-1-0.conda", "fresh-1-0.conda"} <= before.clients["plain"].keys()
    transaction.publish(in_folder(channel), paths[1:], entries[1:], lambda _: None)
    after = view(channel)
    assert {way: result.keys() for way, result in after.clients.items()} == dict.fromkeys(
        WAYS, before.clients["plain"].keys() | {"app-1-0.conda"}
    )


def test_new_packages_are_entered_into_channeldata_for_builders_that_read_it(tmp_path: Path) -> None:
    place = tmp_path / "channel"
    packages(place)
    by_conda_index(place)
    before = json.loads((place / "channeldata.json").read_bytes())
    transaction.publish(in_folder(place), *made(tmp_path), lambda _: None)
    after = json.loads((place / "channeldata.json").read_bytes())
    assert {name: after["packages"][name] for name in before["packages"]} == before["packages"]
    assert after["packages"]["fresh"]["run_exports"] == {"1": {"weak": ["fresh >=1"]}}


@pytest.mark.parametrize(
    "change",
    [
        {"repodata_version": 3},
        {"v4": {"conda": {"new-1-0": {"name": "new", "version": "1"}}}},
        {"packages.whl": {"new-1-0.whl": {"name": "new", "version": "1"}}},
    ],
)
def test_packages_that_kiln_could_not_keep_are_refused_before_anything_is_written(tmp_path: Path, change: Json) -> None:
    place = tmp_path / "channel"
    packages(place)
    by_rattler(place)
    index = place / "linux-64" / "repodata.json"
    write(index, json.dumps({**json.loads(index.read_bytes()), **change}).encode())
    before = contents(place)
    with pytest.raises(BrokenIndex, match="linux-64"):
        transaction.publish(in_folder(place), *made(tmp_path), lambda _: None)
    assert contents(place) == before
    assert not (place / "linux-64" / "fresh-1-0.conda").exists()


def test_a_channel_of_shards_alone_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "channel"
    packages(place)
    by_rattler(place)
    for name in ("repodata.json", "repodata.json.zst"):
        (place / "linux-64" / name).unlink()
    with pytest.raises(BrokenIndex, match="has shards, but no repodata"):
        transaction.publish(in_folder(place), *made(tmp_path), lambda _: None)


def test_a_bucket_that_another_tool_indexed_keeps_its_packages(
    bucket: StoreTarget, channel: Path, tmp_path: Path
) -> None:
    import boto3

    client = boto3.client("s3")
    by_operator(channel)
    for path in channel.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "wheels", f"channel/{path.relative_to(channel).as_posix()}")

    def now() -> View:
        told = client.list_objects_v2(Bucket="wheels", Prefix="channel/")["Contents"]
        mirror = tmp_path / "mirror"
        for name in (each["Key"].removeprefix("channel/") for each in told):
            (mirror / name).parent.mkdir(parents=True, exist_ok=True)
            client.download_file("wheels", f"channel/{name}", str(mirror / name))
        return view(mirror)

    before = now()
    transaction.publish(bucket, *made(tmp_path), lambda _: None)
    before.require_kept_by(now(), of_new())
    target.yank_packages(bucket, ["fresh-1-0.conda"])
    after = now()
    assert {file for file in after.clients["shards"] if not file.startswith("removed")} == {
        *(file for file in before.clients["plain"] if not file.startswith("removed")),
        "app-1-0.conda",
    }
