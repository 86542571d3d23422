"""The files of attestations next to the packages of a channel (CEP 50): ``PACKAGE.sigs`` and ``PACKAGE.sigs.SHA256``.

The second one, named by its content, never changes; the index names its hash. It is written first, then the first one,
then the index, so that whatever a client reads of the index is there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING

from kiln.errors import BrokenPackage, ProvenanceBroken
from kiln.provenance import bundles, statements

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kiln.model.provenance import Attestation
    from kiln.publish.stores import Store
    from kiln.publish.stores.folder import Folder
    from kiln.repodata import IndexEntry

FIELD = "attestations_sha256"  # in a record of the index
ENDING = ".sigs"


def digest(data: bytes) -> str:
    """Return the hash that names a sidecar."""
    return hashlib.sha256(data).hexdigest()


def attested(store: Store, entries: Iterable[IndexEntry], attestation: Attestation | None) -> tuple[IndexEntry, ...]:
    """Write the sidecars of new packages, and return the entries with their hashes.

    A sidecar that an interrupted publication wrote stays, so nothing is signed twice.
    """
    return tuple(_attested(store, entry, attestation) for entry in entries)


def adopted(store: Store, entry: IndexEntry) -> IndexEntry:
    """Return the entry of a package with the hash of its sidecar, where there is one."""
    return _attested(store, entry, None)


def changed(store: Store, path: str, record: Mapping[str, object]) -> str:
    """Return the hash of a sidecar that the index does not have yet; its content-addressed copy is written.

    Empty when nothing changed.

    Raises:
        BrokenPackage: when the sidecar is invalid, is about another file, or lacks attestations that the index had.
    """
    data = store.read(f"{path}{ENDING}")
    if data is None or digest(data) == record.get(FIELD):
        return ""
    if not _is_about(data, path.partition("/")[2], str(record.get("sha256"))):
        raise BrokenPackage(f"{path}{ENDING} has no attestation of this package", hint="delete or replace it")
    before = store.read(f"{path}{ENDING}.{record[FIELD]}") if record.get(FIELD) else None
    if before is not None:
        old = bundles.values(before)
        if bundles.values(data)[: len(old)] != old:
            why = "a channel keeps all attestations that it has accepted (CEP 50)"
            raise BrokenPackage(f"{path}{ENDING} lacks attestations that the channel had", why=why)
    store.write(f"{path}{ENDING}.{digest(data)}", data)
    return digest(data)


def first_bundle(folder: Folder, path: str) -> Path | None:
    """Return a file with the first bundle of a package's sidecar, that of its publication, for an upload.

    None where a key has signed it: servers that take attestations verify identities alone.
    """
    data = folder.read(f"{path}{ENDING}")
    first = {} if data is None else bundles.values(data)[0]
    if "certificate" not in first.get("verificationMaterial", {}):
        return None
    bundle = f"{path}.sigstore.json"
    folder.write(bundle, json.dumps(first).encode())
    return folder.root / bundle


def remove(store: Store, path: str) -> None:
    """Remove all sidecars of a package."""
    for sidecar in store.sidecars(path):
        store.remove(sidecar)


def _attested(store: Store, entry: IndexEntry, attestation: Attestation | None) -> IndexEntry:
    data = store.read(f"{entry.path}{ENDING}")
    if data is None or not _is_about(data, entry.file, entry.sha256):
        made = attestation.bundles(entry.sha256) if attestation and attestation.bundles else ()
        if not made:
            return entry
        data = bundles.sidecar(made)
    store.write(f"{entry.path}{ENDING}.{digest(data)}", data)
    store.write(f"{entry.path}{ENDING}", data)
    return dataclasses.replace(entry, record={**entry.record, FIELD: digest(data)})


def _is_about(data: bytes, file: str, sha256: str) -> bool:
    """Return whether the statements in a sidecar that can be read are about a file, and there is one."""
    try:
        values = bundles.values(data)
        parsed = [statements.parsed_statement(bundles.parsed_bundle(value).payload) for value in values]
    except (ProvenanceBroken, ValueError):
        return False
    return not any(statement.refusal(file, sha256) for statement in parsed)
