"""The records of how packages were made, as files of a channel: a chain of records, and a bill of materials each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.provenance import hash_chain

if TYPE_CHECKING:
    from kiln.model.provenance import ReleaseAttestations
    from kiln.publish.journal import Journal
    from kiln.publish.stores import Store

CHAIN = "provenance/chain.jsonl"
BILL = "provenance/sbom/{}.spdx.json"  # by the hash of the package
CYCLONEDX = "provenance/sbom/{}.cdx.json"


def read_record_chain(store: Store) -> bytes:
    """Return the chain of records in a store, by default empty."""
    return store.read(CHAIN) or b""


def write_bills_and_return_chain(store: Store, journal: Journal, attestation: ReleaseAttestations | None) -> bytes:
    """Write the bills of new packages, and return the chain with their records, each once however often this runs."""
    chain = read_record_chain(store)
    if attestation is None:
        return chain
    for sha256, bill in attestation.boms.items():
        if sha256 in journal.packages.values():
            store.write(BILL.format(sha256), bill)
            if sha256 in attestation.cyclonedx:
                store.write(CYCLONEDX.format(sha256), attestation.cyclonedx[sha256])
    recorded = any(sha256.encode() in chain for sha256 in attestation.boms)
    return chain if recorded else chain + attestation.seal(hash_chain.last_record_hash(chain))


def chain_without_publication(store: Store, journal: Journal) -> bytes:
    """Return the chain without the records of a publication."""
    return hash_chain.chain_without_trailing_records(
        read_record_chain(store), (journal.packages[path] for path in journal.fresh)
    )


def remove_bills_of_materials(store: Store, journal: Journal) -> None:
    """Remove the bills of a publication's packages."""
    for path in journal.fresh:
        store.remove(BILL.format(journal.packages[path]))
        store.remove(CYCLONEDX.format(journal.packages[path]))
