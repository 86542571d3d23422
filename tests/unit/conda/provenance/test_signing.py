"""The list of a package's attestations tells who has signed which, and never takes a claim for a signature."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kiln.conda.provenance.bundles import publication_statement, slsa_statement
from kiln.conda.provenance.check import ListedAttestation, TrustedSigner, package_attestations
from tests.fake_sigstore import GITHUB, WORKFLOW, FakeSigstore
from tests.publishing import KEY, another_key

FILE, SHA256, CHANNEL = "small-1.2-h0_0.conda", "ab" * 32, "https://channel.example/small"
PUBLISH, MADE = publication_statement(FILE, SHA256, CHANNEL), slsa_statement(FILE, SHA256, {"buildDefinition": {}})
OTHER, SIGSTORE = another_key(), FakeSigstore()
ROOT = json.dumps(SIGSTORE.trusted_root())
IDENTITY = TrustedSigner(identity=WORKFLOW, issuer=GITHUB, root=ROOT)
NAME, OTHER_NAME = f"the key {KEY.public.name}", f"the key {OTHER.public.name}"


def all_listed(*values: Any, signers: list[TrustedSigner]) -> tuple[ListedAttestation, ...]:
    data = json.dumps([value if isinstance(value, dict) else json.loads(value) for value in values]).encode()
    return package_attestations(data, file=FILE, sha256=SHA256, channel=CHANNEL, signers=signers)


def test_each_attestation_has_its_signer() -> None:
    values = (
        KEY.sign_statement(PUBLISH),
        OTHER.sign_statement(PUBLISH),
        KEY.sign_statement(MADE),
        OTHER.sign_statement(MADE),
    )
    one = all_listed(*values, signers=[TrustedSigner(key=KEY.public)])
    assert [(item.signer, item.verified) for item in one] == [(NAME, True), (OTHER_NAME, False)] * 2
    assert one[0].description(4) == f"attestation 1 of 4: published to {CHANNEL}, signed by {NAME}"
    assert one[3].description(4) == f"attestation 4 of 4: how it was built, not verified; it names {OTHER_NAME}"
    both = all_listed(*values, signers=[TrustedSigner(key=KEY.public), TrustedSigner(key=OTHER.public)])
    assert [(item.signer, item.verified) for item in both] == [(NAME, True), (OTHER_NAME, True)] * 2


def test_a_key_that_is_named_and_has_not_signed_is_a_claim() -> None:
    forged = json.loads(OTHER.sign_statement(PUBLISH))
    forged["verificationMaterial"]["publicKey"]["hint"] = KEY.public.name
    (item,) = all_listed(forged, signers=[TrustedSigner(key=KEY.public)])
    assert (item.signer, item.verified) == (NAME, False)
    assert "not verified; it names" in item.description(1)


@pytest.mark.processes
def test_several_identities_are_told_apart() -> None:
    key = FakeSigstore()
    second = "https://github.com/other/feedstock/.github/workflows/publish.yml@refs/heads/main"
    values = (
        SIGSTORE.bundle(PUBLISH),
        SIGSTORE.bundle(PUBLISH, identity=second),
        key.bundle(PUBLISH),
        KEY.sign_statement(MADE),
    )
    items = all_listed(*values, signers=[IDENTITY, TrustedSigner(identity=second, issuer=GITHUB, root=ROOT)])
    assert [(item.signer, item.verified) for item in items] == [
        (f"{WORKFLOW} ({GITHUB})", True),
        (f"{second} ({GITHUB})", True),
        (f"the identity {WORKFLOW}", False),
        (NAME, False),
    ]
    anybody = all_listed(*values, signers=[TrustedSigner(root=ROOT)])
    assert [item.verified for item in anybody] == [True, True, False, False]


def test_invalid_attestations_and_those_of_other_packages_say_why() -> None:
    other = KEY.sign_statement(publication_statement("other-1-0.conda", SHA256, CHANNEL))
    first, second = all_listed({"junk": 1}, other, signers=[TrustedSigner(key=KEY.public)])
    assert (first.verified, second.verified) == (False, False)
    assert first.description(2) == "attestation 1 of 2: invalid, it is not a Sigstore bundle of a known version"
    assert second.description(2) == f"attestation 2 of 2: invalid, it is about other-1-0.conda, not {FILE}"
