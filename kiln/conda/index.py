"""The index of one subdir as a value: packages are added, removed, withdrawn and patched."""

from __future__ import annotations

import dataclasses
import errno
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from kiln.base import patterns
from kiln.base.errors import BrokenIndex, BrokenPackage
from kiln.base.files import sha256_and_md5
from kiln.base.system.files import temporary_file_with_content
from kiln.conda import package_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


OF_THE_FILE = frozenset(
    {errno.EACCES, errno.ELOOP, errno.ENOENT, errno.ENAMETOOLONG}
)  # errors of the file, not of the disk or the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """A package in the index of a subdir."""

    file: str
    subdir: str
    record: Mapping[str, Any]
    run_exports: Mapping[str, Any]

    @property
    def path(self) -> str:
        """The path of the package in its channel."""
        return f"{self.subdir}/{self.file}"

    @property
    def sha256(self) -> str:
        """The hash of the file."""
        return str(self.record["sha256"])


def read_index_entry(package: Path) -> IndexEntry:
    """Return the index entry of a package file.

    Raises:
        BrokenPackage: when it is not a package, a client could not read its metadata, or its file name differs.
    """
    try:
        record = _read_package_record(package)
    except OSError as error:
        if error.errno not in OF_THE_FILE:
            raise
        raise BrokenPackage(f"{package} cannot be read", why=error.strerror or str(error)) from error
    name = f"{record['name']}-{record['version']}-{record['build']}.conda"
    if name != package.name:
        raise BrokenPackage(f"{package} is {name} by its metadata", hint="rename it, or build it again")
    exports = package_reader.read_info_json(package, "run_exports.json")
    if not isinstance(exports, dict) or not all(
        isinstance(specs, list) and all(isinstance(spec, str) for spec in specs) for specs in exports.values()
    ):
        raise BrokenPackage(f"{package} has a run_exports.json that is not an object of lists of specs")
    return IndexEntry(file=package.name, subdir=record["subdir"], record=record, run_exports=exports)


def _read_package_record(package: Path) -> dict[str, Any]:
    from rattler import PackageRecord

    if not package.is_file():
        raise BrokenPackage(f"{package} is not a regular file")
    digests = sha256_and_md5(package)
    with temporary_file_with_content(
        json.dumps(package_reader.read_info_json(package, "index.json")).encode()
    ) as index:
        try:
            record = PackageRecord.from_index_json(index, size=package.stat().st_size, **digests)
        except Exception as error:  # panics of the library, too
            raise BrokenPackage(f"{package} has an index.json that no client can read", why=str(error)) from error
    values: dict[str, Any] = json.loads(record.to_json())
    if not patterns.is_channel_subdir(str(values.get("subdir"))):
        raise BrokenPackage(
            f"{package} has an index.json that no client can read",
            why=f"its subdir is {str(values.get('subdir'))[:80]!r}, which is not the name of a folder of packages",
        )
    return values


def reason_not_readable(repodata: IndexDocument) -> str:
    """Return why clients cannot read records, and with them the index; empty when they can."""
    from rattler import Channel, RepoData

    with temporary_file_with_content(repodata.to_json()) as file:
        try:
            RepoData.from_path(file).into_repo_data(Channel("any"))
        except Exception as error:  # noqa: BLE001 - panics of the library, too
            return str(error)
    return ""


def invalid_dependency(record: Record) -> str:
    """Return the first dependency or constraint that is not a match spec, with the reason; empty without one."""
    from rattler import MatchSpec

    for spec in (*record.get("depends", ()), *record.get("constrains", ())):
        try:
            MatchSpec(spec)
        except Exception as error:  # noqa: BLE001 - panics of the library, too
            return f"{spec!r}: {error}"
    return ""


Record: TypeAlias = "Mapping[str, Any]"
Sections: TypeAlias = "dict[tuple[str, ...], dict[str, Record]]"

