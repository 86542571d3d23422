"""A channel whose files kiln writes, as the target of a publication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.errors import HashMismatch
from kiln.publish import attestation_sidecars
from kiln.publish.journal import Journal, JournalFile, PublicationPhase
from kiln.publish.publication_order import subdirs_with_defaults
from kiln.publish.record_chain_and_sbom_files import (
    chain_without_publication,
    remove_bills_of_materials,
    write_bills_and_return_chain,
)
from kiln.publish.stores.index import ChannelIndex
from kiln.repodata.editable_index import SubdirIndex
from kiln.repodata.index_document import CHANNELDATA
from kiln.repodata.index_file_formats import render_index_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from kiln.model.provenance import ReleaseAttestations
    from kiln.publish.stores import Store
    from kiln.publish.transaction import Publication
    from kiln.repodata.index_entry import IndexEntry

JOURNAL = ".kiln/journal.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTarget:
    """A channel in a store, as `kiln.publish.transaction.PublicationTarget` describes."""

    store: Store

    @property
    def name(self) -> str:
        """The store's name."""
        return self.store.name

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on readers during a publication, and on packages that the index has at another URL."""
        subdirs = map(self.channel_index.subdir_packages, self.channel_index.subdir_names())
        elsewhere = (
            f"clients fetch the packages of {subdir.name} from {subdir.base_url}, as its index says: "
            "copy the new ones there, too"
            for subdir in subdirs
            if subdir.base_url
        )
        return (*self.store.notes, *elsewhere)

    @property
    def channel_index(self) -> ChannelIndex:
        """The channel's index."""
        return ChannelIndex(store=self.store)

    @property
    def journal(self) -> JournalFile:
        """The journal, in the channel."""
        return JournalFile(store=self.store, path=JOURNAL)

    def channel_url(self) -> str:
        """Return the URL at which clients read the channel."""
        return self.store.url("").rstrip("/")

    def package_hashes(self) -> dict[str, str]:
        """Return the hashes of the packages in the index."""
        return self.channel_index.package_hashes()

    def exclusive_lock(self) -> AbstractContextManager[None]:
        """Hold the store."""
        return self.store.exclusive_lock()

    def prepare_journal(self, journal: Journal, entries: Sequence[IndexEntry]) -> Journal:
        """Return the journal; an index that kiln cannot keep is refused."""
        self.channel_index.subdir_indexes()
        self.channel_index.channeldata_with_entries(entries)
        return journal

    def stage(self, publication: Publication) -> str:
        """Store packages in a channel of their own within the channel."""
        staging = publication.journal.staging_folder
        for entry in publication.entries:
            place = f"{staging}/{entry.path}"
            if not self.store.has_file_with_hash(place, entry.sha256):
                self.store.store_package(publication.files[entry.path], place, entry.sha256)
        for name in subdirs_with_defaults(entry.subdir for entry in publication.entries):
            forms = render_index_files(SubdirIndex.empty(name).with_packages(publication.entries))
            self.store.write(f"{staging}/{name}/repodata.json", forms["repodata.json"])
        return self.store.url(staging)

    def promote(self, publication: Publication, attestation: ReleaseAttestations | None) -> None:  # noqa: ARG002 - of servers
        """Move packages to where the index will look for them."""
        for entry in publication.entries:
            staged = f"{publication.journal.staging_folder}/{entry.path}"
            if self.store.has_file_with_hash(staged, entry.sha256):
                self.store.move(staged, entry.path)
            elif not self.store.has_file_with_hash(entry.path, entry.sha256):
                raise HashMismatch(
                    f"{entry.path} is neither staged nor in {self.name}",
                    why="another program changed the channel's folder, or the disk lost the file",
                    hint="take the publication back with --abort, then publish again",
                )

    def add_packages_to_index(self, publication: Publication, attestation: ReleaseAttestations | None) -> None:
        """Offer packages, with their attestations and their records."""
        channeldata = self.channel_index.channeldata_with_entries(publication.entries)
        entries = [
            attestation_sidecars.write_package_sidecar(self.store, entry, attestation) for entry in publication.entries
        ]
        self.channel_index.add_packages(
            entries, write_bills_and_return_chain(self.store, publication.journal, attestation)
        )
        if channeldata is not None:
            self.store.write(CHANNELDATA, channeldata)

    def remove_from_staging(self, publication: Publication) -> None:
        """Remove the folder for staging."""
        self.store.remove(publication.journal.staging_folder)

    def withdraw_packages(self, journal: Journal) -> None:
        """Remove packages from the index where it may offer any, then their files."""
        if journal.phase is PublicationPhase.PROMOTING and (
            self.store.changes_stepwise or self.package_hashes().keys() & journal.fresh
        ):
            self.channel_index.withdraw_packages(
                set(journal.fresh), SubdirIndex.without_packages, chain_without_publication(self.store, journal)
            )
        for path in journal.fresh:
            self.store.remove(path)
            attestation_sidecars.undo_sidecar_writes(self.store, path)

    def abort(self, journal: Journal) -> tuple[str, ...]:
        """Remove packages, then the bills of their records and the folder for staging; nothing stays."""
        self.withdraw_packages(journal)
        remove_bills_of_materials(self.store, journal)
        self.store.remove(journal.staging_folder)
        return ()
