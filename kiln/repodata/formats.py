"""The files that an index is made of, by what clients ask for.

| file | asked for by | described in |
|---|---|---|
| repodata.json, repodata.json.zst | every client | conda's documentation; CEP 16 of the compression |
| current_repodata.json | conda's classic solver, first of all | conda-index |
| repodata_shards.msgpack.zst, shards/ | pixi, rattler-build, newer condas | CEP 16 |
| run_exports.json | builders | CEP 12 |
| repodata_from_packages.json, patch_instructions.json | whoever indexes next | conda-index |
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import TYPE_CHECKING, Any

from kiln.repodata.current import newest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.repodata.subdir import Subdir

BASE, INSTRUCTIONS, EXPORTS = "repodata_from_packages.json", "patch_instructions.json", "run_exports.json"
SHARDS = "shards"
LEVEL = 3  # the index of 5,000 packages in tens of milliseconds; level 19 takes seconds and saves a quarter
_HASHES = ("sha256", "md5", "legacy_bz2_md5")


def forms(subdir: Subdir) -> dict[str, bytes]:
    """Return every file of a subdir's index: its name below the subdir, and its content.

    Files below ``shards/`` are named by their content, so they may be written before all others.
    """
    offered = subdir.offered
    told = {
        "repodata.json": _repodata(subdir.name, offered, subdir.removed),
        "current_repodata.json": _repodata(subdir.name, newest(offered), ()),
        EXPORTS: _exports(subdir, offered),
    }
    packed = {f"{name}.zst": zstd.compress(data, LEVEL) for name, data in told.items()}
    kept = {BASE: _repodata(subdir.name, subdir.records, ()), INSTRUCTIONS: _instructions(subdir)}
    return {**told, **packed, **kept, **_shards(subdir, offered)}


def _repodata(name: str, records: Mapping[str, Mapping[str, Any]], removed: Iterable[str]) -> bytes:
    return _json({"info": {"subdir": name}, **_kinds(records), "removed": sorted(removed), "repodata_version": 1})


def _exports(subdir: Subdir, offered: Mapping[str, object]) -> bytes:
    told = {file: subdir.run_exports.get(file, {"run_exports": {}}) for file in offered}
    return _json({"info": {"subdir": subdir.name, "version": 1}, **_kinds(told)})


def _instructions(subdir: Subdir) -> bytes:
    fixed = {"patch_instructions_version": 1, "remove": sorted(subdir.removed), "revoke": []}
    return _json({**fixed, **_kinds(subdir.patches)})


def _kinds(records: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Packages apart by their format, as everywhere in an index."""
    return {
        "packages": {file: told for file, told in records.items() if not file.endswith(".conda")},
        "packages.conda": {file: told for file, told in records.items() if file.endswith(".conda")},
    }


def _shards(subdir: Subdir, offered: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    """Return one file for each name of a package, and the list of them."""
    import msgpack

    by_name: dict[str, dict[str, dict[str, Any]]] = {}
    for file, record in offered.items():
        exports = subdir.run_exports.get(file, {}).get("run_exports")
        by_name.setdefault(record["name"], {})[file] = _binary(
            {**record, "run_exports": exports} if exports else record
        )
    shards = {
        name: zstd.compress(msgpack.packb({**_kinds(records), "removed": []}), LEVEL)
        for name, records in by_name.items()
    }
    digests = {name: hashlib.sha256(data).digest() for name, data in shards.items()}
    info = {"subdir": subdir.name, "base_url": "", "shards_base_url": f"./{SHARDS}/"}
    listing = zstd.compress(msgpack.packb({"version": 1, "info": info, "shards": digests}), LEVEL)
    files = {f"{SHARDS}/{digests[name].hex()}.msgpack.zst": data for name, data in shards.items()}
    return {**files, "repodata_shards.msgpack.zst": listing}


def _binary(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: bytes.fromhex(value) if key in _HASHES else value for key, value in record.items()}


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
