"""The statements, bills of materials and attestations of packages, as files of a channel."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from kiln.base.errors import BrokenPackage, ProvenanceBroken
from kiln.conda.provenance import check
from kiln.conda.provenance.bundles import (
    PUBLISH,
    SIDECAR_ENDING,
    SIDECAR_FIELD,
    parse_sidecar,
    serialize_sidecar,
    sidecar_hash,
    sidecar_with_added_bundles,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.conda.index import IndexEntry
    from kiln.conda.provenance.check import ParsedBundle
    from kiln.conda.provenance.records import ReleaseAttestations
    from kiln.publish.model import Journal, Store
    from kiln.publish.stores.folder import FolderStore


STATEMENT = "provenance/{}.intoto.json"  # by the path of the package
BILL = "provenance/sbom/{}.spdx.json"  # by the hash of the package
CYCLONEDX = "provenance/sbom/{}.cdx.json"


def write_documents(store: Store, journal: Journal, attestation: ReleaseAttestations | None) -> None:
    """Write the statements and the bills of materials of new packages."""
    if attestation is None:
        return
    for path in journal.fresh:
        for place, data in attestation.documents.get(journal.packages[path], {}).items():
            store.write(place, data)


def remove_documents(store: Store, journal: Journal) -> None:
    """Remove the statements and the bills of materials of a publication's packages."""
    for path in journal.fresh:
        sha256 = journal.packages[path]
        for place in (STATEMENT.format(path), BILL.format(sha256), CYCLONEDX.format(sha256)):
            store.remove(place)


def write_package_sidecar(store: Store, entry: IndexEntry, attestation: ReleaseAttestations | None) -> IndexEntry:
    """Write the sidecar of a new package, and return its entry with its hash.

    Attestations of others that are there stay, with the own ones added. What an interrupted publication of the same
    signer wrote is not signed again.
    """
    before = store.read(f"{entry.path}{SIDECAR_ENDING}")
    others = _bundles_about_file(before or b"", entry.file, entry.sha256)
    data = serialize_sidecar(json.dumps(one).encode() for one in others) if others else b""
    if before is not None and _has_only_statements_about_file(before, entry.file, entry.sha256):
        data = before  # its bytes stay
    if attestation and attestation.bundles and not (data and attestation.is_own(entry.sha256, data)):
        own = attestation.bundles(entry.sha256)
        if own:
            data = sidecar_with_added_bundles(data, own)
            _require_readable_sidecar(data, entry.path)
    if not data:
        return entry
    if before is not None and before != data:
        store.write(f"{entry.path}{SIDECAR_ENDING}.{sidecar_hash(before)}", before)
    return _write_sidecar(store, entry, data)


def attest_published_package(store: Store, entry: IndexEntry, attestation: ReleaseAttestations) -> IndexEntry | None:
    """Sign a package that the channel has already, unless this signer has; return its entry with its sidecar's hash.

    The channel's statement becomes the signed one. None where others have attested another one.
    """
    sidecar = store.read(f"{entry.path}{SIDECAR_ENDING}") or b""
    if sidecar and attestation.is_own(entry.sha256, sidecar):
        if entry.record.get(SIDECAR_FIELD) == sidecar_hash(sidecar):
            return entry
        return write_package_sidecar(store, entry, attestation)  # the index lacks it: the signing was interrupted
    documents, statement = attestation.documents[entry.sha256], STATEMENT.format(entry.path)
    if store.read(statement) != documents[statement]:
        if _bundles_about_file(sidecar, entry.file, entry.sha256):
            return None
        for place, data in documents.items():
            store.write(place, data)
    return write_package_sidecar(store, entry, attestation)


def adopt_existing_sidecar(store: Store, entry: IndexEntry) -> IndexEntry:
    """Return the entry of a package with the hash of its sidecar, where there is a valid one."""
    data = store.read(f"{entry.path}{SIDECAR_ENDING}")
    if data is None or not _has_only_statements_about_file(data, entry.file, entry.sha256):
        return entry
    return _write_sidecar(store, entry, data)


