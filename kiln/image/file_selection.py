"""The files of a prefix that programs need to run, without those for building."""

from __future__ import annotations

import fnmatch
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import files
from kiln.image.layers import LayerEntry, entries_of_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


LEFT_OUT = Path(__file__).with_name("left_out.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPackage:
    """An installed package: its record, its files (paths in the prefix), and whether it is a rehearsal's."""

    name: str
    version: str
    build: str
    file_name: str
    sha256: str
    license: str
    depends: tuple[str, ...]
    constrains: tuple[str, ...]
    timestamp: int  # milliseconds since 1970
    files: tuple[str, ...]
    rehearsal: bool
    subdir: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSelection:
    """The packages and files that are excluded from an image."""

    packages: frozenset[str]
    files: re.Pattern[str]

    def includes(self, path: str) -> bool:
        """Return whether the image includes the file at a path in the prefix."""
        return self.files.fullmatch(path) is None


def read_file_selection(excluded: Iterable[str]) -> FileSelection:
    """Read the table of excluded packages and files, fnmatch patterns; ``excluded`` are more packages."""
    rows = files.csv_rows(LEFT_OUT)
    patterns = (fnmatch.translate(row["pattern"]) for row in rows if row["kind"] == "file")
    return FileSelection(
        packages=frozenset([*excluded, *(row["pattern"] for row in rows if row["kind"] == "package")]),
        files=re.compile("|".join(patterns)),
    )


def installed_packages(prefix: Path) -> tuple[InstalledPackage, ...]:
    """Return the packages in a prefix, sorted by name."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (prefix / "conda-meta").glob("*.json")]
    return tuple(sorted(map(_package_from_record, records), key=lambda package: package.name))


def included_entries(
    prefix: Path, package: InstalledPackage, selection: FileSelection, *, below: str
) -> Iterator[LayerEntry]:
    """Yield the files of a package that the image includes, in its folder ``below``."""
    if package.name not in selection.packages:
        yield from entries_of_tree(prefix, filter(selection.includes, sorted(package.files)), below=below)


def _package_from_record(record: dict[str, Any]) -> InstalledPackage:
    return InstalledPackage(
        name=record["name"],
        version=record["version"],
        build=record["build"],
        file_name=record["fn"],
        sha256=record.get("sha256") or "",
        license=record.get("license") or "",
        depends=tuple(record.get("depends") or ()),
        constrains=tuple(record.get("constrains") or ()),
        timestamp=int(record.get("timestamp") or 0),
        files=tuple(record.get("files") or ()),
        rehearsal=_is_rehearsal_package(Path(record.get("extracted_package_dir") or "")),
        subdir=record.get("subdir") or "",
        url=record.get("url") or "",
    )


def _is_rehearsal_package(package: Path) -> bool:
    about = package / "info" / "about.json"
    return about.is_file() and bool(json.loads(about.read_text(encoding="utf-8")).get("extra", {}).get("rehearsal"))
