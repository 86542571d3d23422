"""What of an installed prefix a running program needs: the files of packages, less those that only builders read."""

from __future__ import annotations

import csv
import fnmatch
import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.image.layers import of_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kiln.image.layers import Entry

LEFT_OUT = Path(__file__).with_name("left_out.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A package in a prefix: what its record says, its files (paths in the prefix), and whether a rehearsal made it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which packages and which of their files stay out of an image, in patterns of fnmatch."""

    packages: frozenset[str]
    files: tuple[str, ...]

    def with_packages(self, names: Iterable[str]) -> Selection:
        """The same with more packages left out."""
        return Selection(packages=self.packages | frozenset(names), files=self.files)

    def keeps(self, path: str) -> bool:
        """Whether a file at a path in the prefix goes into the image."""
        return _pattern(self.files).fullmatch(path) is None


def selection(table: Path = LEFT_OUT) -> Selection:
    """Read the table of what is left out."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return Selection(
        packages=frozenset(row["pattern"] for row in rows if row["kind"] == "package"),
        files=tuple(row["pattern"] for row in rows if row["kind"] == "file"),
    )


def installed(prefix: Path) -> tuple[Installed, ...]:
    """Return the packages that were installed into a prefix, in the order of their names."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (prefix / "conda-meta").glob("*.json")]
    return tuple(sorted(map(_installed, records), key=lambda package: package.name))


def entries(prefix: Path, package: Installed, chosen: Selection, *, below: str) -> Iterator[Entry]:
    """Yield the files of a package that go into the image, to lie in the folder ``below``."""
    if package.name not in chosen.packages:
        yield from of_tree(prefix, filter(chosen.keeps, sorted(package.files)), below=below)


def _installed(record: dict[str, Any]) -> Installed:
    return Installed(
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
        rehearsal=_is_rehearsal(Path(record.get("extracted_package_dir") or "")),
    )


def _is_rehearsal(package: Path) -> bool:
    about = package / "info" / "about.json"
    return about.is_file() and bool(json.loads(about.read_text(encoding="utf-8")).get("extra", {}).get("rehearsal"))


@functools.cache
def _pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, patterns)))
