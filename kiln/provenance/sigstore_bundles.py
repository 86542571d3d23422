"""Sigstore bundles with DSSE envelopes, and the sidecar files of packages that hold them (CEP 50).

Sources: https://github.com/secure-systems-lab/dsse/blob/master/protocol.md, and sigstore_bundle.proto of
https://github.com/sigstore/protobuf-specs.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.conda_package.reader import parse_strict_json
from kiln.errors import ProvenanceBroken
from kiln.serialization import canonical_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LARGEST_SIDECAR = 4 << 20  # bytes, as py-rattler's own limit
MOST_BUNDLES = 100
PAYLOAD_TYPE = "application/vnd.in-toto+json"
MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_MEDIA_TYPE = re.compile(r"application/vnd\.dev\.sigstore\.bundle(?:\.v0\.\d+\+json|\+json;version=0\.\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SigstoreBundle:
    """A bundle with one signature: ``hint`` names the key, ``certificate`` is that of an identity, in DER."""

    payload: bytes
    signature: bytes
    hint: str = ""
    certificate: bytes = b""

    @property
    def claimed_signer(self) -> str:
        """The signer that the bundle names, which nothing has verified."""
        if not self.certificate:
            return f"the key {self.hint}" if self.hint else "no key"
        from cryptography import x509

        try:
            certificate = x509.load_der_x509_certificate(self.certificate)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            uris = names.get_values_for_type(x509.UniformResourceIdentifier)
            texts = [*uris, *names.get_values_for_type(x509.RFC822Name)]
        except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension):
            texts = []
        return f"the identity {texts[0]}" if texts else "a certificate without an identity"


def dsse_signed_bytes(payload: bytes) -> bytes:
    """Return DSSE's encoding of a statement, over which a signature is made."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def serialize_key_signed_bundle(payload: bytes, signature: bytes, hint: str) -> bytes:
    """Return the bundle of a statement that was signed with a key."""
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"sig": base64.b64encode(signature).decode()}],
    }
    material = {"publicKey": {"hint": hint}, "tlogEntries": []}
    value = {"mediaType": MEDIA_TYPE, "verificationMaterial": material, "dsseEnvelope": envelope}
    return canonical_json(value)


def serialize_sidecar(bundles: Iterable[bytes]) -> bytes:
    """Return the content of the file for the bundles of a package."""
    return b"[" + b",".join(bundles) + b"]"


def sidecar_with_added_bundles(existing: bytes, bundles: Iterable[bytes]) -> bytes:
    """Return a sidecar with more bundles, or a new one where none exists; the bytes of the existing ones stay.

    Raises:
        ProvenanceBroken: when it is not a sidecar.
    """
    if not existing:
        return serialize_sidecar(bundles)
    parse_sidecar(existing)
    return existing.rstrip()[:-1] + b"," + b",".join(bundles) + b"]"


def parse_sidecar(data: bytes) -> list[dict[str, Any]]:
    """Return the bundles in a sidecar as JSON objects.

    Raises:
        ProvenanceBroken: when it is too large, or not a list of objects.
    """
    if len(data) > LARGEST_SIDECAR:
        raise _invalid_sidecar_error(f"it is larger than {LARGEST_SIDECAR:,} bytes")
    try:
        value = parse_strict_json(data)
    except ValueError as error:
        raise _invalid_sidecar_error(str(error)) from error
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise _invalid_sidecar_error("it is not a list of one or more bundles")
    if len(value) > MOST_BUNDLES:
        raise _invalid_sidecar_error(f"it has {len(value):,} bundles")
    return value


def parse_bundle(value: Mapping[str, Any]) -> SigstoreBundle:
    """Return the parts of a bundle.

    Raises:
        ValueError: when it is not a valid one with an in-toto statement and one signature.
    """
    envelope, material = value.get("dsseEnvelope"), value.get("verificationMaterial")
    if not isinstance(media := value.get("mediaType"), str) or not _MEDIA_TYPE.fullmatch(media):
        raise ValueError("it is not a Sigstore bundle of a known version")
    if not isinstance(envelope, dict) or not isinstance(material, dict) or "messageSignature" in value:
        raise ValueError("it has no DSSE envelope, or no material for its verification")
    if envelope.get("payloadType") != PAYLOAD_TYPE:
        raise ValueError("its payload is not an in-toto statement")
    signatures = envelope.get("signatures")
    if not isinstance(signatures, list) or len(signatures) != 1 or not isinstance(signatures[0], dict):
        raise ValueError("its envelope does not have one signature")
    return SigstoreBundle(
        payload=_decode_base64(envelope.get("payload"), "payload"),
        signature=_decode_base64(signatures[0].get("sig"), "signature"),
        **_key_hint_or_certificate(material),
    )


def _key_hint_or_certificate(material: Mapping[str, Any]) -> dict[str, Any]:
    key, chain = material.get("publicKey"), material.get("x509CertificateChain")
    certificates = [material["certificate"]] if "certificate" in material else []
    chained = chain.get("certificates") if isinstance(chain, dict) else None
    certificates += chained[:1] if isinstance(chained, list) else []
    if (key is None) == (not certificates) or len(certificates) > 1:
        raise ValueError("it names neither a key nor a certificate, or both")
    if certificates:
        raw = certificates[0].get("rawBytes") if isinstance(certificates[0], dict) else None
        return {"certificate": _decode_base64(raw, "certificate")}
    hint = key.get("hint", "") if isinstance(key, dict) else None
    if not isinstance(hint, str):
        raise ValueError("its key is invalid")  # noqa: TRY004 - one type for all that a bundle may have wrong
    return {"hint": hint}


def _decode_base64(value: Any, name: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ValueError(f"its {name} is not in Base64") from error


def _invalid_sidecar_error(why: str) -> ProvenanceBroken:
    return ProvenanceBroken(
        "the file of a package's attestations is invalid",
        why=why,
        hint="request the attestations from the channel's owner",
    )
