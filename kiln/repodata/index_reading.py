"""The reading of a subdir's index, whichever tool wrote it."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from kiln.errors import BrokenIndex
from kiln.repodata.editable_index import SubdirIndex
from kiln.repodata.index_document import (
    BASE,
    CURRENT,
    EXPORTS,
    FAULTS,
    INSTRUCTIONS,
    LISTING,
    REPODATA,
    VARIANTS,
    IndexDocument,
    Record,
    require_writable,
)
from kiln.zstd import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Reader = Callable[[str], bytes | None]

# A publication reads the same files before, during and after its checks; kept are the documents of two subdirs.
_parse_index_document = functools.lru_cache(maxsize=12)(IndexDocument.parse)
HINT = "index the channel again with the tool that wrote it, or publish into another channel"


def read_whole_index(name: str, read: Reader) -> SubdirIndex:
    """Return the whole index of a subdir; ``read`` returns a file below it by name, None for a missing one.

    Raises:
        BrokenIndex: when one of them is invalid, or has content that kiln could not keep.
    """
    packages = read_packages_only(name, read)
    current, exports = (_read_index_document(name, file, read) for file in (CURRENT, EXPORTS))
    listing = _read_shard_list(name, read)
    return dataclasses.replace(
        packages,
        exports=exports or packages.exports.with_records(_run_exports_by_file(name, packages, listing, read)),
        current=frozenset(current.records()) if current else frozenset(),
        listing={key: value for key, value in listing.items() if key != "shards"},
        variants=frozenset(file for file in VARIANTS if read(file) is not None),
    )


def read_packages_only(name: str, read: Reader) -> SubdirIndex:
    """Return the index of a subdir with its packages alone; the rest is empty.

    Raises:
        BrokenIndex: as ``read_whole_index`` does.
    """
    empty, offered = SubdirIndex.empty(name), _read_repodata(name, read)
    if offered is None:
        return empty
    require_writable(name, offered)
    base = _read_index_document(name, BASE, read)
    instructions = _read_index_document(name, INSTRUCTIONS, read) or empty.instructions
    version = instructions.value.get("patch_instructions_version", 1)
    if version != 1:
        raise BrokenIndex(f"{name}/{INSTRUCTIONS} has the version {version!r}, kiln knows 1", hint=HINT)
    subdir = dataclasses.replace(empty, repodata=offered, instructions=instructions)
    base = base or dataclasses.replace(offered, value={**offered.value, "removed": []})
    return dataclasses.replace(subdir, base=_updated_base_records(base, offered, subdir.removed_files))


def index_from_repodata(name: str, repodata: bytes) -> SubdirIndex:
    """Return the index that has ``repodata.json`` alone.

    Raises:
        BrokenIndex: as ``read_whole_index`` does.
    """
    return read_packages_only(name, {REPODATA: repodata}.get)


def _updated_base_records(base: IndexDocument, offered: IndexDocument, removed: frozenset[str]) -> IndexDocument:
    """Return the packages' own records, updated to what clients see, where another tool did not change them.

    Records of replaced or removed files are dropped; missing ones are added from what clients see.
    """
    visible_records, own = offered.records(), base.records()
    valid = {
        file for file, record in own.items() if file in removed or _is_same_file(record, visible_records.get(file))
    }
    return base.without_files(own.keys() - valid).with_records_from_document(offered, visible_records.keys() - valid)


def _is_same_file(record: Record, other: Record | None) -> bool:
    return other is not None and all(record.get(key) == other.get(key) for key in ("sha256", "md5", "size"))


def _read_repodata(name: str, read: Reader) -> IndexDocument | None:
    if (plain := _read_index_document(name, REPODATA, read)) is not None:
        return plain
    packed = read(f"{REPODATA}.zst")
    if packed is not None:
        data = _decompress_zstd(name, f"{REPODATA}.zst", packed)
        return _read_index_document(name, REPODATA, {REPODATA: data}.get)
    if read(LISTING) is not None:
        raise BrokenIndex(f"{name} has shards, but no {REPODATA}", why="kiln reads the whole index there", hint=HINT)
    return None


def _read_index_document(name: str, file: str, read: Reader) -> IndexDocument | None:
    data = read(file)
    try:
        return None if data is None else _parse_index_document(data)
    except FAULTS as error:
        raise BrokenIndex(f"the index of {name} in the channel cannot be read", why=f"{file}: {error}") from error


def _run_exports_by_file(
    name: str, subdir: SubdirIndex, listing: Mapping[str, Any], read: Reader
) -> Mapping[str, Record]:
    """Return the run exports in records or shards; builders read those of other packages themselves."""
    records = subdir.repodata.records()
    is_complete = all("run_exports" in record for record in records.values())
    sharded = {} if is_complete else _run_exports_in_shards(name, listing, read)
    exports = {file: record.get("run_exports", sharded.get(file)) for file, record in records.items()}
    return {file: {"run_exports": value} for file, value in exports.items() if isinstance(value, dict)}


def _run_exports_in_shards(name: str, listing: Mapping[str, Any], read: Reader) -> Mapping[str, Any]:
    """Return the run exports in a channel's shards, where these are below the subdir."""
    place = str(listing.get("info", {}).get("shards_base_url", "")).removeprefix("./")
    if ":" in place or place.startswith("/") or ".." in place.split("/"):
        return {}
    exports: dict[str, Any] = {}
    for digest in listing.get("shards", {}).values():
        file = f"{place}{digest.hex()}.msgpack.zst"
        if (data := read(file)) is not None:
            shard = _unpack_msgpack_object(name, file, data)
            records = IndexDocument(value=shard).records()
            exports.update({key: record["run_exports"] for key, record in records.items() if "run_exports" in record})
    return exports


def _read_shard_list(name: str, read: Reader) -> Mapping[str, Any]:
    data = read(LISTING)
    listing = {} if data is None else _unpack_msgpack_object(name, LISTING, data)
    if not all(isinstance(listing.get(key, {}), dict) for key in ("info", "shards")):
        raise BrokenIndex(f"{name}/{LISTING} cannot be read", why="it is not a list of shards")
    if listing.get("version", 1) != 1:
        raise BrokenIndex(f"{name}/{LISTING} has the version {listing['version']!r}, kiln knows 1", hint=HINT)
    return listing


def _unpack_msgpack_object(name: str, file: str, data: bytes) -> dict[str, Any]:
    import msgpack

    try:
        value = msgpack.unpackb(_decompress_zstd(name, file, data))
    except (ValueError, msgpack.UnpackException) as error:
        raise BrokenIndex(f"{name}/{file} cannot be read", why=str(error) or type(error).__name__) from error
    if not isinstance(value, dict):
        raise BrokenIndex(f"{name}/{file} cannot be read", why="it is not an object")
    return value


def _decompress_zstd(name: str, file: str, data: bytes) -> bytes:
    try:
        return zstd.decompress(data)
    except zstd.ZstdError as error:
        raise BrokenIndex(f"{name}/{file} cannot be read", why=str(error)) from error
