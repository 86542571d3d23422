"""The signatures of records, by ssh-keygen."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from kiln import provenance
from kiln.errors import ProvenanceBroken, UsageError
from kiln.provenance import AllowedSigners
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
    sign = provenance.signing_function(tmp_path / "ours", env=os.environ)
    (link,) = provenance.parsed_lines(provenance.sealed_lines([record("a-1-0.conda")], "", sign))
    signers = AllowedSigners(file=allowed, env=os.environ)
    assert signers.signer_of(link.hash, link.signature) == "release@example.org"
    theirs = provenance.signing_function(tmp_path / "theirs", env=os.environ)(link.hash)
    for text, signature in ((link.hash, theirs), ("another", link.signature), (link.hash, ""), (link.hash, "no")):
        with pytest.raises(ProvenanceBroken, match="not signed"):
            signers.signer_of(text, signature)
    with pytest.raises(UsageError, match="cannot sign"):
        provenance.signing_function(tmp_path / "none", env=os.environ)("text")
