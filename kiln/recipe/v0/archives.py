"""A file's text out of an archive of a source, which is searched and not unpacked."""

from __future__ import annotations

import lzma
import posixpath
import tarfile
import zipfile
import zlib
from functools import partial
from typing import IO, TYPE_CHECKING

from kiln.base.errors import TemplateFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Member = tuple[str, Callable[[], IO[bytes] | None] | None]

_MAX_SIZE = 4 << 20  # bytes of a file
_MAX_MEMBERS = 200_000
_FAULTS = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError),
    *(KeyError, OSError, RuntimeError, NotImplementedError),  # of members: links to nothing, passwords, odd methods
)
_ZIP = (".zip", ".whl")
_TAR = (".tar", ".tgz", ".tar.bz2", ".tar.gz", ".tar.lzma", ".tar.xz")


def archived_text(archive: Path, name: str, title: str, *, hoists: bool) -> str | None:
    """Return the text of a file in an archive; None where it has none.

    ``title`` is the archive's name. With ``hoists``, a single folder at the top does not count, as in conda-build.
    """
    members = _members_of_zip if title.lower().endswith(_ZIP) else _members_of_tar
    if members is _members_of_tar and not title.lower().endswith(_TAR):
        raise TemplateFault(f"the template reads {name!r} out of {title}", why="kiln reads tar and zip files")
    tops: set[str] = set()
    plain, below = None, None
    try:
        for number, (member, opened) in enumerate(members(archive)):
            if number > _MAX_MEMBERS:
                raise TemplateFault(f"{title} has more than {_MAX_MEMBERS:,} files")
            top, _, rest = posixpath.normpath(member).partition("/")
            tops.add(f"{top}/" if rest or opened is None else top)
            if opened is not None and posixpath.normpath(member) == name:
                plain = _member_text(opened, name)
            elif opened is not None and rest == name:
                below = _member_text(opened, name)
    except _FAULTS as error:
        raise TemplateFault(f"{title} cannot be read", why=str(error)) from error
    tops.discard("./")
    return below if hoists and len(tops) == 1 and next(iter(tops)).endswith("/") else plain


def _members_of_tar(archive: Path) -> Iterator[Member]:
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            yield member.name, None if member.isdir() else partial(tar.extractfile, member)


def _members_of_zip(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            yield member.filename, None if member.is_dir() else partial(file.open, member)


def _member_text(opened: Callable[[], IO[bytes] | None], name: str) -> str:
    content = opened()
    if content is None:  # a device or a pipe
        raise TemplateFault(f"{name!r} is not a regular file in its archive")
    with content:
        data = content.read(_MAX_SIZE + 1)
    if len(data) > _MAX_SIZE:
        raise TemplateFault(f"{name!r} has more than {_MAX_SIZE:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TemplateFault(f"{name!r} is not UTF-8 text", why=str(error)) from error
