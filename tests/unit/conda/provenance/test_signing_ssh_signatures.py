"""The signatures of records, by ssh-keygen."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import ProvenanceBroken, UsageError
from kiln.conda.provenance import records, signing
from kiln.conda.provenance.signing import AllowedSigners
from tests.publishing import record

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.processes
@pytest.mark.needs("ssh-keygen")
def test_a_signature_holds_for_its_text_and_its_signer_alone(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        words = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name))
        subprocess.run(words, check=True)
    allowed = tmp_path / "allowed"
    allowed.write_text(f"release@example.org {(tmp_path / 'ours.pub').read_text()}")
    sign = signing.signing_function(tmp_path / "ours", env=os.environ)
    (link,) = records.parse_chain(records.serialize_chain([record("a-1-0.conda")], "", sign))
    signers = AllowedSigners(file=allowed, env=os.environ)
    assert signers.verified_signer(link.hash, link.signature) == "release@example.org"
    theirs = signing.signing_function(tmp_path / "theirs", env=os.environ)(link.hash)
    for text, signature in ((link.hash, theirs), ("another", link.signature), (link.hash, ""), (link.hash, "no")):
        with pytest.raises(ProvenanceBroken, match="not signed"):
            signers.verified_signer(text, signature)
    with pytest.raises(UsageError, match="cannot sign"):
        signing.signing_function(tmp_path / "none", env=os.environ)("text")
