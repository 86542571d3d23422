"""The index of one subdir as a value: packages are added, removed, withdrawn and patched.

Any tool may have written it. Clients see ``repodata.json``; each change is made to the existing files, so that the
rest stays: other records, and keys and sections that kiln does not know.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kiln.repodata.index_document import KINDS, PACKAGES, IndexDocument, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.repodata.index_entry import IndexEntry


@dataclass(frozen=True, kw_only=True)  # without slots, for the cached properties
class SubdirIndex:
    """All packages of a subdir.

    ``repodata`` is what clients see, ``base`` has the packages' own records (``repodata_from_packages.json``).
    ``instructions`` are patched fields and withdrawn files (conda-index documents the form), so any later index keeps
    them. ``current`` are the files in ``current_repodata.json``, ``listing`` is the list of shards without the shards,
    ``variants`` are the names of the channel's compressed files, and ``changed`` the names of packages whose records
    were changed since they were read.
    """

    name: str
    repodata: IndexDocument
    base: IndexDocument
    exports: IndexDocument
    instructions: IndexDocument
    current: frozenset[str] = frozenset()
    listing: Mapping[str, Any] = field(default_factory=dict)
    variants: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()

    @classmethod
    def empty(cls, name: str) -> SubdirIndex:
        """Return the index of a subdir without packages, run exports (CEP 12) and patches."""
        kinds: dict[str, Any] = {kind: {} for kind in KINDS}
        repodata = IndexDocument(value={"info": {"subdir": name}, **kinds, "removed": [], "repodata_version": 1})
        return cls(
            name=name,
            repodata=repodata,
            base=repodata,
            exports=IndexDocument(value={"info": {"subdir": name, "version": 1}, **kinds}),
            instructions=IndexDocument(value={"patch_instructions_version": 1, "remove": [], "revoke": [], **kinds}),
        )

    @cached_property
    def records(self) -> dict[str, Record]:
        """The packages' own records by file name, also of those that were withdrawn."""
        return self.base.records()

    @property
    def visible_records(self) -> dict[str, Record]:
        """The records that clients see, in the order of their names."""
        return dict(sorted(self.repodata.records().items()))

    @cached_property
    def removed_files(self) -> frozenset[str]:
        """The files that the index no longer offers."""
        lists = (self.repodata.value.get("removed"), self.instructions.value.get("remove"))
        return frozenset(name for names in lists for name in names or ())

    @property
    def base_url(self) -> str:
        """The URL of the packages, when they are not next to the index (CEP 15)."""
        info = self.repodata.value.get("info")
        return str(info.get("base_url") or "") if isinstance(info, dict) else ""

    @property
    def files_next_to_index(self) -> frozenset[str]:
        """The package files that must be next to the index: all but wheels, which may be anywhere."""
        files = (file for file in self.records if file.endswith(PACKAGES))
        return frozenset() if self.base_url else frozenset(files)

    def with_packages(self, entries: Iterable[IndexEntry]) -> SubdirIndex:
        """Return this index with packages added; a withdrawn one stays withdrawn."""
        new = {entry.file: entry for entry in entries if entry.subdir == self.name}
        records = {file: dict(sorted(entry.record.items())) for file, entry in new.items()}
        patches = self.instructions.records()
        offered = {
            file: {**record, **patches.get(file, {})}
            for file, record in records.items()
            if file not in self.removed_files
        }
        exports = {file: {"run_exports": new[file].run_exports} for file in offered}
        return dataclasses.replace(
            self,
            repodata=self.repodata.with_records(offered),
            base=self.base.with_records(records),
            exports=self.exports.with_records(exports),
            changed=self.changed | {str(record["name"]) for record in records.values()},
        )

    def without_packages(self, names: Iterable[str]) -> SubdirIndex:
        """Return this index as if packages had never been in it."""
        removed = frozenset(names)
        return dataclasses.replace(
            self._without_visible_records(removed),
            base=self.base.without_files(removed),
            repodata=_with_files_removed_from_list(self.repodata.without_files(removed), "removed", removed),
            instructions=_with_files_removed_from_list(self.instructions.without_files(removed), "remove", removed),
        )

    def with_packages_withdrawn(self, names: Iterable[str]) -> SubdirIndex:
        """Return this index with packages withdrawn: not offered, but known."""
        removed = frozenset(names)
        hidden = self._without_visible_records(removed)
        return dataclasses.replace(
            hidden,
            repodata=_with_files_added_to_list(hidden.repodata, "removed", removed),
            instructions=_with_files_added_to_list(self.instructions, "remove", removed),
        )

    def with_patched_record(self, file: str, fields: Mapping[str, Any]) -> SubdirIndex:
        """Return this index with fields of one package's record replaced."""
        patch = {**self.instructions.records().get(file, {}), **fields}
        return dataclasses.replace(
            self,
            repodata=self.repodata.with_edited_records(
                lambda name, record: {**record, **fields} if name == file else record
            ),
            instructions=self.instructions.with_records({file: patch}),
            changed=self.changed | {str(self.records[file]["name"])},
        )

    def with_field_of_records_set(self, key: str, texts: Mapping[str, str]) -> SubdirIndex:
        """Return this index with a field of some packages' own records set, by their file names."""

        def with_field_set(name: str, record: Record) -> Record:
            return {**record, key: texts[name]} if name in texts else record

        names = {str(record["name"]) for file, record in self.records.items() if file in texts}
        return dataclasses.replace(
            self,
            repodata=self.repodata.with_edited_records(with_field_set) if names else self.repodata,
            base=self.base.with_edited_records(with_field_set) if names else self.base,
            changed=self.changed | names,
        )

    def _without_visible_records(self, removed: frozenset[str]) -> SubdirIndex:
        names = {str(record["name"]) for file, record in self.repodata.records().items() if file in removed}
        return dataclasses.replace(
            self,
            repodata=self.repodata.without_files(removed),
            exports=self.exports.without_files(removed),
            changed=self.changed | names,
        )


def _with_files_removed_from_list(document: IndexDocument, key: str, removed: frozenset[str]) -> IndexDocument:
    names = document.value.get(key) or []
    if removed.isdisjoint(names):
        return document
    return dataclasses.replace(document, value={**document.value, key: [name for name in names if name not in removed]})


def _with_files_added_to_list(document: IndexDocument, key: str, names: frozenset[str]) -> IndexDocument:
    existing = document.value.get(key) or []
    if names <= set(existing):
        return document
    return dataclasses.replace(document, value={**document.value, key: sorted({*existing, *names})})
