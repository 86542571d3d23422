"""What the index says of one package: its record, and what it exports to those who build with it."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import archive, files
from kiln.errors import BrokenPackage

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A package in the index of a subdir."""

    file: str
    subdir: str
    record: Mapping[str, Any]
    run_exports: Mapping[str, Any]

    @property
    def path(self) -> str:
        """Where the package lies in its channel."""
        return f"{self.subdir}/{self.file}"

    @property
    def sha256(self) -> str:
        """The hash of the file."""
        return str(self.record["sha256"])


def read(package: Path) -> Entry:
    """Return what the index says of a package file.

    Raises:
        BrokenPackage: when it is no package, its metadata is not what a client could read, or its name says another.
    """
    record = _record(package)
    named = f"{record['name']}-{record['version']}-{record['build']}.conda"
    if named != package.name:
        raise BrokenPackage(f"{package} says of itself that it is {named}", hint="give it its name back, or build it")
    exports = archive.read_info(package, "run_exports.json")
    return Entry(file=package.name, subdir=record["subdir"], record=record, run_exports=exports)


def _record(package: Path) -> dict[str, Any]:
    from rattler import PackageRecord

    digests = files.digests(package)
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index.json"
        index.write_text(json.dumps(archive.read_info(package, "index.json")))
        try:
            record = PackageRecord.from_index_json(
                index, size=package.stat().st_size, sha256=digests["sha256"], md5=digests["md5"]
            )
        except OSError as error:
            raise BrokenPackage(f"{package} has an index.json that no client can read", why=str(error)) from error
    found: dict[str, Any] = json.loads(record.to_json())
    return found
