"""Attestations that are valid are accepted; no forged, replayed, cut or otherwise wrong one is."""

from __future__ import annotations

import base64
import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kiln.base.errors import ProvenanceBroken, UsageError
from kiln.conda.provenance import bundles
from kiln.conda.provenance import check as provenance_check
from kiln.conda.provenance.check import ListedAttestation, PublicKey, TrustedSigner, package_attestations
from kiln.conda.provenance.signing import PrivateKey
from tests import fake_sigstore, publishing
from tests.fake_sigstore import COMMIT, GITHUB, WORKFLOW, FakeSigstore
from tests.publishing import record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILE, SHA256, CHANNEL = "small-1.2-h0_0.conda", "ab" * 32, "https://channel.example/small"
OTHER = FakeSigstore()
SIGSTORE = FakeSigstore()
ROOT = json.dumps(SIGSTORE.trusted_root())
IDENTITY = TrustedSigner(identity=WORKFLOW, issuer=GITHUB, root=ROOT)


def private(key: Any) -> PrivateKey:
    return PrivateKey(key=key, public=PublicKey.from_library_key(key.public_key()))


KEY, STRANGER = private(ed25519.Ed25519PrivateKey.generate()), private(ec.generate_private_key(ec.SECP256R1()))
BY_KEY = TrustedSigner(key=KEY.public)
PUBLISH = bundles.publication_statement(FILE, SHA256, CHANNEL)
MADE = bundles.slsa_statement(FILE, SHA256, {"buildDefinition": {"buildType": "x"}})
Values = list[dict[str, Any]]


def check(data: bytes, signer: TrustedSigner, channel: str | None = CHANNEL, **changed: str) -> Any:
    facts = {"file": FILE, "sha256": SHA256, **changed}
    return provenance_check.verified_attestation_facts(data, channel=channel, signers=[signer], **facts)


def by_key(payload: bytes, key: PrivateKey = KEY) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(key.sign_statement(payload))
    return value


