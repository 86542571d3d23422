"""The files of an index in every form that clients request, written and read."""

from __future__ import annotations

import bz2
import dataclasses
import functools
import hashlib
from typing import TYPE_CHECKING, Any

from kiln.base.errors import BrokenIndex
from kiln.base.zstd import zstd
from kiln.conda.index import (
    BASE,
    CURRENT,
    EXPORTS,
    FAULTS,
    INSTRUCTIONS,
    KINDS,
    LISTING,
    REPODATA,
    REVISION,
    SHARDS,
    VARIANTS,
    IndexDocument,
    Record,
    SubdirIndex,
    file_name_of_key,
    require_writable,
)
from kiln.conda.specs import Version, package_name, strict_rattler_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kiln.conda.index import IndexEntry

    Reader = Callable[[str], bytes | None]


OF_THE_NEWEST = ("version", "license", "license_family")


def channeldata_with_entries(channeldata: bytes, entries: Iterable[IndexEntry]) -> bytes:
    """Return a channel's data with packages added; facts on others, or on other versions, do not change.

    Raises:
        BrokenIndex: when it is invalid.
    """
    try:
        document = IndexDocument.parse(channeldata)
        value = dict(document.value)
        for entry in entries:
            value = _channeldata_with_package(value, entry)
        return dataclasses.replace(document, value=value).to_json()
    except FAULTS as error:
        raise BrokenIndex("the channel's channeldata.json cannot be read", why=str(error)) from error


