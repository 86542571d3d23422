"""Layers of an image: files in an archive whose bytes depend on the files alone, not on when, where or by whom."""

from __future__ import annotations

import gzip
import hashlib
import io
import posixpath
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FOLDER, PROGRAM, FILE = 0o755, 0o755, 0o644
_LEVEL = 6  # of gzip, which every engine reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file, link or folder of an image, owned by root unless ``owner`` (a user's number) says otherwise.

    The group is always root's, of number 0, which users without a name are in where a platform gives out the numbers.

    ``path`` is absolute. The content is ``source`` or ``data``; ``link`` is where a symbolic link leads. With none of
    them it is a folder.
    """

    path: str
    mode: int
    source: Path | None = None
    data: bytes | None = None
    link: str = ""
    owner: int = 0

    @property
    def is_file(self) -> bool:
        """Whether it has content."""
        return self.source is not None or self.data is not None

    @property
    def size(self) -> int:
        """The bytes of its content."""
        if self.source is not None:
            return self.source.stat().st_size
        return len(self.data or b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Entries that are packed together, and a word for what they are."""

    title: str
    entries: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """The bytes of all files, not packed."""
        return sum(entry.size for entry in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A layer as a compressed archive; ``diff_id`` is the digest of the archive before its compression."""

    title: str
    path: Path
    digest: str
    diff_id: str
    size: int


class _Hashing(io.RawIOBase):
    """A stream that hashes what goes through it."""

    def __init__(self, target: BinaryIO | gzip.GzipFile) -> None:
        self.target = target
        self.hash = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # tarfile hands over bytes alone
        self.hash.update(data)
        return self.target.write(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self.hash.hexdigest()}"


def pack(layer: Layer, path: Path, *, epoch: int) -> Packed:
    """Write a layer to ``path``; every file gets the time ``epoch`` (seconds), every folder on the way is made."""
    with path.open("wb") as file:
        outer = _Hashing(file)
        with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, mtime=0, fileobj=outer) as zipped:
            inner = _Hashing(zipped)
            with tarfile.open(fileobj=inner, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                for entry in with_folders(layer.entries):
                    _add(archive, entry, epoch)
    return Packed(title=layer.title, path=path, digest=outer.digest, diff_id=inner.digest, size=path.stat().st_size)


def with_folders(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield entries in the order of their paths, with the folders that they lie in; the last one of a path counts."""
    by_path = {entry.path: entry for entry in entries}
    folders = {str(parent) for path in by_path for parent in PurePosixPath(path).parents} - {"/"}
    for path in sorted(by_path.keys() | folders):
        yield by_path.get(path) or Entry(path=path, mode=FOLDER)


def dead_links(entries: Iterable[Entry], *, below: str) -> frozenset[str]:
    """Return the paths of links that lead below a folder, to what is not among the entries there."""
    by_path = {entry.path: entry for entry in with_folders(entries)}
    links = {path: entry.link for path, entry in by_path.items() if entry.link}
    ends = {path: _followed(path, links) for path in links}
    return frozenset(path for path, end in ends.items() if end.startswith(f"{below}/") and end not in by_path)


def _followed(path: str, links: Mapping[str, str], *, most: int = 40) -> str:
    """Where a path leads when the links on its way are followed, at most as many as Linux follows."""
    seen = ""
    for part in PurePosixPath(path).parts[1:]:
        seen = f"{seen}/{part}"
        if seen in links and most:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(seen), links[seen]))
            seen = _followed(target, links, most=most - 1)
    return seen


def of_tree(root: Path, paths: Iterable[str], *, below: str) -> Iterator[Entry]:
    """Yield the files and links at ``paths`` in the folder ``root`` as entries below another folder.

    Whatever the umask was, a file can be read by all, and run by all when its owner can.
    """
    for path in paths:
        source = root / path
        status = source.lstat()
        if stat.S_ISLNK(status.st_mode):
            yield Entry(path=f"{below}/{path}", mode=0o777, link=str(source.readlink()))
        else:
            mode = PROGRAM if status.st_mode & stat.S_IXUSR else FILE
            yield Entry(path=f"{below}/{path}", mode=mode, source=source)


def _add(archive: tarfile.TarFile, entry: Entry, epoch: int) -> None:
    member = tarfile.TarInfo(entry.path.lstrip("/"))
    member.mode, member.mtime, member.uid = entry.mode, epoch, entry.owner
    if entry.link:
        member.type, member.linkname = tarfile.SYMTYPE, entry.link
        archive.addfile(member)
    elif entry.source is not None:
        member.size = entry.size
        with entry.source.open("rb") as content:
            archive.addfile(member, content)
    elif entry.data is not None:
        member.size = entry.size
        archive.addfile(member, io.BytesIO(entry.data))
    else:
        member.type = tarfile.DIRTYPE
        archive.addfile(member)
