"""Keys for attestations, in PEM files: ECDSA over P-256, or Ed25519."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.errors import UsageError
from kiln.provenance.sigstore_bundles import dsse_signed_bytes, serialize_key_signed_bundle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kiln.provenance.attestation_check import TrustedSigner

PASSPHRASE = "KILN_ATTEST_PASSPHRASE"  # noqa: S105 - the variable's name
LARGEST_KEY = 1 << 16  # bytes
HINT = "openssl genpkey -algorithm ed25519 -aes256 -out key.pem; openssl pkey -in key.pem -pubout -out key.pub.pem"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A public key to verify with; ``name`` is its fingerprint, which a bundle has as its hint."""

    key: Any
    name: str

    @classmethod
    def from_file(cls, file: Path) -> PublicKey:
        """Return the key in a PEM file.

        Raises:
            UsageError: when it has no public key of a known kind.
        """
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            return cls.from_library_key(load_pem_public_key(_read_key_file(file)))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise _unusable_key_error(file, "it is not a public key in PEM") from error

    @classmethod
    def from_library_key(cls, key: Any) -> PublicKey:
        """Return a key of the library.

        Raises:
            ValueError: when it is of another kind.
        """
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        p256 = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
        if not p256 and not isinstance(key, ed25519.Ed25519PublicKey):
            raise ValueError("it is neither ECDSA over P-256 nor Ed25519")
        der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return cls(key=key, name=base64.b64encode(hashlib.sha256(der).digest()).decode())

    def has_signed(self, data: bytes, signature: bytes) -> bool:
        """Return whether the key's owner has signed data."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519

        try:
            if isinstance(self.key, ed25519.Ed25519PublicKey):
                self.key.verify(signature, data)
            else:
                self.key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateKey:
    """A private key to sign with."""

    key: Any
    public: PublicKey

    @classmethod
    def from_file(cls, file: Path, environment: Mapping[str, str]) -> PrivateKey:
        """Return the key in a PEM file, whose passphrase is in the environment.

        Raises:
            UsageError: when it has no private key of a known kind, or the passphrase is missing or wrong.
        """
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        content, passphrase = _read_key_file(file), environment.get(PASSPHRASE, "")
        encrypted = b"ENCRYPTED" in content
        try:
            key = load_pem_private_key(content, passphrase.encode() if encrypted and passphrase else None)
            return cls(key=key, public=PublicKey.from_library_key(key.public_key()))
        except TypeError as error:
            raise UsageError(f"{file} has a passphrase", hint=f"set {PASSPHRASE}, as a secret of the CI") from error
        except (ValueError, UnsupportedAlgorithm) as error:
            why = f"the passphrase in {PASSPHRASE} may be wrong" if encrypted else "it is not a private key in PEM"
            raise _unusable_key_error(file, why) from error

    def trusted_signer(self, workflow: str) -> TrustedSigner:  # noqa: ARG002 - a key signs as itself, whatever runs it
        """Return this key, to verify with."""
        from kiln.provenance.attestation_check import TrustedSigner

        return TrustedSigner(key=self.public)

    def sign_statements(self, statements: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return the bundles of statements."""
        return tuple(map(self.sign_statement, statements))

    def sign_statement(self, statement: bytes) -> bytes:
        """Return the bundle of a statement, signed."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519

        data = dsse_signed_bytes(statement)
        if isinstance(self.key, ed25519.Ed25519PrivateKey):
            signature = self.key.sign(data)
        else:
            signature = self.key.sign(data, ec.ECDSA(hashes.SHA256()))
        return serialize_key_signed_bundle(statement, signature, self.public.name)


def _read_key_file(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(LARGEST_KEY)
    except OSError as error:
        raise _unusable_key_error(file, error.strerror or str(error)) from error


def _unusable_key_error(file: Path, why: str) -> UsageError:
    return UsageError(f"{file} is not a key for attestations", why=why, hint=HINT)
