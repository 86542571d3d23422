"""``channeldata.json``: facts on a channel's packages by their names, for people and for older builders.

conda-index documents the form. kiln does not create it; where a channel has one, builders
(``conda build --use-channeldata``) read the run exports from it, so new packages are added.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from kiln.errors import BrokenIndex
from kiln.repodata.index_document import FAULTS, IndexDocument
from kiln.versions import Version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.repodata.index_entry import IndexEntry

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
        "subdirs": _subdirs_including(existing.get("subdirs"), entry.subdir),
        "timestamp": max(int(entry.record.get("timestamp") or 0) // 1000, int(existing.get("timestamp") or 0)),
    }
    subdirs = _subdirs_including(value.get("subdirs"), entry.subdir)
    return {**value, "packages": {key: packages[key] for key in sorted(packages)}, "subdirs": subdirs}


def _subdirs_including(subdirs: Iterable[str] | None, new: str) -> list[str]:
    return sorted({*(subdirs or ()), new})
