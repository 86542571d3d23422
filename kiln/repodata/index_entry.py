"""The index entry of a package: its record and its run exports."""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln import files, name_rules
from kiln.conda_package import reader
from kiln.errors import BrokenPackage
from kiln.operating_system.file_operations import temporary_file_with_content

if TYPE_CHECKING:
    from collections.abc import Mapping
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
    exports = reader.read_info_json(package, "run_exports.json")
    if not _are_valid_run_exports(exports):
        raise BrokenPackage(f"{package} has a run_exports.json that is not an object of lists of specs")
    return IndexEntry(file=package.name, subdir=record["subdir"], record=record, run_exports=exports)


def _are_valid_run_exports(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(specs, list) and all(isinstance(spec, str) for spec in specs) for specs in value.values()
    )


def _read_package_record(package: Path) -> dict[str, Any]:
    from rattler import PackageRecord

    if not package.is_file():
        raise BrokenPackage(f"{package} is not a regular file")
    digests = files.sha256_and_md5(package)
    with temporary_file_with_content(json.dumps(reader.read_info_json(package, "index.json")).encode()) as index:
        try:
            record = PackageRecord.from_index_json(index, size=package.stat().st_size, **digests)
        except Exception as error:  # panics of the library, too
            raise BrokenPackage(f"{package} has an index.json that no client can read", why=str(error)) from error
    values: dict[str, Any] = json.loads(record.to_json())
    if not name_rules.is_channel_subdir(str(values.get("subdir"))):
        raise BrokenPackage(
            f"{package} has an index.json that no client can read",
            why=f"its subdir is {str(values.get('subdir'))[:80]!r}, which is not the name of a folder of packages",
        )
    return values
