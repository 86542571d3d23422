"""The attestations of packages before an install: each by a signer that the user requires, or nothing is linked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import channel_url_credentials
from kiln.errors import KilnError, ProvenanceBroken, UsageError
from kiln.provenance import attestation_check
from kiln.publish import attestation_sidecars

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rattler import RepoDataRecord

    from kiln.provenance.attestation_check import TrustedSigner


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredSigners:
    """The required signers: of all packages, and more of those of single channels, by URL."""

    everywhere: tuple[TrustedSigner, ...]
    channels: tuple[tuple[str, tuple[TrustedSigner, ...]], ...]

    @classmethod
    def parse(
        cls,
        texts: Sequence[str],
        *,
        channel_of: Callable[[str], str | None],
        signers: Callable[[str], tuple[TrustedSigner, ...]],
    ) -> RequiredSigners:
        """Return the rules of a command line, each ``SIGNER`` or ``CHANNEL=SIGNER``.

        ``channel_of`` returns one of the channels that a text names, None for any other text.

        Raises:
            UsageError: when a signer is neither an identity nor a key.
        """
        everywhere: list[TrustedSigner] = []
        single: dict[str, tuple[TrustedSigner, ...]] = {}
        for text in texts:
            places = [place for place, character in enumerate(text) if character == "="]
            channel, place = next(((name, place) for place in places if (name := channel_of(text[:place]))), ("", -1))
            if channel:
                url = _channel_url(channel)
                single[url] = (*single.get(url, ()), *signers(text[place + 1 :]))
            else:
                everywhere += signers(text)
        return cls(everywhere=tuple(everywhere), channels=tuple(single.items()))

    def signers_of_package(self, record: RepoDataRecord) -> tuple[TrustedSigner, ...]:
        """Return the signers of whom one must attest a package; empty when none has to."""
        named = [signers for url, signers in self.channels if url == _channel_url(str(record.channel or ""))]
        return (*(signer for signers in named for signer in signers), *self.everywhere)


def verify_attestations(records: Sequence[RepoDataRecord], rules: RequiredSigners) -> None:
    """Verify the attestations of packages.

    Raises:
        ProvenanceBroken: with every package that lacks one.
        DownloadFailed, TokenRefused: when a server does not send them.
    """
    refusals = []
    for record in records:
        if signers := rules.signers_of_package(record):
            try:
                _verify_attestation(record, signers)
            except ProvenanceBroken as error:
                refusals.append(error)
    if refusals:
        first: KilnError = refusals[0]
        more = f"; and {len(refusals) - 1} more" if len(refusals) > 1 else ""
        raise ProvenanceBroken(f"{first.what}{more}", why=first.why, hint=first.hint, others=refusals[1:])


def _verify_attestation(record: RepoDataRecord, signers: tuple[TrustedSigner, ...]) -> None:
    if not record.attestations_sha256 or not record.sha256:
        what = "SHA-256" if record.attestations_sha256 else "attestation"
        raise ProvenanceBroken(
            f"the index has no {what} of {record.file_name}",
            hint="--require-attestation CHANNEL=SIGNER requires one of the packages of one channel alone",
        )
    package = f"{record.name.source}-{record.version}-{record.build}"
    if record.file_name not in {f"{package}.conda", f"{package}.tar.bz2"}:
        raise ProvenanceBroken(
            f"the index has {record.file_name} as {package}",
            why="an attestation is of a file's name, and would be of another package",
            hint="leave the package out, or report it to the channel's owner",
        )
    attestation_check.verified_attestation_facts(
        attestation_sidecars.download_sidecar(str(record.url), record.attestations_sha256.hex()),
        file=record.file_name,
        sha256=record.sha256.hex(),
        channel=_channel_url(str(record.channel or "")),
        signers=signers,
    )


def _channel_url(channel: str) -> str:
    """Return the URL of a channel: of a name, conda.anaconda.org's.

    Raises:
        UsageError: when it is not a channel.
    """
    from rattler import Channel

    try:
        return channel_url_credentials.url_without_credentials(Channel(channel).base_url).rstrip("/")
    except Exception as error:  # the library's own
        raise UsageError(f"{channel!r} is not a channel", why=str(error)) from error