def _channeldata_with_package(value: Mapping[str, Any], entry: IndexEntry) -> dict[str, Any]:
    name, version = str(entry.record["name"]), str(entry.record["version"])
    packages = dict(value.get("packages") or {})
    existing = dict(packages.get(name) or {})
    exports = {version: dict(entry.run_exports)} if entry.run_exports else {}
    is_newest = "version" not in existing or Version(version) > Version(str(existing["version"]))
    facts = {key: entry.record[key] for key in OF_THE_NEWEST if is_newest and entry.record.get(key)}
    packages[name] = {
        **existing,
        **facts,
        "run_exports": {**(existing.get("run_exports") or {}), **exports},
        "subdirs": sorted({*(existing.get("subdirs") or ()), entry.subdir}),
        "timestamp": max(int(entry.record.get("timestamp") or 0) // 1000, int(existing.get("timestamp") or 0)),
    }
    subdirs = sorted({*(value.get("subdirs") or ()), entry.subdir})
    return {**value, "packages": {key: packages[key] for key in sorted(packages)}, "subdirs": subdirs}


Records = dict[str, "Mapping[str, Any]"]


def newest_records_and_dependencies(offered: Mapping[str, Mapping[str, Any]]) -> Records:
    """Return all builds of the newest version of each name, and older ones that these depend on.

    A client that finds no solution in this part reads the whole, so it need not be complete, only useful; the idea and
    the name are conda-index's.
    """
    by_name: dict[str, Records] = {}
    for file, record in offered.items():
        by_name.setdefault(record["name"], {})[file] = record
    selection = {
        file: record for builds in by_name.values() for file, record in _records_of_latest_version(builds).items()
    }
    done: set[str] = set()
    new: Records = selection
    while new:
        specs = {spec for record in new.values() for spec in record.get("depends", ())} - done
        done |= specs
        new = {
            file: record
            for spec in specs
            for file, record in _older_builds_for_spec(spec, by_name, selection).items()
            if file not in selection
        }
        selection = {**selection, **new}
    return dict(sorted(selection.items()))


def _records_of_latest_version(records: Records) -> Records:
    versions = {str(record["version"]) for record in records.values()}
    if len(versions) <= 1:
        return records
    latest = max(versions, key=Version)
    return {file: record for file, record in records.items() if record["version"] == latest}


def _older_builds_for_spec(spec: str, by_name: Mapping[str, Records], selection: Records) -> Records:
    """Return the newest builds that satisfy a spec, when none in the selection does."""
    builds = by_name.get(package_name(spec), {})
    if " " not in spec.strip() or builds.keys() <= selection.keys():  # most names have one version, which is selected
        return {}
    if _records_matching_spec(spec, {file: record for file, record in builds.items() if file in selection}):
        return {}
    return _records_of_latest_version(_records_matching_spec(spec, builds))


def _records_matching_spec(spec: str, records: Records) -> Records:
    import rattler

    try:
        match_spec = rattler.MatchSpec(strict_rattler_spec(spec))
    except Exception:  # noqa: BLE001 - the library has no type for it; an invalid dependency matches nothing
        return {}
    matching = {}
    for file, record in records.items():
        package = rattler.PackageRecord(
            name=str(record["name"]),
            version=str(record["version"]),
            build=rattler.BuildString(str(record["build"])),
            build_number=int(record["build_number"]),
            subdir=str(record["subdir"]),
        )
        if match_spec.matches(package):
            matching[file] = record
    return matching


LEVEL = 3  # the index of 5,000 packages in tens of milliseconds; level 19 takes seconds and saves a quarter
_HASHES = ("sha256", "md5", "legacy_bz2_md5")


def render_index_files(subdir: SubdirIndex) -> dict[str, bytes]:
    """Return every file of a subdir's index: its name below the subdir, and its content.

    Files below ``shards/`` are named by their content, so they may be written before all others.
    """
    plain = {
        REPODATA: subdir.repodata.to_json(),
        CURRENT: _current_repodata_document(subdir).to_json(),
        EXPORTS: subdir.exports.to_json(),
    }
    packed = {f"{name}.zst": zstd.compress(data, LEVEL) for name, data in plain.items()}
    base = {BASE: subdir.base.to_json(), INSTRUCTIONS: subdir.instructions.to_json()}
    variants = {}
    for name in subdir.variants:
        data = {**plain, **base}[name.rpartition(".")[0]]
        variants[name] = bz2.compress(data) if name.endswith(".bz2") else zstd.compress(data, LEVEL)
    return {**plain, **packed, **base, **variants, **_shard_files(subdir)}


def _current_repodata_document(subdir: SubdirIndex) -> IndexDocument:
    """Return the newest packages, and those that the file had before of unchanged names."""
    offered = subdir.visible_records
    before = {file for file in subdir.current & offered.keys() if offered[file]["name"] not in subdir.changed}
    files = newest_records_and_dependencies(offered).keys() | before
    document = subdir.repodata.with_edited_records(lambda file, record: record if file in files else None)
    return dataclasses.replace(document, value={**document.value, "removed": []})


def _shard_files(subdir: SubdirIndex) -> dict[str, bytes]:
    """Return one file for each name of a package, and the list of them.

    The list's ``info`` is as it was, with the keys of the whole index; without the time of its creation, so that the
    index does not depend on it.
    """
    import msgpack

    packer = zstd.ZstdCompressor(LEVEL)  # to make one takes longer than to pack a shard
    packed = {name: msgpack.packb(shard) for name, shard in _shards_by_name(subdir).items()}
    shards = {name: packer.compress(data, zstd.ZstdCompressor.FLUSH_FRAME) for name, data in packed.items()}
    digests = {name: hashlib.sha256(data).digest() for name, data in shards.items()}
    before = {key: value for key, value in subdir.listing.get("info", {}).items() if key != "created_at"}
    whole = subdir.repodata.value.get("info") or {}
    base = before.get("base_url") or whole.get("base_url", "")
    info = {**before, "subdir": subdir.name, **whole, "base_url": base, "shards_base_url": f"./{SHARDS}/"}
    listing = {"version": 1, **subdir.listing, "info": info, "shards": digests}
    files = {f"{SHARDS}/{digests[name].hex()}.msgpack.zst": data for name, data in shards.items()}
    return {**files, LISTING: zstd.compress(msgpack.packb(listing), LEVEL)}


def _shards_by_name(subdir: SubdirIndex) -> dict[str, dict[str, Any]]:
    """Return the shards by the name of their package: the records of the whole index, with the run exports."""
    exports = subdir.exports.records()
    removed = sorted(subdir.repodata.value.get("removed") or ())
    shards: dict[str, dict[str, Any]] = {}
    for path, records in subdir.repodata.sections().items():
        for key, record in sorted(records.items()):
            shard = shards.setdefault(record["name"], _empty_shard())
            section = shard[path[0]] if path[0] != REVISION else shard.setdefault(REVISION, {}).setdefault(path[1], {})
            run_exports = exports.get(file_name_of_key(path, key), {}).get("run_exports")
            section[key] = {
                **{field: bytes.fromhex(value) if field in _HASHES else value for field, value in record.items()},
                **({"run_exports": run_exports} if run_exports else {}),
            }
    for file in removed:
        shards.setdefault(file.rsplit("-", 2)[0], _empty_shard())["removed"].append(file)
    return shards


def _empty_shard() -> dict[str, Any]:
    return {**{kind: {} for kind in KINDS}, "removed": []}


# A publication reads the same files before, during and after its checks; kept are the documents of two subdirs.
_parse_index_document = functools.lru_cache(maxsize=12)(IndexDocument.parse)
_WHOLE = (REPODATA, f"{REPODATA}.zst")
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


def without_unreadable_files(name: str, read: Reader, unreadable: set[str]) -> Reader:
    """Return a reader of a subdir's index to which files that are not what their names say are missing.

    Their paths are added to ``unreadable``. Shards alone are missing, too, where the whole index next to them is
    unreadable.
    """

    def read_valid(file: str) -> bytes | None:
        data = read(file)
        if file == LISTING and any(read(other) is not None and read_valid(other) is None for other in _WHOLE):
            data = data if any(map(read_valid, _WHOLE)) else None
        try:
            if data is not None and file.endswith(".msgpack.zst"):
                _unpack_msgpack_object(name, file, data)
            elif data is not None and file.endswith((".json", ".json.zst")):
                plain = _decompress_zstd(name, file, data) if file.endswith(".zst") else data
                _read_index_document(name, file, {file: plain}.get)
        except BrokenIndex:
            unreadable.add(f"{name}/{file}")
            return None
        return data

    return read_valid


def read_packages_only(name: str, read: Reader) -> SubdirIndex:
    """Return the index of a subdir with its packages alone; the rest is empty.

    Raises:
        BrokenIndex: as ``read_whole_index`` does.
    """
    empty = SubdirIndex.empty(name)
    offered = _read_repodata(name, read) or empty.repodata
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
    packed = read(_WHOLE[1])
    if packed is not None:
        data = _decompress_zstd(name, _WHOLE[1], packed)
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