def packed(*values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode()


def changed(**fields: Any) -> bytes:
    """Return a publish attestation with fields replaced; those that are None are left out."""
    value = {**json.loads(PUBLISH), **fields}
    return json.dumps({key: field for key, field in value.items() if field is not ...}).encode()


def subject(name: Any = FILE, sha256: Any = SHA256) -> list[dict[str, Any]]:
    return [{"name": name, "digest": {"sha256": sha256}}]


PAYLOADS: dict[str, bytes] = {
    "another package's name": changed(subject=subject("other-1-0.conda")),
    "another file's hash": changed(subject=subject(sha256="cd" * 32)),
    "a hash in capitals": changed(subject=subject(sha256=SHA256.upper())),
    "a hash cut off": changed(subject=subject(sha256=SHA256[:63])),
    "a hash that is a number": changed(subject=subject(sha256=7)),
    "a hash of another algorithm": changed(subject=[{"name": FILE, "digest": {"sha512": SHA256}}]),
    "no subject": changed(subject=[]),
    "two subjects": changed(subject=[*subject(), *subject("other-1-0.conda")]),
    "a subject with two hashes": changed(subject=[*subject(), *subject(sha256="cd" * 32)]),
    "a subject without a name": changed(subject=[{"digest": {"sha256": SHA256}}]),
    "another channel": changed(predicate={"targetChannel": "https://channel.example/other"}),
    "the channel of a prefix": changed(predicate={"targetChannel": CHANNEL[:-2]}),
    "the channel in other letters": changed(predicate={"targetChannel": CHANNEL.replace("small", "Small")}),
    "a channel with a slash at its end": changed(predicate={"targetChannel": f"{CHANNEL}/"}),
    "a channel that is a name": changed(predicate={"targetChannel": "small"}),
    "a channel that is too long": changed(predicate={"targetChannel": f"https://a.example/{'a' * 3000}"}),
    "no channel": changed(predicate=None),
    "a predicate that is a list": changed(predicate=[CHANNEL]),
    "the type of another predicate": changed(predicateType="https://example.org/review/v1"),
    "the draft's type of the predicate": changed(predicateType="https://schemas.conda.org/attestations/publish/v1"),
    "SLSA's type alone": MADE,
    "no type of a predicate": changed(predicateType=...),
    "an older type of statement": changed(_type="https://in-toto.io/Statement/v0.1"),
    "no type of statement": changed(_type=...),
    "a key twice": PUBLISH[:-1] + b',"predicateType":"' + bundles.PUBLISH.encode() + b'"}',
    "a hash twice": PUBLISH.replace(b'"sha256":', b'"sha256":"' + b"cd" * 32 + b'","sha256":'),
    "cut JSON": PUBLISH[:-5],
    "not JSON": b"\xff\xfe",
    "deep JSON": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a number that is none": changed(predicate={"targetChannel": CHANNEL, "x": float("nan")}),
}

BUNDLES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a signature cut off": lambda value: _signature(value, lambda data: data[:-1]),
    "a signature of zeros": lambda value: _signature(value, lambda data: bytes(len(data))),
    "a flipped bit": lambda value: _signature(value, lambda data: bytes([data[0] ^ 1, *data[1:]])),
    "no signature": lambda value: value["dsseEnvelope"].update(signatures=[]),
    "the signature twice": lambda value: value["dsseEnvelope"].update(
        signatures=2 * value["dsseEnvelope"]["signatures"]
    ),
    "a signature that is text": lambda value: value["dsseEnvelope"].update(signatures=[{"sig": "!"}]),
    "another payload": lambda value: value["dsseEnvelope"].update(payload=fake_sigstore.b64(MADE)),
    "a changed payload": lambda value: value["dsseEnvelope"].update(payload=fake_sigstore.b64(PUBLISH + b" ")),
    "a type of payload other than in-toto": lambda value: value["dsseEnvelope"].update(payloadType="text/plain"),
    "no envelope": lambda value: value.pop("dsseEnvelope"),
    "an envelope that is a list": lambda value: value.update(dsseEnvelope=[]),
    "a signature of a message in its place": lambda value: value.update(messageSignature={}),
    "no material": lambda value: value.pop("verificationMaterial"),
    "empty material": lambda value: value.update(verificationMaterial={}),
    "a chain of certificates that is an object": lambda value: _chained(value, {}),
    "a chain of certificates that is a number": lambda value: _chained(value, 5),
    "a chain of certificates that is nothing": lambda value: _chained(value, None),
    "a chain of certificates that is text": lambda value: _chained(value, "text"),
    "an empty chain of certificates": lambda value: _chained(value, []),
    "another type of file": lambda value: value.update(mediaType="application/json"),
    "no type of file": lambda value: value.pop("mediaType"),
}


def _chained(value: dict[str, Any], chain: Any) -> None:
    value.update(verificationMaterial={"x509CertificateChain": {"certificates": chain}})


def _signature(value: dict[str, Any], change: Callable[[bytes], bytes]) -> None:
    (one,) = value["dsseEnvelope"]["signatures"]
    one["sig"] = fake_sigstore.b64(change(base64.b64decode(one["sig"])))


ENTRIES: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "no entry in the log": lambda value, _: value["verificationMaterial"].update(tlogEntries=[]),
    "the entry of another bundle": lambda value, other: value["verificationMaterial"].update(
        tlogEntries=other["verificationMaterial"]["tlogEntries"]
    ),
    "another certificate of the identity": lambda value, other: value["verificationMaterial"].update(
        certificate=other["verificationMaterial"]["certificate"]
    ),
    "an entry without promise and proof": lambda value, _: [
        value["verificationMaterial"]["tlogEntries"][0].pop(key) for key in ("inclusionPromise", "inclusionProof")
    ],
    "a later time in the entry": lambda value, _: value["verificationMaterial"]["tlogEntries"][0].update(
        integratedTime="1900000000"
    ),
    "an entry with another body": lambda value, _: value["verificationMaterial"]["tlogEntries"][0].update(
        canonicalizedBody=fake_sigstore.b64(b"{}")
    ),
    "a key in the certificate's place": lambda value, _: value.update(
        verificationMaterial={"publicKey": {"hint": WORKFLOW}, "tlogEntries": []}
    ),
}


