"""The list of a package's attestations: what each states, and who has signed it or claims to have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.provenance.attestation_check import PackageAttestationCheck, ParsedBundle, TrustedSigner
from kiln.provenance.statements import PUBLISH, SLSA

if TYPE_CHECKING:
    from collections.abc import Sequence


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
