"""The files of attestations next to the packages of a channel (CEP 50): ``PACKAGE.sigs`` and ``PACKAGE.sigs.SHA256``.

The second one, named by its content, never changes; the index names its hash. It is written first, then the first one,
then the index, so that whatever a client reads of the index is there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

from kiln.errors import BrokenPackage, ProvenanceBroken
from kiln.provenance import attestation_check, sigstore_bundles, statements
from kiln.publish import channel_file_reader

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.model.provenance import ReleaseAttestations
    from kiln.provenance.attestation_check import ParsedBundle
    from kiln.publish.stores import Store
    from kiln.publish.stores.folder import FolderStore
    from kiln.repodata.index_entry import IndexEntry

FIELD = "attestations_sha256"  # in a record of the index
ENDING = ".sigs"
_HINT = "request the attestations from the channel's owner"


def sidecar_hash(data: bytes) -> str:
    """Return the hash that names a sidecar."""
    return hashlib.sha256(data).hexdigest()


def download_sidecar(url: str, sha256: object) -> bytes:
    """Return the sidecar of the package at a URL as clients find it: the index names it by its hash (CEP 50).

    Raises:
        ProvenanceBroken: when the hash is invalid, the file is missing, or it is another one.
        LimitExceeded: when it is too large.
        DownloadFailed, TokenRefused: when the server does not send it.
    """
    folder, _, file = url.rpartition("/")
    if not isinstance(sha256, str) or not statements.SHA256.fullmatch(sha256):
        raise ProvenanceBroken(f"the index has an invalid attestations_sha256 of {file}", hint=_HINT)
    data = channel_file_reader.channel_reader(folder, sigstore_bundles.LARGEST_SIDECAR)(f"{file}{ENDING}.{sha256}")
    if data is None:
        raise ProvenanceBroken(
            f"the attestations of {file} are missing", why=f"the index names {file}{ENDING}.{sha256}", hint=_HINT
        )
    if sidecar_hash(data) != sha256:
        raise ProvenanceBroken(
            f"the attestations of {file} are not those of the index",
            why=f"their hash is {sidecar_hash(data)}",
            hint=_HINT,
        )
    return data


def write_package_sidecar(store: Store, entry: IndexEntry, attestation: ReleaseAttestations | None) -> IndexEntry:
    """Write the sidecar of a new package, and return its entry with its hash.

    Attestations of others that are there stay, with the own ones added. What an interrupted publication of the same
    signer wrote is not signed again.

    Raises:
        BrokenPackage: when there are too many attestations of others.
    """
    before = store.read(f"{entry.path}{ENDING}")
    others = _bundles_about_file(before or b"", entry.file, entry.sha256)
    data = sigstore_bundles.serialize_sidecar(json.dumps(one).encode() for one in others) if others else b""
    if before is not None and _has_only_statements_about_file(before, entry.file, entry.sha256):
        data = before  # its bytes stay
    if attestation and attestation.bundles and not (data and attestation.is_own(entry.sha256, data)):
        own = attestation.bundles(entry.sha256)
        if own:
            data = sigstore_bundles.sidecar_with_added_bundles(data, own)
            _require_readable_sidecar(data, entry.path)
    if not data:
        return entry
    if before is not None and before != data:
        store.write(f"{entry.path}{ENDING}.{sidecar_hash(before)}", before)
    return _write_sidecar(store, entry, data)


def adopt_existing_sidecar(store: Store, entry: IndexEntry) -> IndexEntry:
    """Return the entry of a package with the hash of its sidecar, where there is a valid one."""
    data = store.read(f"{entry.path}{ENDING}")
    if data is None or not _has_only_statements_about_file(data, entry.file, entry.sha256):
        return entry
    return _write_sidecar(store, entry, data)


def write_content_addressed_sidecar(store: Store, path: str, record: Mapping[str, object]) -> str:
    """Return the hash of a sidecar that the index does not have yet; its content-addressed copy is written.

    Empty when nothing changed.

    Raises:
        BrokenPackage: when the sidecar is invalid, is about another file, or lacks attestations that the index had.
    """
    data = store.read(f"{path}{ENDING}")
    if data is None or sidecar_hash(data) == record.get(FIELD):
        return ""
    if not _has_only_statements_about_file(data, path.partition("/")[2], str(record.get("sha256"))):
        raise BrokenPackage(
            f"{path}{ENDING} has no attestation of this package", hint="replace it, or move it out of the channel"
        )
    before = store.read(f"{path}{ENDING}.{record[FIELD]}") if record.get(FIELD) else None
    if before is not None:
        old = sigstore_bundles.parse_sidecar(before)
        if sigstore_bundles.parse_sidecar(data)[: len(old)] != old:
            why = "a channel keeps all attestations that it has accepted (CEP 50)"
            raise BrokenPackage(f"{path}{ENDING} lacks attestations that the channel had", why=why)
    store.write(f"{path}{ENDING}.{sidecar_hash(data)}", data)
    return sidecar_hash(data)


def extract_own_publication_bundle(folder: FolderStore, path: str) -> Path | None:
    """Return a file with the own bundle of a package's publication, the last one in its sidecar, for an upload.

    None where a key has signed it: servers that take attestations verify identities alone.
    """
    data = folder.read(f"{path}{ENDING}")
    publications = [
        one.value
        for one in _bundles_or_empty_list(data or b"")
        if one.statement and one.statement.kind == statements.PUBLISH
    ]
    if not publications or "certificate" not in publications[-1]["verificationMaterial"]:
        return None
    bundle = f"{path}.sigstore.json"
    folder.write(bundle, json.dumps(publications[-1]).encode())
    return folder.root / bundle


def undo_sidecar_writes(store: Store, path: str) -> None:
    """Remove the sidecars that a publication wrote; one of others that was there before is restored."""
    data, before = store.read(f"{path}{ENDING}"), b""
    for name in store.sidecar_paths(path):
        other = store.read(name) or b""
        if (
            name != f"{path}{ENDING}"
            and other != data
            and len(other) > len(before)
            and _is_subset_of_sidecar(other, data)
        ):
            before = other
    for name in store.sidecar_paths(path):
        if not before or name not in {f"{path}{ENDING}", f"{path}{ENDING}.{sidecar_hash(before)}"}:
            store.remove(name)
    if before:
        store.write(f"{path}{ENDING}", before)


def remove_sidecars(store: Store, path: str) -> None:
    """Remove all sidecars of a package."""
    for sidecar in store.sidecar_paths(path):
        store.remove(sidecar)


def _write_sidecar(store: Store, entry: IndexEntry, data: bytes) -> IndexEntry:
    """Write a sidecar, and return its package's entry with its hash."""
    store.write(f"{entry.path}{ENDING}.{sidecar_hash(data)}", data)
    store.write(f"{entry.path}{ENDING}", data)
    return dataclasses.replace(entry, record={**entry.record, FIELD: sidecar_hash(data)})


def _require_readable_sidecar(data: bytes, path: str) -> None:
    """Refuse a sidecar that readers refuse.

    Raises:
        BrokenPackage: with the file of the attestations of others.
    """
    try:
        sigstore_bundles.parse_sidecar(data)
    except ProvenanceBroken as error:
        raise BrokenPackage(
            f"the attestations of this publication cannot be added to those in {path}{ENDING}",
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
        return attestation_check.parsed_bundles(data)
    except ProvenanceBroken:
        return []