def test_what_a_key_signed_is_accepted_with_its_facts() -> None:
    attested = check(packed(by_key(MADE), by_key(PUBLISH)), BY_KEY)
    assert (attested.signer, attested.channel) == (f"the key {KEY.public.name}", CHANNEL)
    assert attested.provenance == {"buildDefinition": {"buildType": "x"}}
    assert check(packed(by_key(PUBLISH, STRANGER)), TrustedSigner(key=STRANGER.public)).channel == CHANNEL
    assert check(packed(by_key(PUBLISH)), BY_KEY, channel=None).channel == CHANNEL
    assert check(packed(by_key(PUBLISH)), BY_KEY, channel=f"{CHANNEL}/").channel == CHANNEL


@pytest.mark.processes
def test_what_an_identity_signed_is_accepted_with_the_moment_and_the_commit() -> None:
    value = SIGSTORE.bundle(PUBLISH)
    attested = check(packed(value), IDENTITY)
    assert (attested.signer, attested.commit) == (f"{WORKFLOW} ({GITHUB})", COMMIT)
    assert attested.logged == f"{SIGSTORE.now:%Y-%m-%dT%H:%M:%SZ}"
    assert attested.provenance == {}
    anyone = TrustedSigner(root=ROOT)
    assert check(packed(by_key(PUBLISH, STRANGER), value), anyone).signer == attested.signer


@pytest.mark.processes
def test_provenance_counts_when_the_key_of_the_verified_certificate_signed_it() -> None:
    key = fake_sigstore.new_key()
    one, two = SIGSTORE.bundle(PUBLISH, key=key), SIGSTORE.bundle(MADE, key=key)
    two["verificationMaterial"] = {**two["verificationMaterial"], **_certificate(one)}
    assert check(packed(two, one), IDENTITY).provenance == {"buildDefinition": {"buildType": "x"}}
    forged = SIGSTORE.bundle(MADE)
    forged["verificationMaterial"] = {**forged["verificationMaterial"], **_certificate(one)}
    assert check(packed(forged, one), IDENTITY).provenance == {}
    assert check(packed(SIGSTORE.bundle(MADE, identity="https://github.com/a/b"), one), IDENTITY).provenance == {}


def _certificate(value: dict[str, Any]) -> dict[str, Any]:
    return {"certificate": value["verificationMaterial"]["certificate"]}


@pytest.mark.parametrize("case", PAYLOADS)
def test_a_statement_that_is_wrong_is_refused_though_the_key_signed_it(case: str) -> None:
    with pytest.raises(ProvenanceBroken):
        check(packed(by_key(PAYLOADS[case])), BY_KEY)


@pytest.mark.processes
@pytest.mark.parametrize("case", PAYLOADS)
def test_a_statement_that_is_wrong_is_refused_though_the_identity_signed_it(case: str) -> None:
    with pytest.raises(ProvenanceBroken):
        check(packed(SIGSTORE.bundle(PAYLOADS[case])), IDENTITY)


@pytest.mark.processes
@pytest.mark.parametrize("signer", [BY_KEY, IDENTITY], ids=["key", "identity"])
@pytest.mark.parametrize("case", BUNDLES)
def test_a_changed_bundle_is_refused(case: str, signer: TrustedSigner) -> None:
    value = by_key(PUBLISH) if signer.key else SIGSTORE.bundle(PUBLISH)
    assert check(packed(value), signer)
    BUNDLES[case](value)
    with pytest.raises(ProvenanceBroken):
        check(packed(value), signer)


@pytest.mark.processes
@pytest.mark.parametrize("case", ENTRIES)
def test_a_bundle_with_other_evidence_is_refused(case: str) -> None:
    value, other = SIGSTORE.bundle(PUBLISH), SIGSTORE.bundle(MADE)
    ENTRIES[case](value, other)
    with pytest.raises(ProvenanceBroken):
        check(packed(value), IDENTITY)


EXPIRED = SIGSTORE.now - dt.timedelta(minutes=30)


def expired() -> dict[str, Any]:
    """Return a bundle that was signed half an hour after its certificate was issued."""
    key = fake_sigstore.new_key()
    certificate = SIGSTORE.at(EXPIRED).certificate(key.public_key())
    return SIGSTORE.bundle(PUBLISH, key=key, certificate=certificate)


