"""What a package file says and holds, read once from beginning to end; it is untrusted, nothing of it is unpacked."""

from __future__ import annotations

import csv
import itertools
import posixpath
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from kiln import archive, files
from kiln.admission import poses_as_record, resolved
from kiln.errors import BrokenPackage
from kiln.model.release import Contents

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Mapping, Sequence

REHEARSAL = "rehearsal"  # the key in a package's about.json, below extra
CHUNK, OVERLAP = 1 << 22, 1 << 10  # bytes; what is looked for is shorter than the overlap
BUILD_PATH = "a path of the machine that built it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """Something that no package may hold: ``needle`` is quick to find, ``pattern`` decides around it."""

    needle: bytes
    pattern: re.Pattern[bytes] | None
    what: str


def sought(folders: Sequence[str], tokens: Sequence[str] = ()) -> tuple[Sought, ...]:
    """Return what to look for: secrets of known forms, these build folders, these very tokens."""
    with (Path(__file__).parent / "secrets.csv").open(newline="") as file:
        known = [
            Sought(needle=row["needle"].encode(), pattern=re.compile(row["pattern"].encode()), what=row["what"])
            for row in csv.DictReader(file)
        ]
    places = [Sought(needle=f"{folder}/".encode(), pattern=None, what=BUILD_PATH) for folder in folders]
    own = [Sought(needle=token.encode(), pattern=None, what="a token of this machine") for token in tokens if token]
    return (*known, *places, *own)


def read(package: Path, wanted: Sequence[Sought]) -> Contents:
    """Return what a package says and holds.

    Raises:
        BrokenPackage: when it is no package, or damaged.
    """
    listed = archive.read_info(package, "paths.json")
    found = _Found(wanted=wanted, prefixes=_prefixes(listed))
    found.escapes += [path for path in _listed(listed) if _outside(path)]  # installers go by this list
    about = _about(package)
    with archive.reading(package) as members:
        for member, content in members:
            if about["extra"].get(REHEARSAL) and not member.name.startswith("info"):
                break  # refused for that alone, and gigabytes large
            found.take(member, content)
    return Contents(
        sha256=files.sha256(package),
        size=package.stat().st_size,
        index=_object(package, "index.json"),
        about=about,
        paths=tuple(found.paths),
        licences=tuple(found.licences),
        leaks=tuple(dict.fromkeys(found.leaks)),
        escapes=(*found.escapes, *found.behind_links()),
    )


@dataclass(slots=True, kw_only=True)
class _Found:
    wanted: Sequence[Sought]
    prefixes: Mapping[str, bytes]
    paths: list[str] = field(default_factory=list)
    licences: list[str] = field(default_factory=list)
    leaks: list[tuple[str, str]] = field(default_factory=list)
    escapes: list[str] = field(default_factory=list)
    links: set[str] = field(default_factory=set)

    def take(self, member: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        """Note down one member of the archive."""
        name = posixpath.normpath(member.name)
        own = name == "info" or name.startswith("info/")
        if leads_out(member):
            self.escapes.append(f"{member.name} -> {member.linkname}" if member.linkname else member.name)
        if member.issym():
            self.links.add(name)
        if name.startswith("info/licenses/") and member.isreg():
            self.licences.append(name.removeprefix("info/licenses/"))
        if not own and not member.isdir():
            self.paths.append(name)
        if content is not None:
            self._search(name, content, own=own)

    def behind_links(self) -> list[str]:
        """Return the files whose folder is a link of the package: they would lie where it leads, not where they say."""
        return [path for path in self.paths if not self.links.isdisjoint(map(str, PurePosixPath(path).parents))]

    def _search(self, name: str, content: IO[bytes], *, own: bool) -> None:
        """Look into a file; the placeholder that installing replaces is no leak, nor what the engine says in info/."""
        placeholder = self.prefixes.get(name, b"")
        rest = b""
        while chunk := content.read(CHUNK):
            text = rest + chunk
            seen = text.replace(placeholder, b"") if placeholder else text
            self.leaks += [
                (name, each.what)
                for each in self.wanted
                if not (own and each.what == BUILD_PATH) and each.needle in seen and _matches(each, seen)
            ]
            rest = text[-max(OVERLAP, len(placeholder)) :]


def leads_out(member: tarfile.TarInfo) -> bool:
    """Return whether a member, or a link, would be outside of the prefix that a package is installed into."""
    if _outside(member.name) or _winds(member.name):
        return True
    if member.issym():
        return _winds(member.linkname) or _outside(posixpath.join(posixpath.dirname(member.name), member.linkname))
    return (member.islnk() and _outside(member.linkname)) or member.ischr() or member.isblk() or member.isfifo()


def _outside(path: str) -> bool:
    return resolved(path, {}) is None or poses_as_record(path)


def _winds(path: str) -> bool:
    """Whether a path goes up again after a name, which may be a link: where that leads, its words do not say."""
    parts = PurePosixPath(path).parts
    return any(above != ".." and part == ".." for above, part in itertools.pairwise(parts))


def _matches(each: Sought, text: bytes) -> bool:
    return each.pattern is None or each.pattern.search(text) is not None


def _object(package: Path, name: str) -> dict[str, Any]:
    found = archive.read_info(package, name)
    if not isinstance(found, dict):
        raise BrokenPackage(f"{package} has an info/{name} that is no JSON object")
    return found


def _about(package: Path) -> dict[str, Any]:
    found = _object(package, "about.json")
    if not isinstance(found.setdefault("extra", {}), dict):
        raise BrokenPackage(f"{package} has an info/about.json whose extra is no JSON object")
    return found


def _listed(paths: Any) -> list[str]:
    return [str(each["_path"]) for each in paths.get("paths", [])]


def _prefixes(paths: Any) -> dict[str, bytes]:
    """Return the placeholders of the files that have one."""
    try:
        return {
            str(each["_path"]): str(each["prefix_placeholder"]).encode()
            for each in paths.get("paths", [])
            if each.get("prefix_placeholder")
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise BrokenPackage("a package's paths.json is not what it should be", why=repr(error)) from error