# The names of the files of an index.
REPODATA, CURRENT, EXPORTS = "repodata.json", "current_repodata.json", "run_exports.json"
BASE, INSTRUCTIONS = "repodata_from_packages.json", "patch_instructions.json"
LISTING, SHARDS = "repodata_shards.msgpack.zst", "shards"
VARIANTS = (f"{BASE}.zst", *(f"{name}.bz2" for name in (REPODATA, CURRENT, EXPORTS, BASE)))  # written where they exist
STALE = f"{REPODATA}.jlap"  # patches from older indexes, which become invalid; clients without it read the whole
CHANNELDATA = "channeldata.json"  # of the whole channel
PACKAGES = (".conda", ".tar.bz2")  # the endings of package files
PATCHABLE = frozenset(  # fields of a record that are neither the package's identity nor facts of its file
    {
        *("depends", "constrains", "extra_depends", "track_features", "features"),
        *("license", "license_family", "purls", "python_site_packages_path", "timestamp"),
    }
)

KINDS = ("packages", "packages.conda")  # the older format of packages, and today's
REVISION = "v3"
NEWEST_VERSION = 2  # of repodata: 2 has a base URL (CEP 15); later additions are revisions (CEP 48)
FAULTS = (ValueError, AttributeError, TypeError, RecursionError)
KEEP = "kiln would have to leave packages out of files that clients read"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDocument:
    """A JSON object with sections of records, and the format in which it is written."""

    value: Mapping[str, Any] = field(default_factory=dict)
    indent: int | None = None
    ascii: bool = True
    end: str = ""

    @classmethod
    def parse(cls, data: bytes) -> IndexDocument:
        """Return the document in a file.

        Raises:
            ValueError, TypeError, AttributeError, RecursionError: when it is not an index.
        """
        value = json.loads(data)
        document = cls(
            value=value,
            indent=2 if data.startswith((b"{\n", b"{\r")) else None,
            ascii=data.isascii(),
            end="\n" if data.endswith(b"\n") else "",
        )
        for path, records in document.sections().items():
            if wrong := [key for key, record in records.items() if not isinstance(record, dict)]:
                raise TypeError(f"{file_name_of_key(path, wrong[0])} in {'.'.join(path)} is not an object")
        for key in ("removed", "remove"):
            if not isinstance(value.get(key) or [], list) or not all(
                isinstance(name, str) for name in value.get(key) or ()
            ):
                raise TypeError(f"{key} is not a list of names")
        return document

    def to_json(self) -> bytes:
        """Return the content of the file."""
        separators = (",", ":") if self.indent is None else None
        text = json.dumps(self.value, indent=self.indent, separators=separators, ensure_ascii=self.ascii)
        return (text + self.end).encode()

    def sections(self) -> Sections:
        """Return the records by the path of their section and by their key there."""
        sections: Sections = {(kind,): dict(self.value[kind]) for kind in KINDS if self.value.get(kind)}
        for kind, records in (self.value.get(REVISION) or {}).items():
            sections[REVISION, kind] = dict(records)
        return sections

    def records(self) -> dict[str, Record]:
        """Return all records by the names of their files."""
        return {
            file_name_of_key(path, key): record
            for path, records in self.sections().items()
            for key, record in records.items()
        }

    def with_edited_records(self, change: Callable[[str, Record], Record | None]) -> IndexDocument:
        """Return the document with each record changed, by its file name, or removed where the change returns None."""
        sections: Sections = {}
        for path, records in self.sections().items():
            changed = {key: change(file_name_of_key(path, key), record) for key, record in records.items()}
            sections[path] = {key: record for key, record in changed.items() if record is not None}
        return self._with_sections(sections)

    def without_files(self, names: Iterable[str]) -> IndexDocument:
        """Return the document without the records of some files."""
        removed = self.records().keys() & frozenset(names)
        return (
            self if not removed else self.with_edited_records(lambda file, record: None if file in removed else record)
        )

    def with_records(self, records: Mapping[str, Record]) -> IndexDocument:
        """Return the document with records added; they replace those of the same files."""
        return self.without_files(records).with_records_in_sections(
            (("packages.conda" if file.endswith(".conda") else "packages",), file, record)
            for file, record in records.items()
        )

    def with_records_from_document(self, other: IndexDocument, names: Iterable[str]) -> IndexDocument:
        """Return the document with another document's records of some files, in that document's sections."""
        files = frozenset(names)
        if not files:
            return self
        return self.without_files(files).with_records_in_sections(
            (path, key, record)
            for path, records in other.sections().items()
            for key, record in records.items()
            if file_name_of_key(path, key) in files
        )

    def with_records_in_sections(self, additions: Iterable[tuple[tuple[str, ...], str, Record]]) -> IndexDocument:
        """Return the document with more records, each by the path of its section and its key."""
        sections, changed = self.sections(), set()
        for path, key, record in additions:
            sections.setdefault(path, {})[key] = record
            changed.add(path)
        return self._with_sections(
            {path: dict(sorted(keys.items())) if path in changed else keys for path, keys in sections.items()}
        )

    def _with_sections(self, sections: Sections) -> IndexDocument:
        plain = {path[0]: records for path, records in sections.items() if len(path) == 1}
        revised = {path[1]: records for path, records in sections.items() if len(path) == 2}
        value = {**self.value, **plain, **({REVISION: revised} if revised else {})}
        return dataclasses.replace(self, value=_with_updated_record_counts(value) if revised else value)


