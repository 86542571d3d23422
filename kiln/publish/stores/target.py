"""A channel whose files kiln writes, as the target of a publication and of later changes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.base.errors import BrokenPackage, HashMismatch, ProvenanceBroken, UsageError, did_you_mean
from kiln.conda import index_files
from kiln.conda.index import (
    CHANNELDATA,
    PATCHABLE,
    STALE,
    IndexEntry,
    SubdirIndex,
    invalid_dependency,
    reason_not_readable,
)
from kiln.conda.index_files import read_packages_only, read_whole_index, render_index_files, without_unreadable_files
from kiln.conda.provenance import bundles
from kiln.publish import attestations
from kiln.publish.model import Journal, JournalFile, PublicationPhase, sorted_and_split_by_subdir, subdirs_with_defaults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from contextlib import AbstractContextManager

    from kiln.conda.provenance.records import ReleaseAttestations
    from kiln.publish.model import Store
    from kiln.publish.transaction import Publication


def yank_packages(target: StoreTarget, names: Sequence[str], *, delete: bool = False) -> tuple[str, ...]:
    """Withdraw packages from the index, by their names or paths, and return the paths; ``delete`` removes the files."""
    with _locked_channel_index(target) as index:
        paths = [index.find_package_path(name) for name in names]

        def withdrawn(subdir: SubdirIndex, names: AbstractSet[str]) -> SubdirIndex:
            known = subdir.records.keys() & names
            return (subdir.without_packages(names) if delete else subdir).with_packages_withdrawn(known)

        index.withdraw_packages(set(paths), withdrawn)
        for path in paths if delete else ():
            target.store.remove(path)
            attestations.remove_sidecars(target.store, path)
    return tuple(paths)


def patch_record(target: StoreTarget, name: str, fields: Mapping[str, Any]) -> str:
    """Replace fields of a package's record in the index, and return its path; the file is not changed.

    Raises:
        UsageError: a field is not patched, the package was deleted, or no client could read the record.
    """
    for field in fields:
        if field == bundles.SIDECAR_FIELD:
            raise UsageError(f"{field} is not patched", hint="--reindex sets it from the files of attestations")
        if field not in PATCHABLE:
            known = ", ".join(sorted(PATCHABLE))
            raise UsageError(f"{field!r} is not patched", hint=did_you_mean(field, PATCHABLE) or f"one of {known}")
    with _locked_channel_index(target) as index:
        path = index.find_package_path(name)
        name_of_subdir, _, file = path.partition("/")
        if file not in index.subdir_packages(name_of_subdir).records:
            raise UsageError(f"{path} was deleted: it has no record")

        def patched(subdir: SubdirIndex) -> SubdirIndex:
            if subdir.name != name_of_subdir:
                return subdir
            changed = subdir.with_patched_record(file, fields)
            record = changed.patched_record(file)
            if why := reason_not_readable(record) or invalid_dependency(record.records()[file]):
                raise UsageError(f"no client could read {path} with this patch", why=why)
            return changed

        index.edit_subdirs(patched)
    return path


def reindex_channel(
    target: StoreTarget, read: Callable[[str], IndexEntry], note: Callable[[str], None] = lambda _: None
) -> tuple[int, tuple[BrokenPackage, ...]]:
    """Index the files in the channel; only those are read as packages whose hash the index does not have.

    Returns how many packages were read, and the errors of those that the index leaves out: a record of a file that no
    client could install would only mislead solvers. New files of attestations are taken into the index, too. Files of
    the index, or records, that cannot be read are written anew; ``note`` gets their names.
    """
    unreadable: set[str] = set()
    with _locked_channel_index(target, unreadable) as index:
        subdirs = index.subdir_indexes()
        files = {name: target.store.package_sizes(name) for name in subdirs}
        removed = {
            f"{name}/{file}" for name in subdirs for file in subdirs[name].files_next_to_index - files[name].keys()
        }
        hashes_in_index = {
            f"{name}/{file}": str(subdirs[name].records.get(file, {}).get("sha256", ""))
            for name in subdirs
            for file in files[name]
        }
        malformed = {f"{name}/{file}" for name, subdir in subdirs.items() for file in subdir.unreadable_files()}
        unknown = [
            path
            for path, sha256 in hashes_in_index.items()
            if path in malformed
            or ((sha256 or path.endswith(".conda")) and not target.store.has_file_with_hash(path, sha256))
        ]
        entries, broken = _read_index_entries(unknown, read)
        entries = [attestations.adopt_existing_sidecar(target.store, entry) for entry in entries]
        removed |= broken.keys()
        hashes, invalid = _adopt_new_sidecars(target, subdirs, {*unknown, *removed})

        def reindexed_subdir(subdir: SubdirIndex) -> SubdirIndex:
            missing = {path.partition("/")[2] for path in removed if path.startswith(f"{subdir.name}/")}
            forgotten = {path.partition("/")[2] for path in malformed if path.startswith(f"{subdir.name}/")}
            kept = subdir.without_packages(missing - subdir.removed_files).without_patches(forgotten)
            changed = kept.with_packages(entries)
            return changed.with_field_of_records_set(bundles.SIDECAR_FIELD, hashes.get(subdir.name, {}))

        index.edit_subdirs(reindexed_subdir)
    for path in sorted(malformed):
        note(f"{path} had a record that no client could read: it was made anew, without patches of it")
    for path in sorted(unreadable):
        note(f"{path} could not be read: it was made anew from the rest of the index and the .conda files")
    return len(entries), (*broken.values(), *invalid)


def _adopt_new_sidecars(
    target: StoreTarget, subdirs: Mapping[str, SubdirIndex], but: AbstractSet[str]
) -> tuple[dict[str, dict[str, str]], list[BrokenPackage]]:
    """Return the hashes of new sidecars of packages in the index, by subdir and file, and errors of invalid ones."""
    hashes: dict[str, dict[str, str]] = {}
    invalid = []
    for name, subdir in subdirs.items():
        records = subdir.records
        attested = (path.removesuffix(bundles.SIDECAR_ENDING) for path in target.store.sidecar_paths(f"{name}/"))
        for path in attested:
            file = path.partition("/")[2]
            if file not in records or path in but:
                continue
            try:
                if sha256 := attestations.write_content_addressed_sidecar(target.store, path, records[file]):
                    hashes.setdefault(name, {})[file] = sha256
            except (BrokenPackage, ProvenanceBroken) as error:
                invalid.append(BrokenPackage(f"{path}{bundles.SIDECAR_ENDING}: {error.what}", why=error.why))
    return hashes, invalid


@contextlib.contextmanager
def _locked_channel_index(target: StoreTarget, unreadable: set[str] | None = None) -> Iterator[ChannelIndex]:
    """Hold the channel while no publication is under way."""
    with target.exclusive_lock():
        target.journal.require_no_pending_publication()
        yield dataclasses.replace(target.channel_index, unreadable=unreadable)


def _read_index_entries(
    paths: Sequence[str], read: Callable[[str], IndexEntry]
) -> tuple[list[IndexEntry], dict[str, BrokenPackage]]:
    entries, broken = [], {}
    for path in paths:
        try:
            entry = read(path)
        except BrokenPackage as error:
            broken[path] = error
            continue
        if entry.path == path:
            entries.append(entry)
        else:
            broken[path] = BrokenPackage(f"{path} is a package of the subdir {entry.subdir}", hint="move it there")
    return entries, broken


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelIndex:
    """The index of the channel in a store.

    Readers follow the index. Packages come before it and go after it, so that readers never find fewer than it lists.
    With ``unreadable``, files of the index that cannot be read count as missing, and that set gets their paths.
    """

    store: Store
    unreadable: set[str] | None = None

    def package_hashes(self) -> dict[str, str]:
        """Return the hashes of the packages by path, an empty one for a package that was deleted."""
        return {
            f"{subdir.name}/{file}": str(subdir.records.get(file, {}).get("sha256", ""))
            for subdir in map(self.subdir_packages, self.subdir_names())
            for file in subdir.records.keys() | subdir.removed_files
        }

    def subdir_names(self, more: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the names of the channel's subdirs, and of those that it gets."""
        return subdirs_with_defaults({*self.store.subdirs(), *more})

    def subdir_indexes(self, more: Iterable[str] = ()) -> dict[str, SubdirIndex]:
        """Return the whole index by subdir, by default empty; ``more`` are subdirs that the channel gets."""
        return {name: read_whole_index(name, self._subdir_file_reader(name)) for name in self.subdir_names(more)}

    def subdir_packages(self, name: str) -> SubdirIndex:
        """Return the packages of one subdir."""
        return read_packages_only(name, self._subdir_file_reader(name))

    def find_package_path(self, name: str) -> str:
        """Return the path of a package file, by its name or path."""
        paths = self.package_hashes()
        matches = [path for path in paths if path == name or path.endswith(f"/{name}")]
        if len(matches) == 1:
            return matches[0]
        if matches:
            what = f"{len(matches)} subdirs of {self.store.name} have a package {name!r}"
            raise UsageError(what, hint=f"name one of {', '.join(sorted(matches))}")
        hint = did_you_mean(name, [path.split("/")[1] for path in paths]) or "name a whole file name"
        raise UsageError(f"{self.store.name} has no package {name!r}", hint=hint)

    def channeldata_with_entries(self, entries: Sequence[IndexEntry]) -> bytes | None:
        """Return the channel's ``channeldata.json`` with packages added, None where the channel has none."""
        existing = self.store.read(CHANNELDATA)
        return None if existing is None else index_files.channeldata_with_entries(existing, entries)

    def add_packages(self, entries: Sequence[IndexEntry]) -> None:
        """Add packages; step by step, what others need comes first."""
        for part in (*(sorted_and_split_by_subdir(entries) if self.store.changes_stepwise else ()), entries):
            subdirs = {entry.subdir for entry in part}
            self.edit_subdirs(functools.partial(SubdirIndex.with_packages, entries=part), subdirs)

    def withdraw_packages(
        self, paths: AbstractSet[str], edit: Callable[[SubdirIndex, AbstractSet[str]], SubdirIndex]
    ) -> None:
        """Remove packages by an edit; step by step, what needs others goes first."""
        if self.store.changes_stepwise:
            entries = [entry for entry in self._visible_entries() if entry.path in paths]
            for part in reversed(sorted_and_split_by_subdir(entries)):
                self.edit_subdirs(functools.partial(_edited_subdir, edit, {entry.path for entry in part}))
        self.edit_subdirs(functools.partial(_edited_subdir, edit, paths))

    def edit_subdirs(self, edit: Callable[[SubdirIndex], SubdirIndex], more: Iterable[str] = ()) -> None:
        """Change every subdir at the same moment; ``more`` are subdirs that are added."""
        forms = {name: render_index_files(edit(subdir)) for name, subdir in self.subdir_indexes(more).items()}
        self.store.replace_indexes(forms)
        for subdir in forms:
            self.store.remove(f"{subdir}/{STALE}")

    def _visible_entries(self) -> list[IndexEntry]:
        return [
            IndexEntry(file=file, subdir=name, record=record, run_exports={})
            for name in self.subdir_names()
            for file, record in self.subdir_packages(name).visible_records.items()
        ]

    def _subdir_file_reader(self, name: str) -> Callable[[str], bytes | None]:
        def read(file: str) -> bytes | None:
            return self.store.read(f"{name}/{file}")

        return read if self.unreadable is None else without_unreadable_files(name, read, self.unreadable)


