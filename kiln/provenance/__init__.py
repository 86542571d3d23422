"""The provenance of packages: records chained by hashes, signed when there is a key, and bills of materials."""

from __future__ import annotations

from kiln.provenance.hash_chain import Link, last_hash, parsed_lines, sealed_lines, without_packages
from kiln.provenance.record_check import verify
from kiln.provenance.spdx import bill
from kiln.provenance.ssh_signatures import AllowedSigners, signing_function

__all__ = [
    "AllowedSigners",
    "Link",
    "bill",
    "last_hash",
    "parsed_lines",
    "sealed_lines",
    "signing_function",
    "verify",
    "without_packages",
]
