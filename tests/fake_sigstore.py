"""A certificate authority, a log of certificates and a log of signatures, as Sigstore's, with keys of the test.

All that real verifiers check is real: the chain of the certificate with its signed timestamp, the entry of the log with
its promise and its proof. Their trusted root is `FakeSigstore.trusted_root`.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import struct
from dataclasses import dataclass, field, replace
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

GITHUB = "https://token.actions.githubusercontent.com"
WORKFLOW = "https://github.com/example/feedstock/.github/workflows/publish.yml@refs/heads/main"
COMMIT = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
SCT_LIST = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
FULCIO = "1.3.6.1.4.1.57264.1"  # the arc of Fulcio's extensions, see its docs/oid-info.md
ORIGIN = "rekor.localhost - 1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def der(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def pae(payload: bytes) -> bytes:
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


UTF8, OCTETS = b"\x0c", b"\x04"  # the tags of a text and of bytes


def _der(tag: bytes, data: bytes) -> bytes:
    size = bytes([len(data)]) if len(data) < 128 else b"\x81" + bytes([len(data)])
    return tag + size + data


@dataclass(frozen=True, kw_only=True)
class FakeSigstore:
    """The keys of one instance; ``now`` is the time of its signatures."""

    authority: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    certificate_log: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    log: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    now: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.timezone.utc).replace(microsecond=0))

    def at(self, moment: dt.datetime) -> FakeSigstore:
        return replace(self, now=moment)

    @property
    def root(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fulcio.localhost")])
        start = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
        key = x509.SubjectKeyIdentifier.from_public_key(self.authority.public_key())
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.authority.public_key())
            .serial_number(1)
            .not_valid_before(start)
            .not_valid_after(start + dt.timedelta(days=20000))
            .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(key, critical=False)
            .sign(self.authority, hashes.SHA256())
        )

    def certificate(
        self, key: Any, *, identity: str = WORKFLOW, issuer: str = GITHUB, commit: str = COMMIT, email: bool = False
    ) -> x509.Certificate:
        """Return a certificate of ten minutes for a public key, with the timestamp of the certificates' log."""
        san = x509.RFC822Name(identity) if email else x509.UniformResourceIdentifier(identity)
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        claims = {"8": issuer, "12": "https://github.com/example/feedstock", "13": commit, "14": "refs/heads/main"}
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.root.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.now)
            .not_valid_after(self.now + dt.timedelta(minutes=10))
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key()), critical=False
            )
            .add_extension(x509.SubjectAlternativeName([san]), critical=True)
        )
        older = x509.UnrecognizedExtension(ObjectIdentifier(f"{FULCIO}.1"), issuer.encode())
        builder = builder.add_extension(older, critical=False)
        for number, claim in claims.items():
            extension = x509.UnrecognizedExtension(ObjectIdentifier(f"{FULCIO}.{number}"), _der(UTF8, claim.encode()))
            builder = builder.add_extension(extension, critical=False)
        before = builder.sign(self.authority, hashes.SHA256())
        timestamps = self._certificate_timestamps(before.tbs_certificate_bytes)
        return builder.add_extension(x509.UnrecognizedExtension(SCT_LIST, timestamps), critical=False).sign(
            self.authority, hashes.SHA256()
        )

    def _certificate_timestamps(self, tbs: bytes) -> bytes:
        """Return the list of signed timestamps of a certificate (RFC 6962, section 3.2)."""
        moment = int(self.now.timestamp() * 1000)
        head = struct.pack(">BBQ", 0, 0, moment)
        issuer = hashlib.sha256(der(self.authority)).digest()
        entry = struct.pack(">H", 1) + issuer + len(tbs).to_bytes(3, "big") + tbs
        signed = self.certificate_log.sign(head + entry + struct.pack(">H", 0), ec.ECDSA(hashes.SHA256()))
        log_id = hashlib.sha256(der(self.certificate_log)).digest()
        one = struct.pack(">B", 0) + log_id + struct.pack(">QH", moment, 0) + b"\x04\x03"
        one += struct.pack(">H", len(signed)) + signed
        sized = struct.pack(">H", len(one)) + one
        return _der(OCTETS, struct.pack(">H", len(sized)) + sized)

    def entry(self, envelope: dict[str, Any], verifier: x509.Certificate) -> dict[str, Any]:
        """Return the entry of an envelope in the log of signatures, which has this one alone."""
        payload = base64.b64decode(envelope["payload"])
        spec = {
            "envelopeHash": {"algorithm": "sha256", "value": hashlib.sha256(canonical(envelope)).hexdigest()},
            "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
            "signatures": [
                {"signature": one["sig"], "verifier": b64(verifier.public_bytes(Encoding.PEM))}
                for one in envelope["signatures"]
            ],
        }
        body = canonical({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec})
        return self.log_entry(body, {"kind": "dsse", "version": "0.0.1"})

    def log_entry(self, body: bytes, kind: dict[str, str]) -> dict[str, Any]:
        log_id = hashlib.sha256(der(self.log)).digest()
        moment = int(self.now.timestamp())
        promised = {"body": b64(body), "integratedTime": moment, "logID": log_id.hex(), "logIndex": 0}
        leaf = hashlib.sha256(b"\0" + body).digest()
        note = f"{ORIGIN}\n1\n{b64(leaf)}\n"
        signed = self.log.sign(note.encode(), ec.ECDSA(hashes.SHA256()))
        checkpoint = f"{note}\n\u2014 {ORIGIN.split(maxsplit=1)[0]} {b64(log_id[:4] + signed)}\n"
        return {
            "logIndex": "0",
            "logId": {"keyId": b64(log_id)},
            "kindVersion": kind,
            "integratedTime": str(moment),
            "inclusionPromise": {
                "signedEntryTimestamp": b64(self.log.sign(canonical(promised), ec.ECDSA(hashes.SHA256())))
            },
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": b64(leaf),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": checkpoint},
            },
            "canonicalizedBody": b64(body),
        }

    def bundle(
        self,
        payload: bytes,
        *,
        key: ec.EllipticCurvePrivateKey | None = None,
        certificate: x509.Certificate | None = None,
        **claims: Any,
    ) -> dict[str, Any]:
        """Return the Sigstore bundle of a statement, by default signed by a key of its own for an identity."""
        key = key or new_key()
        certificate = certificate or self.certificate(key.public_key(), **claims)
        envelope = {
            "payload": b64(payload),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"sig": b64(key.sign(pae(payload), ec.ECDSA(hashes.SHA256())))}],
        }
        return {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": b64(certificate.public_bytes(Encoding.DER))},
                "tlogEntries": [self.entry(envelope, certificate)],
            },
            "dsseEnvelope": envelope,
        }

    def trusted_root(self, url: str = "https://sigstore.localhost") -> dict[str, Any]:
        """Return the trust anchors that verifiers of this instance need."""
        since = {"start": "2024-01-01T00:00:00Z"}

        def log(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            public = {"rawBytes": b64(der(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": since}
            identity = {"keyId": b64(hashlib.sha256(der(key)).digest())}
            return {"baseUrl": url, "hashAlgorithm": "SHA2_256", "publicKey": public, "logId": identity}

        authority = {
            "subject": {"organization": "localhost", "commonName": "fulcio.localhost"},
            "uri": url,
            "certChain": {"certificates": [{"rawBytes": b64(self.root.public_bytes(Encoding.DER))}]},
            "validFor": since,
        }
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(self.log)],
            "certificateAuthorities": [authority],
            "ctlogs": [log(self.certificate_log)],
            "timestampAuthorities": [],
        }
