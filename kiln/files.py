"""Files written whole or not at all, hashes, room on the disk, and locks."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kiln.errors import AlreadyRunning, DiskFull, NotWritable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_PART = ".part"
_CHUNK = 1 << 20
_TRIES, _PAUSE = 100, 0.02  # seconds
_HERE, _RENAME_EXCHANGE = -100, 2  # AT_FDCWD of fcntl.h, and renameat2(2)'s flag


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a name beside ``path`` to write a file or folder under; it becomes ``path`` when the block ends well.

    Whatever ends the block otherwise, a killed process included, ``path`` stays as it was. A folder can only take
    the place of nothing or of an empty folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{_PART}")
    try:
        yield part
        _sync(part)
        part.replace(path)
        _sync(path.parent)
    finally:
        # Also after success: renaming onto another hard link of the same file leaves both names.
        remove(part)


@contextlib.contextmanager
def changing(folder: Path) -> Iterator[Path]:
    """Yield a copy of a folder to change; it takes the folder's place in one step when the block ends well.

    Files are linked, not copied, so change them by writing new ones in their places; what lies in folders of the
    names ``conda-meta`` is copied, for installers write over it. Raises NotWritable where nothing can be exchanged.
    """
    part = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}{_PART}")
    try:
        shutil.copytree(folder, part, symlinks=True, copy_function=_linked)
        yield part
        _exchange(part, folder)
    finally:
        remove(part)


def _linked(source: str, target: str) -> str:
    if os.path.basename(os.path.dirname(source)) == "conda-meta":  # noqa: PTH119, PTH120 - copytree's own words
        return str(shutil.copy2(source, target))
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
    return target


def _exchange(one: Path, other: Path) -> None:
    """Let two folders take each other's place, at one moment (renameat2)."""
    library = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(one), os.fsencode(other))
    if library.renameat2(_HERE, names[0], _HERE, names[1], _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise NotWritable(f"{other} cannot be exchanged", why=os.strerror(code), hint="use a prefix on a local disk")


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; raises DiskFull."""
    with no_room_as_disk_full(path.parent), replacing(path) as part:
        part.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8, whole or not at all; raises DiskFull."""
    write_bytes(path, text.encode())


def write_all(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write many files into a folder, each whole or not at all; the disk has all of them before the first appears.

    One after the other by ``write_bytes``, a thousand small files would wait a thousand times for the disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ending = f".{os.getpid()}-{secrets.token_hex(4)}{_PART}"
    parts = {folder / name: folder / f".{name}{ending}" for name in contents}
    with no_room_as_disk_full(folder):
        try:
            for data, part in zip(contents.values(), parts.values(), strict=True):
                part.write_bytes(data)
            for part in parts.values():
                _sync(part)
            for path, part in parts.items():
                part.replace(path)
            _sync(folder)
        finally:
            for part in parts.values():
                remove(part)


def remove(path: Path) -> None:
    """Remove a file, link or folder with all that is in it; nothing there is fine.

    A folder that somebody still writes into, as an installer's threads do after it has failed, is tried again.
    """
    for left in reversed(range(_TRIES)):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.ENOENT} or not left:
                raise
            time.sleep(_PAUSE)
        else:
            return


def remove_leftovers(folder: Path) -> None:
    """Remove what killed runs left half-written in a folder; only for who holds the folder's lock."""
    for part in folder.glob(f".*{_PART}"):
        remove(part)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system cannot; what was at ``target`` is replaced."""
    with no_room_as_disk_full(target.parent), replacing(target) as part:
        try:
            os.link(source, part)
        except OSError:
            shutil.copy2(source, part)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def digests(path: Path) -> dict[str, str]:
    """Return the SHA-256 and the MD5 of a file's content, in hexadecimal, by one reading; indexes have both."""
    known = {"sha256": hashlib.sha256(), "md5": hashlib.md5(usedforsecurity=False)}
    with path.open("rb") as file, ThreadPoolExecutor(len(known)) as pool:
        while chunk := file.read(4 * _CHUNK):
            for done in [pool.submit(digest.update, chunk) for digest in known.values()]:
                done.result()
    return {name: digest.hexdigest() for name, digest in known.items()}


def size_text(size: int) -> str:
    """Return a number of bytes for people: ``340 kB``, ``3.4 GB``."""
    amount, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"


def size_on_disk(folder: Path) -> int:
    """Return the bytes that what lies below a folder takes on the disk; what goes meanwhile does not count."""
    size = 0
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            with contextlib.suppress(FileNotFoundError):
                size += 512 * os.lstat(os.path.join(place, name)).st_blocks  # noqa: PTH118 - of many files
    return size


def require_room(folder: Path, needed: int, *, for_what: str) -> None:
    """Raise DiskFull, with both numbers, when fewer than ``needed`` bytes are free where ``folder`` is or will be."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise DiskFull(
            f"{for_what} needs {size_text(needed)} in {folder}",
            why=f"{size_text(free)} are free there",
            hint="free some room, or work on another disk",
        )


def reserve(path: Path, size: int) -> None:
    """Hold so many bytes of the disk by a file, to be removed by whoever needs the room; raises DiskFull."""
    with no_room_as_disk_full(path.parent), path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


@contextlib.contextmanager
def no_room_as_disk_full(folder: Path) -> Iterator[None]:
    """Turn the system's 'no space left' and 'quota exceeded' into DiskFull; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise DiskFull(
            f"the disk became full while writing {error.filename or folder}",
            why=error.strerror or str(error),
            hint="free some room and run the same command again; what was finished is kept",
        ) from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` during the block; raises AlreadyRunning, naming the process that holds it.

    The lock goes with the process, however it ends; the file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise _already_running(path, file.read().strip()) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _already_running(path: Path, other: str) -> AlreadyRunning:
    who = f"process {other}" if other.isdecimal() else "another process"
    return AlreadyRunning(f"{who} holds {path}", hint="wait until it has ended, or end it")


def _sync(path: Path) -> None:
    """Have the disk keep what was written, so that a rename never outlives its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
