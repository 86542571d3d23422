"""A JSON file of an index, changed record by record: the rest stays as it was written.

Sources of the sections: CEP 36 (``packages``, ``packages.conda``), CEP 48 (``v3``, whose keys are file names without
the ending).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from kiln.errors import BrokenIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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
            ((section_of_file(file),), file, record) for file, record in records.items()
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


def section_of_file(file: str) -> str:
    """Return the section that a file's record belongs to."""
    return "packages.conda" if file.endswith(".conda") else "packages"


def require_writable(name: str, document: IndexDocument) -> None:
    """Refuse an index with packages that kiln could not write in every form.

    Raises:
        BrokenIndex: naming the key or the version.
    """
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
    counted = {**revision, "n_packages": len(records), **_oldest_and_newest_times(revision, records)}
    return {**value, "info": {**info, "repodata_revisions": {**revisions, REVISION: counted}}}


def _oldest_and_newest_times(revision: Mapping[str, Any], records: Iterable[Record]) -> dict[str, Any]:
    """Return the times of the oldest and the newest record, where the revision had them before."""
    moments = [record["indexed_timestamp"] for record in records if "indexed_timestamp" in record]
    ends = {"oldest": min(moments, default=None), "newest": max(moments, default=None)}
    return {key: moment for key, moment in ends.items() if key in revision}