SIGNERS: dict[str, tuple[Callable[[], dict[str, Any]], TrustedSigner]] = {
    "another key": (lambda: by_key(PUBLISH, STRANGER), BY_KEY),
    "another key of the same hint": (lambda: _hinted(by_key(PUBLISH, STRANGER)), BY_KEY),
    "an identity for a key": (lambda: SIGSTORE.bundle(PUBLISH), BY_KEY),
    "a key for an identity": (lambda: by_key(PUBLISH), IDENTITY),
    "a key for any identity": (lambda: by_key(PUBLISH), TrustedSigner(root=ROOT)),
    "another instance": (lambda: OTHER.bundle(PUBLISH), IDENTITY),
    "another instance for any identity": (lambda: OTHER.bundle(PUBLISH), TrustedSigner(root=ROOT)),
    "the public instance's root": (lambda: SIGSTORE.bundle(PUBLISH), TrustedSigner(identity=WORKFLOW, issuer=GITHUB)),
    "another workflow": (lambda: SIGSTORE.bundle(PUBLISH, identity=f"{WORKFLOW}2"), IDENTITY),
    "a workflow of a fork": (
        lambda: SIGSTORE.bundle(PUBLISH, identity=WORKFLOW.replace("example/", "fork/")),
        IDENTITY,
    ),
    "the identity as an email": (lambda: SIGSTORE.bundle(PUBLISH, identity="a@example.org", email=True), IDENTITY),
    "another issuer": (lambda: SIGSTORE.bundle(PUBLISH, issuer="https://accounts.example.org"), IDENTITY),
    "an issuer that begins like it": (lambda: SIGSTORE.bundle(PUBLISH, issuer=f"{GITHUB}.example.org"), IDENTITY),
    "a certificate that had expired": (expired, IDENTITY),
}


def _hinted(value: dict[str, Any]) -> dict[str, Any]:
    value["verificationMaterial"]["publicKey"]["hint"] = KEY.public.name
    return value


@pytest.mark.processes
@pytest.mark.parametrize("case", SIGNERS)
def test_another_signer_is_refused(case: str) -> None:
    make, signer = SIGNERS[case]
    with pytest.raises(ProvenanceBroken):
        check(packed(make()), signer)


@pytest.mark.processes
@pytest.mark.parametrize("signer", [BY_KEY, IDENTITY], ids=["key", "identity"])
def test_the_package_and_the_channel_decide_and_not_the_bundle(signer: TrustedSigner) -> None:
    data = packed(by_key(PUBLISH) if signer.key else SIGSTORE.bundle(PUBLISH))
    for wrong in ({"file": "other-1-0.conda"}, {"sha256": "cd" * 32}):
        with pytest.raises(ProvenanceBroken):
            check(data, signer, **wrong)
    for channel in ("https://channel.example", "https://channel.example/other", "http://channel.example/small"):
        with pytest.raises(ProvenanceBroken, match="channel"):
            check(data, signer, channel)
    with pytest.raises(ProvenanceBroken, match="not the name of a package"):
        check(data, signer, file="../a-1-0.conda")


SIDECARS: dict[str, bytes] = {
    "nothing": b"",
    "an empty list": b"[]",
    "a bundle alone": json.dumps(by_key(PUBLISH)).encode(),
    "a list in a list": b"[" + packed(by_key(PUBLISH)) + b"]",
    "text behind it": packed(by_key(PUBLISH)) + b"[]",
    "a cut list": packed(by_key(PUBLISH))[:-1],
    "a key twice in a bundle": packed(by_key(PUBLISH)).replace(b'{"dsse', b'{"mediaType":"a","dsse', 1),
    "a list that is too long": packed(*[by_key(PUBLISH)] * 101),
    "a file that is too large": packed(by_key(PUBLISH)) + b" " * bundles.LARGEST_SIDECAR,
    "a deep list": b"[" * 200_000,
}


@pytest.mark.parametrize("case", SIDECARS)
def test_a_file_that_is_not_a_list_of_bundles_is_refused(case: str) -> None:
    with pytest.raises(ProvenanceBroken):
        check(SIDECARS[case], BY_KEY)


def test_a_stranger_beside_the_signer_changes_nothing() -> None:
    lie = bundles.publication_statement(FILE, "cd" * 32, CHANNEL)
    many = packed(by_key(lie, STRANGER), by_key(lie), {"a": []}, by_key(PUBLISH, STRANGER), by_key(PUBLISH))
    assert check(many, BY_KEY).signer == f"the key {KEY.public.name}"
    made = bundles.slsa_statement(FILE, SHA256, {"forged": True})
    assert check(packed(by_key(made, STRANGER), by_key(PUBLISH)), BY_KEY).provenance == {}


