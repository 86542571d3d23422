"""The index of a channel whose files kiln writes, and the provenance records that change at the same moment."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.errors import UsageError, did_you_mean
from kiln.publish.publication_order import sorted_and_split_by_subdir, subdirs_with_defaults
from kiln.publish.record_chain_and_sbom_files import CHAIN
from kiln.repodata import channeldata_update
from kiln.repodata.editable_index import SubdirIndex
from kiln.repodata.index_document import CHANNELDATA, STALE
from kiln.repodata.index_entry import IndexEntry
from kiln.repodata.index_file_formats import render_index_files
from kiln.repodata.index_reading import read_packages_only, read_whole_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from kiln.publish.stores import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelIndex:
    """The index of the channel in a store.

    Readers follow the index. Packages come before it and go after it, so that readers never find fewer than it lists.
    """

    store: Store

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
        """Return the whole index by subdir, by default empty; ``more`` are subdirs that the channel gets.

        Raises:
            BrokenIndex: when a file of it is invalid, or has what kiln cannot keep.
        """
        return {name: read_whole_index(name, self._subdir_file_reader(name)) for name in self.subdir_names(more)}

    def subdir_packages(self, name: str) -> SubdirIndex:
        """Return the packages of one subdir."""
        return read_packages_only(name, self._subdir_file_reader(name))

    def find_package_path(self, name: str) -> str:
        """Return the path of a package file, by its name or path.

        Raises:
            UsageError: when the index does not have it, or several subdirs do.
        """
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
        return None if existing is None else channeldata_update.channeldata_with_entries(existing, entries)

    def add_packages(self, entries: Sequence[IndexEntry], records: bytes) -> None:
        """Add packages, with the chain of their records; step by step, what others need comes first."""
        for part in (*(sorted_and_split_by_subdir(entries) if self.store.changes_stepwise else ()), entries):
            subdirs = {entry.subdir for entry in part}
            self.edit_subdirs(functools.partial(SubdirIndex.with_packages, entries=part), records, subdirs)

    def withdraw_packages(
        self,
        paths: AbstractSet[str],
        edit: Callable[[SubdirIndex, AbstractSet[str]], SubdirIndex],
        records: bytes | None = None,
    ) -> None:
        """Remove packages by an edit, then their records; step by step, what needs others goes first."""
        if self.store.changes_stepwise:
            entries = [entry for entry in self._visible_entries() if entry.path in paths]
            for part in reversed(sorted_and_split_by_subdir(entries)):
                self.edit_subdirs(functools.partial(_edited_subdir, edit, {entry.path for entry in part}))
        self.edit_subdirs(functools.partial(_edited_subdir, edit, paths), records)

    def edit_subdirs(
        self, edit: Callable[[SubdirIndex], SubdirIndex], records: bytes | None = None, more: Iterable[str] = ()
    ) -> None:
        """Change every subdir, and the chain of records at the same moment; ``more`` are subdirs that are added."""
        forms = {name: render_index_files(edit(subdir)) for name, subdir in self.subdir_indexes(more).items()}
        existing = self.store.read(CHAIN)
        chain = (existing or b"") if records is None else records
        folder, name = CHAIN.split("/")
        self.store.replace_indexes({**({folder: {name: chain}} if chain or existing is not None else {}), **forms})
        for subdir in forms:
            self.store.remove(f"{subdir}/{STALE}")

    def _visible_entries(self) -> list[IndexEntry]:
        """Return the entries that readers find at this moment."""
        return [
            IndexEntry(file=file, subdir=name, record=record, run_exports={})
            for name in self.subdir_names()
            for file, record in self.subdir_packages(name).visible_records.items()
        ]

    def _subdir_file_reader(self, name: str) -> Callable[[str], bytes | None]:
        return lambda file: self.store.read(f"{name}/{file}")


def _edited_subdir(
    edit: Callable[[SubdirIndex, AbstractSet[str]], SubdirIndex], paths: AbstractSet[str], subdir: SubdirIndex
) -> SubdirIndex:
    """Return a subdir after an edit of its packages among these; others may have packages of the same file name."""
    return edit(subdir, {path.partition("/")[2] for path in paths if path.partition("/")[0] == subdir.name})
