"""Where the records of how packages were made lie in a channel, and how a chain of them goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import provenance

if TYPE_CHECKING:
    from kiln.model.provenance import Attestation

CHAIN = "provenance/chain.jsonl"
BILL = "provenance/sbom/{}.spdx.json"  # by the hash of the package


def extended(chain: bytes, attested: Attestation) -> bytes:
    """Return a chain with the records of a publication, once, whoever asks again."""
    known = {sha256 for sha256 in attested.boms if sha256.encode() in chain}
    return chain if known else chain + attested.seal(provenance.last_hash(chain))
