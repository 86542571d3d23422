"""The files of an index, in every form that clients request.

| file | requested by | described in |
|---|---|---|
| repodata.json, repodata.json.zst | every client | conda's documentation; CEP 16 of the compression |
| current_repodata.json | conda's classic solver, first of all | conda-index |
| repodata_shards.msgpack.zst, shards/ | pixi, rattler-build, newer condas | CEP 16 |
| run_exports.json | builders | CEP 12 |
| repodata_from_packages.json, patch_instructions.json | the next indexing | conda-index |
"""

from __future__ import annotations

import bz2
import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any

from kiln.repodata.current_repodata import newest_records_and_dependencies
from kiln.repodata.index_document import (
    BASE,
    CURRENT,
    EXPORTS,
    INSTRUCTIONS,
    KINDS,
    LISTING,
    REPODATA,
    REVISION,
    SHARDS,
    file_name_of_key,
)
from kiln.zstd import zstd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.repodata.editable_index import SubdirIndex
    from kiln.repodata.index_document import IndexDocument

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
    variants = {name: _compressed_variant(name, {**plain, **base}) for name in subdir.variants}
    return {**plain, **packed, **base, **variants, **_shard_files(subdir)}


def _compressed_variant(name: str, contents: Mapping[str, bytes]) -> bytes:
    plain, ending = name.rsplit(".", 1)
    return bz2.compress(contents[plain]) if ending == "bz2" else zstd.compress(contents[plain], LEVEL)


def _current_repodata_document(subdir: SubdirIndex) -> IndexDocument:
    """Return the newest packages, and those that the file had before of unchanged names."""
    offered = subdir.visible_records
    before = {file for file in subdir.current & offered.keys() if offered[file]["name"] not in subdir.changed}
    files = newest_records_and_dependencies(offered).keys() | before
    document = subdir.repodata.with_edited_records(lambda file, record: record if file in files else None)
    return dataclasses.replace(document, value={**document.value, "removed": []})


def _shard_files(subdir: SubdirIndex) -> dict[str, bytes]:
    """Return one file for each name of a package, and the list of them."""
    import msgpack

    packer = zstd.ZstdCompressor(LEVEL)  # to make one takes longer than to pack a shard
    packed = {name: msgpack.packb(shard) for name, shard in _shards_by_name(subdir).items()}
    shards = {name: packer.compress(data, zstd.ZstdCompressor.FLUSH_FRAME) for name, data in packed.items()}
    digests = {name: hashlib.sha256(data).digest() for name, data in shards.items()}
    listing = {"version": 1, **subdir.listing, "info": _shard_list_info(subdir), "shards": digests}
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
            section[key] = _with_binary_hashes({**record, "run_exports": run_exports} if run_exports else record)
    for file in removed:
        shards.setdefault(file.rsplit("-", 2)[0], _empty_shard())["removed"].append(file)
    return shards


def _empty_shard() -> dict[str, Any]:
    return {**{kind: {} for kind in KINDS}, "removed": []}


def _shard_list_info(subdir: SubdirIndex) -> dict[str, Any]:
    """Return the ``info`` of the list of shards: as it was, with the keys of the whole index.

    The time of its creation is left out, so that the index does not depend on it.
    """
    before = {key: value for key, value in subdir.listing.get("info", {}).items() if key != "created_at"}
    whole = subdir.repodata.value.get("info") or {}
    base = before.get("base_url") or whole.get("base_url", "")
    return {**before, "subdir": subdir.name, **whole, "base_url": base, "shards_base_url": f"./{SHARDS}/"}


def _with_binary_hashes(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: bytes.fromhex(value) if key in _HASHES else value for key, value in record.items()}
