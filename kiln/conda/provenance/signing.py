"""Signatures by OpenSSH's keys and by the identity of a CI job, and the list of a package's attestations."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import masking, process
from kiln.base.errors import MissingTool, ProvenanceBroken, TokenRefused, UploadFailed, UsageError
from kiln.conda.provenance.bundles import PUBLISH, SLSA
from kiln.conda.provenance.check import PackageAttestationCheck, ParsedBundle, TrustedSigner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedAttestation:
    """One attestation: ``signer`` has signed it when it is verified; else it is what the bundle claims.

    ``fault`` says why it is invalid.
    """

    number: int
    states: str
    signer: str
    verified: bool
    fault: str = ""

    def description(self, total: int) -> str:
        """The attestation in words; ``total`` is the number of all."""
        start = f"attestation {self.number} of {total}: "
        if self.fault:
            return f"{start}invalid, {self.fault}"
        return f"{start}{self.states}, " + (
            f"signed by {self.signer}" if self.verified else f"not verified; it names {self.signer}"
        )


def package_attestations(
    sidecar: bytes, *, file: str, sha256: str, channel: str | None, signers: Sequence[TrustedSigner]
) -> tuple[ListedAttestation, ...]:
    """Return all attestations of a package, with those verified that one of the signers has signed.

    Raises:
        ProvenanceBroken: when the sidecar cannot be read.
    """
    check = PackageAttestationCheck.from_sidecar(sidecar, file=file, sha256=sha256, channel=channel)
    verified: dict[int, str] = {}
    for signer in signers:
        for number, name in check.signer_names_by_bundle(signer).items():
            verified.setdefault(number, name)
    return tuple(_listed_attestation(one, verified.get(one.number, ""), file, sha256) for one in check.bundles)


def _listed_attestation(one: ParsedBundle, signer: str, file: str, sha256: str) -> ListedAttestation:
    fault, states, claimed = one.fault, "", ""
    if one.bundle is not None and one.statement is not None:
        fault = one.statement.subject_mismatch(file, sha256)
        claimed = one.bundle.claimed_signer
        where = one.statement.channel or "a channel"
        states = {PUBLISH: f"published to {where}", SLSA: "how it was built"}.get(
            one.statement.kind, f"a statement of the type {one.statement.kind}"
        )
    return ListedAttestation(
        number=one.number + 1, states=states, signer=signer or claimed, verified=bool(signer), fault=fault
    )


NAMESPACE = "kiln-provenance"


def signing_function(key: Path, *, env: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that signs a text with an SSH key, or with the agent's when ``key`` is a public one.

    Raises:
        UsageError: when the key cannot sign.
        MissingTool: when ssh-keygen is not installed.
    """

    def sign(text: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            message = Path(folder) / "message"
            message.write_bytes(text.encode())  # as it is, with its line ends
            words = ("ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(message))
            result = process.run(words, env=env, timeout=60)
            if not result.ok:
                raise UsageError(f"{key} cannot sign", why=result.tail, hint="an unlocked SSH key, or one in the agent")
            return message.with_suffix(".sig").read_text(encoding="utf-8")

    return sign


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedSigners:
    """The allowed signers: a file as git and ssh-keygen read it."""

    file: Path
    env: Mapping[str, str]

    def verified_signer(self, text: str, signature: str) -> str:
        """Return the name of a text's signer.

        Raises:
            ProvenanceBroken: when no allowed signer has signed it.
        """
        with tempfile.TemporaryDirectory() as folder:
            signature_file = Path(folder) / "message.sig"
            signature_file.write_bytes(signature.encode())
            common = ("-f", str(self.file), "-s", str(signature_file))
            principals = process.capture(("ssh-keygen", "-Y", "find-principals", *common), env=self.env, timeout=60)
            name = (principals.stdout.split() or [""])[0]
            words = ("ssh-keygen", "-Y", "verify", *common, "-I", name, "-n", NAMESPACE)
            if not (principals.ok and name and process.run(words, env=self.env, timeout=60, stdin=text).ok):
                raise ProvenanceBroken("a record is not signed by an allowed signer", why=f"see {self.file}")
        return name


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
        from kiln.conda.provenance.check import ISSUERS, TrustedSigner

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
        """Return the addresses and the keys of the instance."""
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
