"""The metadata inside a .conda package: read, and changed with the payload left as it is."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import tarfile
import zipfile
from typing import IO, TYPE_CHECKING, Any

from kiln import files
from kiln.errors import BrokenPackage

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip file knows
_BROKEN = (zipfile.BadZipFile, zstd.ZstdError, tarfile.TarError, ValueError, EOFError)
_LEVEL = 1  # as the engine packs: a gigabyte in seconds
_CHUNK = 1 << 20
LARGEST_INFO = 1 << 28  # bytes; metadata beyond that is an attack or a mistake


def read_info(package: Path, name: str) -> Any:
    """Return one JSON file of a package's metadata, such as ``about.json``; an empty object when it has none.

    Raises:
        BrokenPackage: when the file is no .conda package.
    """
    try:
        with zipfile.ZipFile(package) as file, _opened(file.read(_info_member(file))) as archive:
            member = next((member for member in archive if member.name == f"info/{name}"), None)
            content = archive.extractfile(member) if member else None
            return json.loads(content.read()) if content else {}
    except _BROKEN as error:
        raise BrokenPackage(f"{package} is no .conda package", why=str(error) or "it has no metadata") from error


@contextlib.contextmanager
def reading(package: Path) -> Iterator[Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]]:
    """Yield every member of a package, metadata first, with its content where it is a plain file; nothing is unpacked.

    Raises:
        BrokenPackage: when the file is no .conda package, or damaged.
    """
    try:
        with zipfile.ZipFile(package) as file:
            yield _members(file)
    except (*_BROKEN, KeyError) as error:
        raise BrokenPackage(f"{package} is no .conda package", why=str(error) or "it has no metadata") from error


def _members(file: zipfile.ZipFile) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    payload = [name for name in file.namelist() if name.startswith("pkg-") and name.endswith(".tar.zst")]
    for name in (_info_member(file), *payload):
        with file.open(name) as packed, zstd.open(packed) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                yield member, archive.extractfile(member) if member.isreg() else None


def rewrite_info(package: Path, target: Path, edit: Callable[[str, bytes], bytes], *, mtime: int | None = None) -> None:
    """Write ``package`` to ``target`` with each file of its metadata passed through ``edit`` (name, content).

    The same edit of the same package gives the same bytes. With ``mtime``, in seconds, every file in the package is of
    that moment, and so the same content gives the same bytes, too; without it, nothing of the payload is packed again.
    """
    with files.replacing(target) as part, zipfile.ZipFile(package) as old, zipfile.ZipFile(part, "w") as new:
        info = _info_member(old)
        for name in old.namelist():
            member = zipfile.ZipInfo(name, EPOCH)
            if name == info:
                new.writestr(member, zstd.compress(_edited(old.read(name), edit, mtime)))
                continue
            with old.open(name) as source, new.open(member, "w", force_zip64=True) as sink:
                if mtime is not None and name.endswith(".tar.zst"):
                    _restamp(source, sink, mtime)
                else:
                    shutil.copyfileobj(source, sink, _CHUNK)


def _restamp(source: IO[bytes], sink: IO[bytes], mtime: int) -> None:
    """Copy a packed archive with all of its members of one moment."""
    with (
        zstd.open(source) as plain,
        zstd.open(sink, "wb", level=_LEVEL) as packed,
        tarfile.open(fileobj=plain, mode="r|") as old,
        tarfile.open(fileobj=packed, mode="w|") as new,
    ):
        for member in old:
            member.mtime, member.pax_headers = mtime, {}
            new.addfile(member, old.extractfile(member) if member.isreg() else None)


def _info_member(file: zipfile.ZipFile) -> str:
    found = [name for name in file.namelist() if name.startswith("info-") and name.endswith(".tar.zst")]
    if not found:
        raise ValueError("it has no metadata")
    return found[0]


def _opened(compressed: bytes) -> tarfile.TarFile:
    with zstd.open(io.BytesIO(compressed)) as stream:
        plain = stream.read(LARGEST_INFO)
    return tarfile.open(fileobj=io.BytesIO(plain))


def _edited(compressed: bytes, edit: Callable[[str, bytes], bytes], mtime: int | None) -> bytes:
    changed = io.BytesIO()
    with _opened(compressed) as old, tarfile.open(fileobj=changed, mode="w") as new:
        for member in old:
            content = old.extractfile(member) if member.isreg() else None
            if mtime is not None:
                member.mtime, member.pax_headers = mtime, {}
            if content is None:
                new.addfile(member)
                continue
            data = edit(member.name.removeprefix("info/"), content.read())
            member.size = len(data)
            new.addfile(member, io.BytesIO(data))
    return changed.getvalue()
