"""Signers of statements: a private key, or the identity of a CI job."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.base import masking
from kiln.base.errors import MissingTool, TokenRefused, UploadFailed, UsageError
from kiln.conda.provenance.bundles import dsse_signed_bytes, serialize_key_signed_bundle
from kiln.conda.provenance.check import ISSUERS, PublicKey, TrustedSigner, read_key_file, unusable_key_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


PASSPHRASE = "KILN_ATTEST_PASSPHRASE"  # noqa: S105 - the variable's name


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

        content, passphrase = read_key_file(file), environment.get(PASSPHRASE, "")
        encrypted = b"ENCRYPTED" in content
        try:
            key = load_pem_private_key(content, passphrase.encode() if encrypted and passphrase else None)
        except TypeError as error:
            raise UsageError(f"{file} has a passphrase", hint=f"set {PASSPHRASE}, as a secret of the CI") from error
        except (ValueError, UnsupportedAlgorithm) as error:
            if encrypted:
                what = f"{file} cannot be decrypted by the passphrase in {PASSPHRASE}"
                why = "the passphrase is wrong, or the file is damaged"
                raise UsageError(what, why=why, hint=f"correct {PASSPHRASE}") from error
            raise unusable_key_error(file, "it is not a private key in PEM") from error
        try:
            return cls(key=key, public=PublicKey.from_library_key(key.public_key()))
        except ValueError as error:
            raise unusable_key_error(file, str(error)) from error

    def trusted_signer(self, workflow: str) -> TrustedSigner:  # noqa: ARG002 - a key signs as itself, whatever runs it
        """Return this key, to verify with."""
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


INSTALL = ".venv/bin/python -m pip install --require-hashes -r requirements/sigstore.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeylessSigner:
    """A signer by the identity that CI gives to this job; ``config`` names another instance than the public one."""

    config: Path | None = None

    def sign_statements(self, statements: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return the bundles of statements, signed with one key and one certificate.

        Raises:
            MissingTool: when the client is not installed.
            TokenRefused: when this job has no identity, or it is refused.
            UploadFailed: when the instance cannot be reached.
        """
        try:
            from sigstore import dsse, oidc, sign
        except ModuleNotFoundError as error:
            hint = f"{INSTALL}, or sign with a key: --attest key.pem"
            raise MissingTool("sigstore is needed to sign without a key, and is not installed", hint=hint) from error
        token = self._identity_token(oidc)
        try:
            context = sign.SigningContext.from_trust_config(self._sigstore_trust_config())
            with context.signer(token) as signer:
                return tuple(signer.sign_dsse(dsse.Statement(one)).to_json().encode() for one in statements)
        except UsageError:
            raise
        except Exception as error:  # its clients raise requests' errors, TUF's and their own
            raise UploadFailed(
                "Sigstore did not sign the attestations",
                why=_first_line_of_error(error),
                hint="run the same command again, or sign with a key: --attest key.pem",
            ) from error

    def trusted_signer(self, workflow: str) -> TrustedSigner | None:
        """Return the identity of a CI's workflow as Sigstore certifies it, to verify with; None outside of such CI."""
        issuer = next((url for start, url in ISSUERS.items() if workflow.startswith(start)), "")
        if not issuer:
            return None
        root = ""
        if self.config is not None:
            self._sigstore_trust_config()
            root = json.dumps(json.loads(self.config.read_text(encoding="utf-8")).get("trustedRoot"))
        return TrustedSigner(identity=workflow, issuer=issuer, root=root)

    def _identity_token(self, oidc: Any) -> Any:
        try:
            text = oidc.detect_credential()
            if text is not None:
                masking.register_secrets([text])
                return oidc.IdentityToken(text)
        except Exception as error:
            raise TokenRefused(
                "the identity of this CI job is refused", why=_first_line_of_error(error), hint=_HINT
            ) from error
        raise TokenRefused("this job has no identity that Sigstore knows", hint=_HINT)

    def _sigstore_trust_config(self) -> Any:
        from sigstore.models import ClientTrustConfig

        if self.config is None:
            return ClientTrustConfig.production()
        try:
            return ClientTrustConfig.from_json(self.config.read_text(encoding="utf-8"))
        except Exception as error:  # pydantic's
            why = _first_line_of_error(error)
            raise UsageError(f"{self.config} is not a trust configuration of Sigstore", why=why) from error


_HINT = (
    "on GitHub: permissions: {id-token: write}; on GitLab: id_tokens: {SIGSTORE_ID_TOKEN: {aud: sigstore}}; "
    "elsewhere sign with a key: --attest key.pem"
)


def _first_line_of_error(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