def write_content_addressed_sidecar(store: Store, path: str, record: Mapping[str, object]) -> str:
    """Return the hash of a sidecar that the index does not have yet; its content-addressed copy is written.

    Empty when nothing changed.
    """
    data = store.read(f"{path}{SIDECAR_ENDING}")
    if data is None or sidecar_hash(data) == record.get(SIDECAR_FIELD):
        return ""
    if not _has_only_statements_about_file(data, path.partition("/")[2], str(record.get("sha256"))):
        raise BrokenPackage(
            f"{path}{SIDECAR_ENDING} has no attestation of this package",
            hint="replace it, or move it out of the channel",
        )
    before = store.read(f"{path}{SIDECAR_ENDING}.{record[SIDECAR_FIELD]}") if record.get(SIDECAR_FIELD) else None
    if before is not None:
        old = parse_sidecar(before)
        if parse_sidecar(data)[: len(old)] != old:
            why = "a channel keeps all attestations that it has accepted (CEP 50)"
            raise BrokenPackage(f"{path}{SIDECAR_ENDING} lacks attestations that the channel had", why=why)
    store.write(f"{path}{SIDECAR_ENDING}.{sidecar_hash(data)}", data)
    return sidecar_hash(data)


def extract_own_publication_bundle(folder: FolderStore, path: str) -> Path | None:
    """Return a file with the own bundle of a package's publication, the last one in its sidecar, for an upload.

    None where a key has signed it: servers that take attestations verify identities alone.
    """
    data = folder.read(f"{path}{SIDECAR_ENDING}")
    publications = [
        one.value for one in _bundles_or_empty_list(data or b"") if one.statement and one.statement.kind == PUBLISH
    ]
    if not publications or "certificate" not in publications[-1]["verificationMaterial"]:
        return None
    bundle = f"{path}.sigstore.json"
    folder.write(bundle, json.dumps(publications[-1]).encode())
    return folder.root / bundle


def undo_sidecar_writes(store: Store, path: str) -> None:
    """Remove the sidecars that a publication wrote; one of others that was there before is restored."""
    data, before = store.read(f"{path}{SIDECAR_ENDING}"), b""
    for name in store.sidecar_paths(path):
        other = store.read(name) or b""
        if (
            name != f"{path}{SIDECAR_ENDING}"
            and other != data
            and len(other) > len(before)
            and _is_subset_of_sidecar(other, data)
        ):
            before = other
    for name in store.sidecar_paths(path):
        if not before or name not in {f"{path}{SIDECAR_ENDING}", f"{path}{SIDECAR_ENDING}.{sidecar_hash(before)}"}:
            store.remove(name)
    if before:
        store.write(f"{path}{SIDECAR_ENDING}", before)


def remove_sidecars(store: Store, path: str) -> None:
    """Remove all sidecars of a package."""
    for sidecar in store.sidecar_paths(path):
        store.remove(sidecar)


def _write_sidecar(store: Store, entry: IndexEntry, data: bytes) -> IndexEntry:
    store.write(f"{entry.path}{SIDECAR_ENDING}.{sidecar_hash(data)}", data)
    store.write(f"{entry.path}{SIDECAR_ENDING}", data)
    return dataclasses.replace(entry, record={**entry.record, SIDECAR_FIELD: sidecar_hash(data)})


def _require_readable_sidecar(data: bytes, path: str) -> None:
    try:
        parse_sidecar(data)
    except ProvenanceBroken as error:
        raise BrokenPackage(
            f"the attestations of this publication cannot be added to those in {path}{SIDECAR_ENDING}",
            why=error.why,
            hint="remove attestations of others from that file that you do not need",
        ) from error


def _bundles_about_file(data: bytes, file: str, sha256: str) -> list[Mapping[str, Any]]:
    """Return the bundles in a sidecar that can be read and are about a file."""
    return [
        one.value
        for one in _bundles_or_empty_list(data)
        if one.statement and not one.statement.subject_mismatch(file, sha256)
    ]


def _has_only_statements_about_file(data: bytes, file: str, sha256: str) -> bool:
    """Return whether the statements in a sidecar that can be read are about a file, and there is one."""
    bundles = _bundles_or_empty_list(data)
    return bool(bundles) and len(_bundles_about_file(data, file, sha256)) == len(bundles)


def _is_subset_of_sidecar(data: bytes, whole: bytes | None) -> bool:
    """Return whether the valid bundles of a sidecar are all in another one."""
    values = [one.value for one in _bundles_or_empty_list(whole or b"")]
    return all(one.value in values for one in _bundles_or_empty_list(data) if one.statement)


def _bundles_or_empty_list(data: bytes) -> list[ParsedBundle]:
    """Return the bundles in a sidecar; none of an invalid one."""
    try:
        return check.parsed_bundles(data)
    except ProvenanceBroken:
        return []