def test_bundles_are_appended_without_changing_a_byte() -> None:
    first = b'[ {"a":1}\n ]\n'
    assert bundles.sidecar_with_added_bundles(first, [KEY.sign_statement(PUBLISH)]).startswith(b'[ {"a":1}\n ,')
    assert check(bundles.sidecar_with_added_bundles(first, [KEY.sign_statement(PUBLISH)]), BY_KEY)


def test_a_file_in_the_current_folder_is_not_taken_for_an_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem = STRANGER.public.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "a@example.org").write_bytes(pem)
    assert TrustedSigner.parse("a@example.org", issuer="https://a.example").identity == "a@example.org"
    with pytest.raises(UsageError, match="issuer") as raised:
        TrustedSigner.parse("a@example.org")
    assert "./a@example.org" in raised.value.hint
    for name in ("./a@example.org", str(tmp_path / "a@example.org")):
        assert TrustedSigner.parse(name).key == STRANGER.public


def test_signers_are_named_by_a_key_or_by_an_identity(tmp_path: Path) -> None:
    assert TrustedSigner.parse(WORKFLOW) == TrustedSigner(identity=WORKFLOW, issuer=GITHUB)
    with pytest.raises(UsageError, match=r"the issuer of the identity 'a@example.org' is unknown"):
        TrustedSigner.parse("a@example.org")
    assert TrustedSigner.parse("a@example.org", issuer="https://a.example").issuer == "https://a.example"
    with pytest.raises(UsageError, match="not a key for attestations"):
        TrustedSigner.parse(str(tmp_path / "missing.pem"))
    (tmp_path / "root.json").write_text("{")
    with pytest.raises(UsageError, match="not a trusted root"):
        TrustedSigner.parse(WORKFLOW, root=tmp_path / "root.json")


def test_what_is_no_public_key_is_named_and_no_hint_writes_over_it(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    rsa_key = rsa.generate_private_key(65537, 2048)
    public = rsa_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    own = publishing.private_pem(publishing.KEY, "correct horse")
    for content, why in ((own, "private key"), (public, "neither ECDSA"), (b"text", "public key in PEM")):
        file.write_bytes(content)
        with pytest.raises(UsageError) as caught:
            TrustedSigner.parse(str(file))
        assert why in caught.value.why
        assert "-out" not in caught.value.hint
    with pytest.raises(UsageError, match="not a key") as caught:
        PrivateKey.from_file(file, {})
    assert "-out" not in caught.value.hint


@pytest.mark.processes
def test_an_invalid_trusted_root_is_named() -> None:
    with pytest.raises(UsageError, match="the trusted root of Sigstore is invalid"):
        check(packed(SIGSTORE.bundle(PUBLISH)), TrustedSigner(identity=WORKFLOW, issuer=GITHUB, root="{}"))


def test_a_key_of_another_kind_is_refused() -> None:
    for key in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())):
        with pytest.raises(ValueError, match="neither ECDSA over P-256 nor Ed25519"):
            PublicKey.from_library_key(key.public_key())
    assert not KEY.public.has_signed(b"a", STRANGER.key.sign(b"a", ec.ECDSA(hashes.SHA256())))