def file_name_of_key(path: tuple[str, ...], key: str) -> str:
    """Return the file name of a key in a section."""
    return key if len(path) == 1 else f"{key}.{path[1]}"


def require_writable(name: str, document: IndexDocument) -> None:
    """Refuse an index with packages that kiln could not write in every form."""
    version = document.value.get("repodata_version", 1)
    if not isinstance(version, int) or version > NEWEST_VERSION:
        raise BrokenIndex(f"the index of {name} has repodata_version {version!r}", why=KEEP)
    for key in document.value.keys() - {*KINDS, REVISION, "info", "removed"}:
        if _lists_packages(document.value[key]):
            raise BrokenIndex(f"the index of {name} lists packages below {key!r}, which kiln does not know", why=KEEP)


def _lists_packages(value: object, depth: int = 3) -> bool:
    if not isinstance(value, dict) or not depth:
        return False
    return {"name", "version"} <= value.keys() or any(_lists_packages(item, depth - 1) for item in value.values())


def _with_updated_record_counts(value: dict[str, Any]) -> dict[str, Any]:
    """Return an index with the number of its revision's records in ``info``, where it had that number before."""
    info = value.get("info")
    revisions = info.get("repodata_revisions") if isinstance(info, dict) else None
    revision = revisions.get(REVISION) if isinstance(revisions, dict) else None
    records = [record for kind in value[REVISION].values() for record in kind.values()]
    if not isinstance(revision, dict) or revision.get("n_packages", len(records)) == len(records):
        return value
    assert isinstance(info, dict)
    assert isinstance(revisions, dict)
    moments = [record["indexed_timestamp"] for record in records if "indexed_timestamp" in record]
    ends = {"oldest": min(moments, default=None), "newest": max(moments, default=None)}
    times = {key: moment for key, moment in ends.items() if key in revision}
    counted = {**revision, "n_packages": len(records), **times}
    return {**value, "info": {**info, "repodata_revisions": {**revisions, REVISION: counted}}}


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

    def patched_record(self, file: str) -> IndexDocument:
        """Return one package alone, as clients see it if it is offered."""
        patch = self.instructions.records().get(file, {})
        return self.base.with_edited_records(lambda name, record: {**record, **patch} if name == file else None)

    def unreadable_files(self) -> frozenset[str]:
        """Return the files whose records no client can read: one of them makes the whole index unreadable."""
        if not reason_not_readable(self.repodata):
            return frozenset()
        return frozenset(
            file_name_of_key(path, key)
            for path, records in self.repodata.sections().items()
            for key, record in records.items()
            if reason_not_readable(IndexDocument().with_records_in_sections([(path, key, record)]))
        )

    def without_patches(self, names: Iterable[str]) -> SubdirIndex:
        """Return this index with the patches of some packages forgotten; what clients see does not change."""
        return dataclasses.replace(self, instructions=self.instructions.without_files(names))

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
