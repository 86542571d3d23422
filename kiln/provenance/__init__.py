"""The provenance of packages: records chained by hashes, signed when there is a key, and bills of materials."""

from __future__ import annotations

from kiln.provenance.hash_chain import Link, last_hash, parsed, sealed, without
from kiln.provenance.record_check import verify
from kiln.provenance.spdx import bill
from kiln.provenance.ssh_signatures import Signers, signer

__all__ = ["Link", "Signers", "bill", "last_hash", "parsed", "sealed", "signer", "verify", "without"]