def test_a_record_survives_its_way_through_the_predicate() -> None:
    import dataclasses

    one = record(FILE, sha256=SHA256, image="quay.io/a@sha256:12", commit="c" * 40, remote="https://a.org/b")
    one = dataclasses.replace(one, workflow=WORKFLOW, run_url="https://a.org/run")
    values = json.loads(json.dumps(dataclasses.asdict(one)))
    predicate = json.loads(json.dumps(bundles.predicate_of_record(values)))
    assert bundles.is_kiln_predicate(predicate)
    assert bundles.record_from_predicate(predicate, FILE, SHA256) == values
    assert bundles.build_fact_lines(predicate) == [
        f"built by {WORKFLOW} (kiln 0.1.0 rattler-build 0.73.0)",
        "in the run https://a.org/run",
        "built as the config config, by rattler-build in the image quay.io/a@sha256:12",
        f"built from the commit {'c' * 40} of https://a.org/b",
        f"built from recipe, sha256 {'cd' * 32}",
        f"built from https://example.org/a-1.tar.gz, sha256 {'ef' * 32}",
        "built from docker://quay.io/a, sha256 12",
    ]
    dirty = f"{'c' * 40}-dirty-{'d' * 64}"
    host = {
        **values,
        "image": None,
        "sources": [],
        "workflow": "",
        "run_url": "",
        "machine": "my box, AMD",
        "commit": dirty,
    }
    assert bundles.build_fact_lines(bundles.predicate_of_record(host)) == [
        "built by the machine my box (kiln 0.1.0 rattler-build 0.73.0)",
        "built as the config config, by rattler-build on a host",
        (
            f"built from https://a.org/b, with changes to its commit {'c' * 40} that were not committed, "
            f"sha256 {'d' * 64}"
        ),
        f"built from recipe, sha256 {'cd' * 32}",
    ]
    assert bundles.build_fact_lines({"runDetails": 7, "buildDefinition": {"resolvedDependencies": [1]}}) == [
        "built by None"
    ]


@pytest.mark.parametrize("internal", [{}, [], ["text"], "text", 7, None, [["package", 1], ["times", 2]]], ids=str)
def test_a_predicate_without_the_parts_of_a_record_is_refused(internal: Any) -> None:
    predicate = {"buildDefinition": {"internalParameters": internal, "externalParameters": {}}}
    with pytest.raises(ProvenanceBroken, match="is incomplete"):
        bundles.record_from_predicate(predicate, FILE, SHA256)


NAME, STRANGER_NAME = f"the key {KEY.public.name}", f"the key {STRANGER.public.name}"


def all_listed(*values: Any, signers: list[TrustedSigner]) -> tuple[ListedAttestation, ...]:
    data = json.dumps([value if isinstance(value, dict) else json.loads(value) for value in values]).encode()
    return package_attestations(data, file=FILE, sha256=SHA256, channel=CHANNEL, signers=signers)


def test_each_attestation_has_its_signer() -> None:
    values = (
        KEY.sign_statement(PUBLISH),
        STRANGER.sign_statement(PUBLISH),
        KEY.sign_statement(MADE),
        STRANGER.sign_statement(MADE),
    )
    one = all_listed(*values, signers=[TrustedSigner(key=KEY.public)])
    assert [(item.signer, item.verified) for item in one] == [(NAME, True), (STRANGER_NAME, False)] * 2
    assert one[0].description(4) == f"attestation 1 of 4: published to {CHANNEL}, signed by {NAME}"
    assert one[3].description(4) == f"attestation 4 of 4: how it was built, not verified; it names {STRANGER_NAME}"
    both = all_listed(*values, signers=[TrustedSigner(key=KEY.public), TrustedSigner(key=STRANGER.public)])
    assert [(item.signer, item.verified) for item in both] == [(NAME, True), (STRANGER_NAME, True)] * 2


def test_a_key_that_is_named_and_has_not_signed_is_a_claim() -> None:
    forged = json.loads(STRANGER.sign_statement(PUBLISH))
    forged["verificationMaterial"]["publicKey"]["hint"] = KEY.public.name
    (item,) = all_listed(forged, signers=[TrustedSigner(key=KEY.public)])
    assert (item.signer, item.verified) == (NAME, False)
    assert "not verified; it names" in item.description(1)


@pytest.mark.processes
def test_several_identities_are_told_apart() -> None:
    second = "https://github.com/other/feedstock/.github/workflows/publish.yml@refs/heads/main"
    values = (
        SIGSTORE.bundle(PUBLISH),
        SIGSTORE.bundle(PUBLISH, identity=second),
        OTHER.bundle(PUBLISH),
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
    other = KEY.sign_statement(bundles.publication_statement("other-1-0.conda", SHA256, CHANNEL))
    first, second = all_listed({"junk": 1}, other, signers=[TrustedSigner(key=KEY.public)])
    assert (first.verified, second.verified) == (False, False)
    assert first.description(2) == "attestation 1 of 2: invalid, it is not a Sigstore bundle of a known version"
    assert second.description(2) == f"attestation 2 of 2: invalid, it is about other-1-0.conda, not {FILE}"
