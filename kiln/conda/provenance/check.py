"""The check of a package's attestations: signed by whom one trusts, for this file, in this channel."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import shlex
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import ProvenanceBroken, UsageError
from kiln.conda.provenance.bundles import (
    PUBLISH,
    SLSA,
    SigstoreBundle,
    Statement,
    dsse_signed_bytes,
    parse_bundle,
    parse_sidecar,
    parse_statement,
)
from kiln.conda.rattler import client

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


LARGEST_KEY = 1 << 16  # bytes
KIND = "give a key of Ed25519, or of ECDSA over P-256, in PEM"


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

        content = read_key_file(file)
        if b" PRIVATE KEY-----" in content:
            hint = f"openssl pkey -in {shlex.quote(str(file))} -pubout prints its public one, which is asked for"
            raise unusable_key_error(file, "it is a private key", hint=hint)
        try:
            key = load_pem_public_key(content)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise unusable_key_error(file, "it is not a public key in PEM") from error
        try:
            return cls.from_library_key(key)
        except ValueError as error:
            raise unusable_key_error(file, str(error)) from error

    @classmethod
    def from_library_key(cls, key: Any) -> PublicKey:
        """Return a key of the library."""
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


def read_key_file(file: Path) -> bytes:
    """Return the content of a file with a key; raises UsageError."""
    try:
        with file.open("rb") as opened:
            return opened.read(LARGEST_KEY)
    except OSError as error:
        raise unusable_key_error(file, error.strerror or str(error), hint="correct the path of the key") from error


def unusable_key_error(file: Path, why: str, *, hint: str = KIND) -> UsageError:
    """Return the error for a file without a usable key; no hint makes a key, which would replace that file."""
    return UsageError(f"{file} is not a key for attestations", why=why, hint=hint)


ISSUERS = {
    "https://github.com/": "https://token.actions.githubusercontent.com",
    "https://gitlab.com/": "https://gitlab.com",
}
MOST_IDENTITIES = 10  # publications of a package that are verified for a list
LARGEST_ROOT = 1 << 20  # bytes of a file with a trusted root
_FILE = re.compile(r"[^/\\\x00-\x1f]+-[^-/\\\x00-\x1f]+-[^-/\\\x00-\x1f]+(?:\.conda|\.tar\.bz2)")
_HINT = "leave the package out, or request its attestations from the channel's owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedSigner:
    """A key, or an identity with its issuer; without both, any identity that the trusted root knows.

    ``root`` is a trusted root of Sigstore in JSON; empty for the public instance's, as py-rattler brings it.
    """

    key: PublicKey | None = None
    identity: str = ""
    issuer: str = ""
    root: str = ""

    @classmethod
    def parse(cls, text: str, *, issuer: str = "", root: Path | None = None) -> TrustedSigner:
        """Return the signer of a command line: the path of a public key, or an identity.

        Raises:
            UsageError: when it is neither, or the issuer of an identity is unknown.
        """
        # A file of that name in the current folder may be anybody's, and is a key only with its folder: ./a@b.
        is_identity = "://" in text or ("@" in text and Path(text).name == text)
        if not is_identity:
            return cls(key=PublicKey.from_file(Path(text)))
        issuer = issuer or next((url for start, url in ISSUERS.items() if text.startswith(start)), "")
        if not issuer:
            key = f"; ./{text} for a file with a key" if Path(text).is_file() else ""
            raise UsageError(
                f"the issuer of the identity {text!r} is unknown",
                hint=f"--attestation-issuer https://accounts.example{key}",
            )
        return cls(identity=text, issuer=issuer, root=read_trusted_root(root))

    def __str__(self) -> str:
        return f"the key {self.key.name}" if self.key else self.identity or "any identity"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestedFacts:
    """The verified facts: the signer, the channel that was published to, and the predicate of SLSA if there is one."""

    signer: str
    channel: str
    logged: str = ""
    commit: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fact_lines(self) -> list[str]:
        """The facts in words."""
        moment = f", logged at {self.logged}" if self.logged else ""
        commit = [f"the signer's certificate names the commit {self.commit}"] if self.commit else []
        return [f"{self.signer} attests its publication to {self.channel or 'a channel'}{moment}", *commit]


def read_trusted_root(file: Path | None) -> str:
    """Return the trusted root in a file, by default empty.

    Raises:
        UsageError: when it cannot be read.
    """
    if file is None:
        return ""
    try:
        with file.open("rb") as opened:
            text = opened.read(LARGEST_ROOT).decode()
        json.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} is not a trusted root of Sigstore", why=str(error)) from error
    return text


def verified_attestation_facts(
    sidecar: bytes, *, file: str, sha256: str, channel: str | None, signers: Sequence[TrustedSigner]
) -> AttestedFacts:
    """Return the facts that one of the signers attests of a package; ``channel`` is where it is read from.

    Without a channel, as for a file alone, the attested one is not compared.

    Raises:
        ProvenanceBroken: when none does.
    """
    if not _FILE.fullmatch(file):
        raise ProvenanceBroken(f"{file!r} is not the name of a package file", hint=_HINT)
    check = PackageAttestationCheck.from_sidecar(sidecar, file=file, sha256=sha256, channel=channel)
    for signer in signers:
        if (facts := check.facts_attested_by_signer(signer)) is not None:
            return facts
    raise ProvenanceBroken(
        f"no valid attestation of {file} by {' or '.join(map(str, signers))}",
        why="; ".join(dict.fromkeys(check.reasons)) or "nothing in it is signed",
        hint=_HINT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedBundle:
    """A bundle with its statement, or why it is invalid; ``number`` is its place in the sidecar."""

    number: int
    value: Mapping[str, Any]
    bundle: SigstoreBundle | None = None
    statement: Statement | None = None
    fault: str = ""

    @property
    def is_publication_by_identity(self) -> bool:
        """True for a publication that an identity has signed, or claims to have."""
        return bool(self.bundle and self.bundle.certificate and self.statement and self.statement.kind == PUBLISH)

    @classmethod
    def from_json(cls, number: int, value: Mapping[str, Any]) -> ParsedBundle:
        """Return a bundle of a sidecar."""
        try:
            bundle = parse_bundle(value)
            return cls(number=number, value=value, bundle=bundle, statement=parse_statement(bundle.payload))
        except ValueError as error:
            return cls(number=number, value=value, fault=str(error))


def parsed_bundles(sidecar: bytes) -> list[ParsedBundle]:
    """Return the bundles in a sidecar; raises ProvenanceBroken when it cannot be read."""
    return [ParsedBundle.from_json(number, value) for number, value in enumerate(parse_sidecar(sidecar))]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageAttestationCheck:
    """The check of one package's bundles; ``reasons`` collects why some do not count."""

    sidecar: bytes
    bundles: list[ParsedBundle]
    file: str
    sha256: str
    channel: str | None
    reasons: list[str] = field(default_factory=list)

    @classmethod
    def from_sidecar(cls, sidecar: bytes, *, file: str, sha256: str, channel: str | None) -> PackageAttestationCheck:
        """Return the check of the bundles in a sidecar; raises ProvenanceBroken when it cannot be read."""
        return cls(sidecar=sidecar, bundles=parsed_bundles(sidecar), file=file, sha256=sha256, channel=channel)

    def facts_attested_by_signer(self, signer: TrustedSigner) -> AttestedFacts | None:
        """Return what a signer attests, or None."""
        return self._facts_attested_by_key(signer.key) if signer.key else self._facts_attested_by_identity(signer)

    def signer_names_by_bundle(self, signer: TrustedSigner) -> dict[int, str]:
        """Return the numbers of the bundles about this package that a signer has signed, with the signer's name.

        Publications of identities are verified one by one, wherever they are to; of these at most `MOST_IDENTITIES`.
        """
        if signer.key:
            return {
                one.number: f"the key {signer.key.name}"
                for one in self._bundles_signed_by_key(signer.key, self.bundles)
            }
        numbers: dict[int, str] = {}
        for one in [one for one in self.bundles if one.is_publication_by_identity][:MOST_IDENTITIES]:
            alone = dataclasses.replace(
                self,
                sidecar=json.dumps([one.value]).encode(),
                bundles=[dataclasses.replace(one, number=0)],
                channel=None,
            )
            verified = alone._verify_identity(signer) if one.number not in numbers else None  # noqa: SLF001 - of this class
            if verified is not None:
                answer, bundle = verified
                name = f"{answer['identity']} ({answer['issuer']})"
                numbers |= {other.number: name for other in self._bundles_signed_by_certificate(bundle.certificate)}
        return numbers

    def _facts_attested_by_key(self, key: PublicKey) -> AttestedFacts | None:
        statements = [one.statement for one in self._bundles_signed_by_key(key, self.bundles) if one.statement]
        publication = next(
            (one for one in statements if one.kind == PUBLISH and self._is_publication_to_channel(one)), None
        )
        if publication is None:
            return None
        return AttestedFacts(
            signer=f"the key {key.name}", channel=publication.channel, provenance=_first_slsa_predicate(statements)
        )

    def _bundles_signed_by_key(self, key: PublicKey, bundles: Iterable[ParsedBundle]) -> Iterator[ParsedBundle]:
        for one in bundles:
            number = one.number + 1
            if one.bundle is None or one.statement is None:
                self.reasons.append(f"attestation {number} is invalid: {one.fault}")
            elif not key.has_signed(dsse_signed_bytes(one.bundle.payload), one.bundle.signature):
                claimed = one.bundle.claimed_signer
                other = "" if claimed == f"the key {key.name}" else f"; it names {claimed}"
                self.reasons.append(f"attestation {number} is not signed by this key{other}")
            elif refusal := one.statement.subject_mismatch(self.file, self.sha256):
                self.reasons.append(f"attestation {number}: {refusal}")
            else:
                yield one

    def _is_publication_to_channel(self, statement: Statement) -> bool:
        if self.channel is None or statement.channel == self.channel.rstrip("/"):
            return True
        where = statement.channel or "no channel"
        self.reasons.append(f"it was published to {where}, and is read from {self.channel}")
        return False

    def _facts_attested_by_identity(self, signer: TrustedSigner) -> AttestedFacts | None:
        verified = self._verify_identity(signer)
        if verified is None:
            return None
        answer, bundle = verified
        statement = parse_statement(bundle.payload)
        if not self._is_publication_to_channel(statement):
            return None
        return AttestedFacts(
            signer=f"{answer['identity']} ({answer['issuer']})",
            channel=statement.channel,
            logged=answer["logged"],
            commit=answer["commit"],
            provenance=_first_slsa_predicate(
                one.statement for one in self._bundles_signed_by_certificate(bundle.certificate) if one.statement
            ),
        )

    def _verify_identity(self, signer: TrustedSigner) -> tuple[Mapping[str, Any], SigstoreBundle] | None:
        """Return what py-rattler verifies; its choice of a bundle is read again, by this reader's stricter rules."""
        hints = [one.bundle.hint for one in self.bundles if one.bundle is not None and not one.bundle.certificate]
        if len(hints) == len(self.bundles):
            self.reasons.append(f"all are signed with keys ({', '.join(dict.fromkeys(hints))}), not by an identity")
            return None
        with tempfile.TemporaryDirectory() as folder:
            answer = client.run_operation("verify", **self._verification_request(Path(folder), signer))
        if "refusal" in answer:
            self.reasons.append(answer["refusal"])
            return None
        one = self.bundles[answer["index"]]
        if one.bundle is None or one.statement is None or not one.bundle.certificate:
            self.reasons.append(f"attestation {one.number + 1} is invalid: {one.fault or 'it has no certificate'}")
            return None
        if one.statement.kind != PUBLISH or one.statement.subject_mismatch(self.file, self.sha256):
            self.reasons.append(f"attestation {one.number + 1} is not about this package")
            return None
        return answer, one.bundle

    def _verification_request(self, folder: Path, signer: TrustedSigner) -> dict[str, Any]:
        """Return the request to py-rattler, which reads the sidecar from a folder."""
        digest = hashlib.sha256(self.sidecar).hexdigest()
        place = folder / self.file
        place.with_name(f"{self.file}.sigs.{digest}").write_bytes(self.sidecar)
        name, version, build = self.file.removesuffix(".conda").removesuffix(".tar.bz2").rsplit("-", 2)
        record = {
            "name": name,
            "version": version,
            "build": build,
            "build_number": 0,
            "depends": [],
            "subdir": "noarch",
            "sha256": self.sha256,
            "attestations_sha256": digest,
            "fn": self.file,
            "url": place.as_uri(),
            "channel": self.channel or "https://unknown.invalid",
        }
        return {
            "record": record,
            "identity": signer.identity or None,
            "issuer": signer.issuer or None,
            "trusted_root": signer.root,
            "compares_channel": self.channel is not None,
        }

    def _bundles_signed_by_certificate(self, certificate: bytes) -> list[ParsedBundle]:
        """Return the bundles about this package that the key of a verified certificate has signed."""
        from cryptography import x509

        try:
            key = PublicKey.from_library_key(x509.load_der_x509_certificate(certificate).public_key())
        except ValueError:  # a kind of key that py-rattler knows and this module does not
            return []
        same = [one for one in self.bundles if one.bundle is not None and one.bundle.certificate == certificate]
        return list(self._bundles_signed_by_key(key, same))


def _first_slsa_predicate(statements: Iterable[Statement]) -> Mapping[str, Any]:
    return next((one.predicate for one in statements if one.kind == SLSA), {})


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
