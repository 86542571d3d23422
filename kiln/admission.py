"""What is let into a prefix: packages that are what their index says, whose paths and links stay inside of it.

rattler 0.28 looks into none of this: it follows ``../`` in a package's list of files, and does not compare the hash of
a package that it takes from a folder.
"""

from __future__ import annotations

import json
import posixpath
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from rattler import PackageCache

from kiln import files
from kiln.errors import BrokenPackage, DownloadFailed, HashMismatch, KilnError, UnsafePackage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rattler import RepoDataRecord

HOPS = 40  # links in a row, the kernel's own limit (path_resolution(7))
NOT_FETCHED = "failed to fetch"  # this and the next two in rattler's words
OTHER_HASH = re.compile(r"hash mismatch .* expected ([0-9a-f]+), got ([0-9a-f]+)")
NO_PACKAGE = re.compile(r"invalid zip|failed to unpack|failed to iterate over archive|zstd|unsupported", re.IGNORECASE)
TOLD = 5  # paths of one package in a message


def resolved(path: str, links: Mapping[str, str]) -> str | None:
    """Return where a path of a prefix lies once its links are followed; None when that is outside."""
    todo, at, hops = path.split("/")[::-1], list[str](), 0
    if path.startswith("/"):
        return None
    while todo:
        part = todo.pop()
        if part == "..":
            if not at:
                return None
            at.pop()
        elif part not in {"", "."}:
            at.append(part)
            aim = links.get("/".join(at))
            if aim is not None:
                hops += 1
                if hops > HOPS or aim.startswith("/"):
                    return None
                at.pop()
                todo += aim.split("/")[::-1]
    return "/".join(at)


@dataclass(slots=True, kw_only=True)
class Tree:
    """The folders and links of what is in a prefix; with ``carried``, links may lead out, but nothing through them."""

    carried: bool = False
    folders: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)
    out: set[str] = field(default_factory=set)

    def hold(self, paths: Iterable[str], links: Mapping[str, str]) -> None:
        """Take in what lies in the prefix already; a link there that leads out is its owner's affair."""
        self.folders |= _folders(paths)
        self._link(links)
        self.out = {link for link in self.links if resolved(link, self.links) is None}

    def escapes(self, paths: Iterable[str], links: Mapping[str, str]) -> list[str]:
        """Take a package's paths and links in; return those that do not stay inside, or make others not do so."""
        paths = list(paths)
        found = [path for path in paths if strays(path) or poses_as_record(path)]
        new = self._link(links)
        folders = _folders(path for path in paths if not strays(path))
        found += [f"{folder}/..." for folder in sorted(folders) if resolved(folder, self.links) is None]
        if new:
            found += [f"{link}, a folder elsewhere" for link in new if link in self.folders]
            found += [f"{link} -> {aim}" for link, aim in self.links.items() if not self.carried and self._out(link)]
        self.folders |= folders
        return list(dict.fromkeys(found))

    def _out(self, link: str) -> bool:
        return link not in self.out and resolved(link, self.links) is None

    def _link(self, links: Mapping[str, str]) -> dict[str, str]:
        """Take links in, by their names and by where they come to lie behind others; returns all that are new."""
        before, new = set(self.links), dict(links)
        for _ in range(HOPS):
            self.links.update(new)
            new = {place: aim for link, aim in self.links.items() if (place := self._lies(link)) not in self.links}
        return {link: aim for link, aim in self.links.items() if link not in before}

    def _lies(self, link: str) -> str:
        above, name = posixpath.split(link)
        there = resolved(above, self.links)
        return link if there is None else posixpath.join(there, name)


def strays(path: str) -> bool:
    """Whether a path is none of a package: absolute, or going up."""
    return path.startswith("/") or ".." in path.split("/")


