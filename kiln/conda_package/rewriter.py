"""Rewrites a .conda package with changed metadata, without changing the payload."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from typing import IO, TYPE_CHECKING

from kiln import files
from kiln.conda_package.reader import CHUNK, LARGEST_INFO, InfoFile, info_archive_name
from kiln.zstd import FAST, compressing_file, zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

EPOCH = (1980, 1, 1, 0, 0, 0)  # the first date that a zip file can have


def rewrite_info(
    package: Path,
    target: Path,
    edit: Callable[[str, bytes], bytes | None],
    *,
    added: Mapping[str, InfoFile] | None = None,
    mtime: int | None = None,
    level: int = FAST,
) -> None:
    """Write ``package`` to ``target`` with each file of its metadata passed through ``edit`` (name, content).

    A file for which ``edit`` returns None is left out; ``added`` are further files by their names below ``info/``.

    The same edit of the same package gives the same bytes. With ``mtime``, in seconds, every file in the package has
    that time, so the same content gives the same bytes, too; without it, the payload is not packed again. ``level`` is
    zstd's for what is packed.
    """
    with files.atomic_replacement(target) as part, zipfile.ZipFile(package) as old, zipfile.ZipFile(part, "w") as new:
        info = info_archive_name(old)
        for name in old.namelist():
            member = zipfile.ZipInfo(name, EPOCH)
            if name == info:
                new.writestr(member, zstd.compress(_edit_info_archive(old.read(name), edit, added or {}, mtime), level))
                continue
            with old.open(name) as source, new.open(member, "w", force_zip64=True) as sink:
                if mtime is not None and name.endswith(".tar.zst"):
                    _copy_archive_with_mtime(source, sink, mtime, level)
                else:
                    shutil.copyfileobj(source, sink, CHUNK)


def _copy_archive_with_mtime(source: IO[bytes], sink: IO[bytes], mtime: int, level: int) -> None:
    """Copy a packed archive, with one time for all of its members."""
    with (
        zstd.open(source) as plain,
        compressing_file(sink, level=level) as packed,
        tarfile.open(fileobj=plain, mode="r|") as old,
        tarfile.open(fileobj=packed, mode="w|") as new,
    ):
        for member in old:
            member.mtime, member.pax_headers = mtime, {}
            new.addfile(member, old.extractfile(member) if member.isreg() else None)


def _edit_info_archive(
    compressed: bytes,
    edit: Callable[[str, bytes], bytes | None],
    added: Mapping[str, InfoFile],
    mtime: int | None,
) -> bytes:
    with zstd.open(io.BytesIO(compressed)) as stream:
        plain, changed = io.BytesIO(stream.read(LARGEST_INFO)), io.BytesIO()
    with tarfile.open(fileobj=plain) as old, tarfile.open(fileobj=changed, mode="w") as new:
        for member in old:
            content = old.extractfile(member) if member.isreg() else None
            if mtime is not None:
                member.mtime, member.pax_headers = mtime, {}
            if content is None:
                new.addfile(member)
                continue
            data = edit(member.name.removeprefix("info/"), content.read())
            if data is None:
                continue
            member.size = len(data)
            new.addfile(member, io.BytesIO(data))
        for name, file in sorted(added.items()):
            member = tarfile.TarInfo(f"info/{name}")
            member.size, member.mode, member.mtime = len(file.data), file.mode, mtime or 0
            new.addfile(member, io.BytesIO(file.data))
    return changed.getvalue()