def _edited_subdir(
    edit: Callable[[SubdirIndex, AbstractSet[str]], SubdirIndex], paths: AbstractSet[str], subdir: SubdirIndex
) -> SubdirIndex:
    """Return a subdir after an edit of its packages among these; others may have packages of the same file name."""
    return edit(subdir, {path.partition("/")[2] for path in paths if path.partition("/")[0] == subdir.name})


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

    def damaged_paths(self) -> frozenset[str]:
        """Return the packages that the index offers, and whose files are missing or have another size."""
        result = set()
        for subdir in map(self.channel_index.subdir_packages, self.channel_index.subdir_names()):
            sizes = self.store.package_sizes(subdir.name)
            for file in subdir.files_next_to_index - subdir.removed_files:
                if file not in sizes or subdir.records[file].get("size", sizes[file]) != sizes[file]:
                    result.add(f"{subdir.name}/{file}")
        return frozenset(result)

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
        """Offer packages, with their attestations, and the statements and bills that are there by then."""
        channeldata = self.channel_index.channeldata_with_entries(publication.entries)
        entries = [attestations.write_package_sidecar(self.store, entry, attestation) for entry in publication.entries]
        attestations.write_documents(self.store, publication.journal, attestation)
        self.channel_index.add_packages(entries)
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
            self.channel_index.withdraw_packages(set(journal.fresh), SubdirIndex.without_packages)
        for path in journal.fresh:
            self.store.remove(path)
            attestations.undo_sidecar_writes(self.store, path)

    def abort(self, journal: Journal) -> tuple[str, ...]:
        """Remove packages, then what was written about them and the folder for staging; nothing stays."""
        self.withdraw_packages(journal)
        attestations.remove_documents(self.store, journal)
        self.store.remove(journal.staging_folder)
        return ()