def _folders(paths: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        above = posixpath.dirname(path)
        while above.strip("/") and above not in found:
            found.add(above)
            above = posixpath.dirname(above)
    return found


def poses_as_record(path: str) -> bool:
    """Whether a file would pass for the record of an installed package."""
    parts = PurePosixPath(path).parts
    return parts[:1] == ("conda-meta",) and path.endswith(".json")


class Admission:
    """A reporter of rattler's that looks at each package when it is unpacked, before anything of it is installed.

    The installer asks nobody and goes on whatever is raised here. So when a package is refused, it goes from the cache,
    and the half-made prefix gets another name: nothing can then be written into it, nor past it. ``refusal`` says why.
    """

    def __init__(self, records: Sequence[RepoDataRecord], prefix: Path, cache: Path, *, carried: bool) -> None:
        self.records = {record.name.normalized: record for record in records}
        self.prefix, self.cache = prefix, cache
        self.site_packages = _site_packages(self.records.get("python"))
        self.tree = Tree(carried=carried)
        self.refusal: KilnError | None = None

    def on_link_start(self, operation: int, package_name: str) -> int:
        """Let a package in, or end the installation."""
        record = self.records[package_name]
        unpacked = self.cache / f"{package_name}-{record.version}-{record.build}"
        try:
            self._admit(record, unpacked)
        except KilnError as error:
            self._refuse(error, unpacked)
        except Exception as error:  # noqa: BLE001 - whatever it is, rattler would swallow it and go on
            self._refuse(BrokenPackage(f"{_told(record)} is no package", why=repr(error)), unpacked)
        return operation

    def admit_installed(self) -> None:
        """Look at what the prefix holds already, which may go or stay.

        Raises:
            UnsafePackage: when a record there names files outside, which would be removed with its package.
        """
        for file in sorted((self.prefix / "conda-meta").glob("*.json")):
            told = json.loads(file.read_text())
            paths = [str(path) for path in told.get("files", ())]
            if stray := [path for path in paths if strays(path)]:
                raise _unsafe(f"the record {file}", stray)
            kept = self.records.get(str(told.get("name")))
            if kept is not None and (str(kept.version), str(kept.build)) == (told.get("version"), told.get("build")):
                self.tree.hold(paths, _links(self.prefix, paths))

    def _admit(self, record: RepoDataRecord, unpacked: Path) -> None:
        index = json.loads((unpacked / "info" / "index.json").read_text())
        _require_same(record, index)
        paths = _listed(unpacked)
        links = _links(unpacked, [path for path in paths if not strays(path)])
        if index.get("noarch") == "python":
            paths = [self._placed(path) for path in paths]
            links = {self._placed(path): aim for path, aim in links.items()}
        if found := self.tree.escapes(paths, links):
            raise _unsafe(_told(record), found)

    def _placed(self, path: str) -> str:
        """Where a file of a package for any Python comes to lie."""
        top, _, rest = path.partition("/")
        return posixpath.join({"site-packages": self.site_packages, "python-scripts": "bin"}.get(top, top), rest)

    def _refuse(self, error: KilnError, unpacked: Path) -> None:
        if self.refusal is None:
            self.refusal = error
            self.prefix.rename(self.aside)
        files.remove(unpacked)

    @property
    def aside(self) -> Path:
        """Where the prefix lies after a refusal."""
        return self.prefix.with_name(f"{self.prefix.name}.refused")


def _unsafe(who: str, found: Sequence[str]) -> UnsafePackage:
    more = f" and {len(found) - TOLD} more" if len(found) > TOLD else ""
    return UnsafePackage(
        f"{who} reaches out of the prefix",
        why=f"its paths or links: {', '.join(map(repr, found[:TOLD]))}{more}",
        hint="nothing was installed; do not trust its channel, or tell its makers",
    )


def _site_packages(python: RepoDataRecord | None) -> str:
    """Return the folder of Python's packages, as rattler works it out of the record of Python.

    Raises:
        UnsafePackage: when that record leads out.
    """
    if python is None:
        return "site-packages"
    told = python.python_site_packages_path or f"lib/python{'.'.join(str(python.version).split('.')[:2])}/site-packages"
    if strays(told):
        raise UnsafePackage(f"{_told(python)} says that its modules lie in {told!r}", why="that is outside of a prefix")
    return told


def _listed(unpacked: Path) -> list[str]:
    """Return the paths that a package says it installs; older ones have them in a file for each purpose."""
    listing = unpacked / "info" / "paths.json"
    if listing.exists():
        return [str(each["_path"]) for each in json.loads(listing.read_text())["paths"]]
    return (unpacked / "info" / "files").read_text().splitlines()


def _links(folder: Path, paths: Iterable[str]) -> dict[str, str]:
    return {path: str((folder / path).readlink()) for path in paths if (folder / path).is_symlink()}


def _require_same(record: RepoDataRecord, index: Mapping[str, Any]) -> None:
    said = tuple(str(index.get(key)) for key in ("name", "version", "build"))
    wanted = (record.name.normalized, str(record.version), str(record.build))
    if (said[0].lower(), *said[1:]) != wanted:
        raise BrokenPackage(
            f"{_told(record)} is another package",
            why=f"it says of itself that it is {' '.join(said)}, the channel's index calls it {' '.join(wanted)}",
            hint="it was renamed: whoever keeps the channel should index it anew",
        )


async def require_intact(records: Iterable[RepoDataRecord], cache: Path) -> None:
    """Compare the hashes of packages that come from folders; what the cache has was compared before.

    Raises:
        HashMismatch: at the first that is another.
    """
    known = await PackageCache(cache).index()
    for record in records:
        address = urlsplit(str(record.url))
        file = Path(unquote(address.path))
        if address.scheme == "file" and record.sha256 and not known.contains_record(record) and file.is_file():
            found = files.sha256(file)
            if found != record.sha256.hex():
                raise other_hash(record, found)


def other_hash(record: RepoDataRecord, found: str) -> HashMismatch:
    """Say that a package is not the one that its channel's index tells of."""
    wanted = record.sha256.hex() if record.sha256 else "another"
    return HashMismatch(
        f"{_told(record)} is not the package that the channel's index tells of",
        why=f"its SHA-256 is {found}, the index has {wanted}",
        hint="it was damaged on its way or exchanged: try again; if it stays so, bring the package to the channel anew",
    )


def explained(error: Exception, records: Iterable[RepoDataRecord]) -> KilnError:
    """Return what an installer's failure means."""
    what, *why = str(error).splitlines() or [repr(error)]
    told = "; ".join(line.removeprefix("Caused by: ") for line in why)
    record = next((record for record in records if what.endswith(f" {record.file_name}")), None)
    if record and (hashes := OTHER_HASH.search(told)):
        return other_hash(record, hashes[2])
    if NOT_FETCHED in what and not NO_PACKAGE.search(told):
        return DownloadFailed(
            what, why=told, hint="see that the channels can be reached, then run the same command again"
        )
    return BrokenPackage(
        f"{_told(record)} cannot be installed" if record else what, why=told, hint="it is damaged, or no package at all"
    )


def _told(record: RepoDataRecord) -> str:
    return f"{record.file_name} from {record.channel or record.url}"
