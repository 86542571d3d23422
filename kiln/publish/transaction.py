"""A publication as a transaction: staged, tried out, promoted and indexed, or reversed.

The steps and their journal are the same for every channel. A target says how each step is done: by writing the
channel's files (`kiln.publish.stores`), or by requests to a server that keeps its own index
(`kiln.publish.servers`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kiln.base.errors import KilnError, TokenRefused, UploadFailed
from kiln.publish.model import Journal, JournalFile, PublicationPhase, sorted_by_dependencies

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from kiln.conda.index import IndexEntry
    from kiln.conda.provenance.records import ReleaseAttestations

AGAIN = "run the same command again; packages that are there are not uploaded again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The new packages of a publication: ``entries`` in the order of need, ``files`` by the path in the channel."""

    journal: Journal
    entries: tuple[IndexEntry, ...]
    files: Mapping[str, Path]

    @classmethod
    def from_journal(cls, journal: Journal, packages: Sequence[Path], entries: Sequence[IndexEntry]) -> Publication:
        """Return the publication that a journal describes."""
        new = tuple(entry for entry in sorted_by_dependencies(entries) if entry.path in journal.fresh)
        return cls(journal=journal, entries=new, files={e.path: p for e, p in zip(entries, packages, strict=True)})


class PublicationTarget(Protocol):
    """A channel that packages are published to."""

    @property
    def name(self) -> str:
        """The channel's name in messages, without credentials."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the person who publishes there."""

    @property
    def journal(self) -> JournalFile:
        """The journal of the publication under way."""

    def channel_url(self) -> str:
        """Return the URL at which clients read the channel."""

    def package_hashes(self) -> dict[str, str]:
        """Return the hashes of the channel's packages, by path."""

    def damaged_paths(self) -> frozenset[str]:
        """Return the packages that the channel offers without their files; they are published anew."""

    def exclusive_lock(self) -> AbstractContextManager[None]:
        """Hold the channel during the block; raises AlreadyRunning."""

    def prepare_journal(self, journal: Journal, entries: Sequence[IndexEntry]) -> Journal:
        """Return the journal to begin or resume with; raise before anything is written when it cannot succeed."""

    def stage(self, publication: Publication) -> str:
        """Bring packages to where they are tried out, and return the URL of that channel."""

    def promote(self, publication: Publication, attestation: ReleaseAttestations | None) -> None:
        """Bring the staged packages to the channel; a server gets their attestations with them."""

    def add_packages_to_index(self, publication: Publication, attestation: ReleaseAttestations | None) -> None:
        """Have the channel's index offer the packages, and keep the records of how they were made."""

    def remove_from_staging(self, publication: Publication) -> None:
        """Remove published packages from staging."""

    def withdraw_packages(self, journal: Journal) -> None:
        """Remove the new packages from the channel; they stay in staging."""

    def abort(self, journal: Journal) -> tuple[str, ...]:
        """Remove this publication's packages from the channel and from staging, with their records.

        Return remarks on packages that stay, since they may be another's.
        """


def publish(
    target: PublicationTarget,
    packages: Sequence[Path],
    entries: Sequence[IndexEntry],
    try_out: Callable[[str], None],
    attestation: ReleaseAttestations | None = None,
) -> tuple[str, ...]:
    """Publish packages, and return the paths that are new in the channel, in the order of need.

    ``entries`` are the index entries of ``packages``, in the same order. ``try_out`` gets the URL of a channel that has
    the new packages alone, and raises when they fail; ``attestation`` is published with them. An interrupted
    publication of the same packages is resumed.

    Raises:
        PublicationPending: when another publication is under way.
        AlreadyRunning: when another process publishes to the channel.
        UploadFailed: naming how far it came; the same command resumes there.
        TokenRefused: when a server does not accept the token.
    """
    with target.exclusive_lock():
        journal = _begin_journal(target, entries)
        publication = Publication.from_journal(journal, packages, entries)
        if publication.entries:
            if journal.phase is PublicationPhase.STAGING:
                try_out(target.stage(publication))
                target.journal.write((target.journal.read() or journal).with_promoting_phase())
            _promote_or_reverse(target, publication, attestation)
            target.add_packages_to_index(publication, attestation)
            target.remove_from_staging(publication)
        target.journal.remove()
    return tuple(entry.path for entry in publication.entries)


def abort(target: PublicationTarget, note: Callable[[str], None] = lambda _: None) -> tuple[str, ...]:
    """Reverse the publication that is under way, and return the paths of its packages; ``note`` gets what stays.

    Raises:
        UploadFailed, TokenRefused: when a server does not remove something; another call continues.
    """
    with target.exclusive_lock():
        journal = target.journal.read()
        if journal is None:
            return ()
        remarks = target.abort(journal)
        target.journal.remove()
    for remark in remarks:
        note(remark)
    return journal.fresh


def _begin_journal(target: PublicationTarget, entries: Sequence[IndexEntry]) -> Journal:
    """Return the journal of a publication, which is in the channel from now on if anything is new."""
    hashes, damaged = target.package_hashes(), target.damaged_paths()
    new = Journal.from_entries(entries, {path: sha256 for path, sha256 in hashes.items() if path not in damaged})
    pending = target.journal.read()
    if pending is not None:
        pending.require_same_publication(new)
    journal = target.prepare_journal(pending or new, entries)
    if pending is None and journal.fresh and not target.journal.write_if_absent(journal):
        pending = target.journal.read() or journal
        pending.require_same_publication(journal)
        return pending
    return journal


def _promote_or_reverse(
    target: PublicationTarget, publication: Publication, attestation: ReleaseAttestations | None
) -> None:
    try:
        target.promote(publication, attestation)
    except (UploadFailed, TokenRefused) as error:
        raise type(error)(error.what, why=f"{error.why}; {_reverse_promotion(target)}", hint=AGAIN) from error


def _reverse_promotion(target: PublicationTarget) -> str:
    """Reverse a failed promotion, and return the outcome in words."""
    journal = target.journal.read()
    assert journal is not None, "a promotion begins with a journal"
    try:
        target.withdraw_packages(journal)
    except KilnError as error:
        remaining = target.package_hashes().keys() & journal.fresh
        return f"{len(remaining)} of {len(journal.fresh)} packages are in {target.name} and stay there: {error.what}"
    hashes = target.package_hashes()
    if others := [path for path in journal.fresh if hashes.get(path) == journal.packages[path]]:
        return f"{len(others)} of its packages are in {target.name} and stay there: their upload was not confirmed"
    return f"nothing of it is in {target.name}"
