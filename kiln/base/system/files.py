"""Locks, opened and flushed files: what the system is asked for, also where Linux and macOS differ."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


NO_WAIT = os.O_NONBLOCK  # for a named pipe into which nobody may ever write
NO_LINK = os.O_NOFOLLOW | NO_WAIT
FOLDER = os.O_DIRECTORY


def acquire_lock(descriptor: int, *, wait: bool, shared: bool = False) -> None:
    """Lock an open file; other holders of a ``shared`` lock may be there.

    Raises:
        BlockingIOError: another process holds it, and this one does not ``wait``.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)


def open_folder_lock(folder: Path) -> int:
    """Open a folder to lock it."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


def flush_to_disk(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_removable(path: Path) -> bool:
    """Make a folder and those below it writable for their owner, no link is followed; return whether it is one."""
    if not path.is_dir():
        return False
    path.chmod(0o700)
    for place, folders, _ in os.walk(path):
        for folder in (Path(place, name) for name in folders):
            if not folder.is_symlink():
                folder.chmod(0o700)
    return True


def flatten_folder(path: Path) -> None:
    """Move all folders below one right into it, however deep they are: paths and Python's stack have limits."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    top = os.open(path, flags)
    try:
        pending = [entry.name for entry in os.scandir(top) if entry.is_dir(follow_symlinks=False)]
        while pending:
            name = pending.pop()
            with contextlib.suppress(PermissionError):
                os.chmod(name, 0o700, dir_fd=top)
            folder = os.open(name, flags, dir_fd=top)
            try:
                inner = [entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
                for entry in inner:
                    moved = f".{os.urandom(8).hex()}"
                    os.rename(entry, moved, src_dir_fd=folder, dst_dir_fd=top)
                    pending.append(moved)
            finally:
                os.close(folder)
    finally:
        os.close(top)


def size_on_disk(status: os.stat_result) -> int:
    """Return the bytes that a file takes in blocks."""
    return 512 * status.st_blocks


def open_descriptors() -> list[int]:
    """Return this process's open descriptors; macOS has the same folder as Linux."""
    return [int(name) for name in os.listdir("/dev/fd")]  # noqa: PTH208 - a folder of numbers


if sys.platform == "linux":
    _IN_MEMORY: Callable[[str], int] | None = os.memfd_create
    _EXCHANGE = ("renameat2", -100, 2)  # AT_FDCWD of fcntl.h, and renameat2(2)'s RENAME_EXCHANGE

else:
    _IN_MEMORY: Callable[[str], int] | None = None
    _EXCHANGE = ("renameatx_np", -2, 2)  # AT_FDCWD of macOS's fcntl.h, and rename(2)'s RENAME_SWAP


def exchange_folders(one: Path, other: Path) -> None:
    """Exchange two folders atomically."""
    import ctypes

    function, here, flag = _EXCHANGE
    rename = getattr(ctypes.CDLL(None, use_errno=True), function)
    if rename(here, os.fsencode(one), here, os.fsencode(other), flag):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(other))


if sys.platform == "linux":

    def copy_content(source: Path, target: Path) -> None:
        """Copy a file's content in the kernel, which on XFS and Btrfs shares its blocks until one of the two changes.

        Raises:
            OSError: the kernel cannot copy between these file systems.
        """
        with source.open("rb") as read, target.open("wb") as write:
            rest = os.fstat(read.fileno()).st_size
            while rest and (count := os.copy_file_range(read.fileno(), write.fileno(), rest)):
                rest -= count
            if rest:
                raise OSError(errno.EIO, "copied in part", str(source))

else:

    def copy_content(source: Path, target: Path) -> None:
        """Raise OSError: the kernel offers no such copy here."""
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), f"{source} to {target}")


if sys.platform == "linux":

    def reserve_space(descriptor: int, size: int) -> None:
        """Take space on the disk for an empty file."""
        os.posix_fallocate(descriptor, 0, size)

else:

    def reserve_space(descriptor: int, size: int) -> None:
        """Take space on the disk for an empty file by writing zeros: one that is only made longer takes none."""
        block = bytes(1 << 20)
        while size > 0:
            size -= os.write(descriptor, block[: min(size, len(block))])
        os.fsync(descriptor)


@contextlib.contextmanager
def temporary_file_with_content(data: bytes) -> Iterator[Path]:
    """Yield the path of a file with this content, for libraries that read files alone; in memory where that can be."""
    descriptor, path = _IN_MEMORY("data") if _IN_MEMORY else -1, None
    if descriptor < 0:
        import tempfile

        descriptor, path = tempfile.mkstemp(prefix="kiln-")
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        yield Path(path or f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
        if path is not None:
            Path(path).unlink()


def open_regular_file(path: Path) -> int:
    """Open a regular file for reading, and return its descriptor; a link at its name is not followed.

    Raises:
        OSError: it is missing, a link, or not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | NO_LINK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def file_content_stamp(path: Path) -> tuple[int, int, int]:
    """Return the facts of a file that change with its content; while they are the same, it need not be read again.

    Raises:
        OSError: it does not exist, or cannot be asked for.
    """
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def full_path(path: Path) -> Path:
    """Return a path from the root, without ``..``: a folder has one address, whoever names it."""
    return path.resolve() if ".." in path.parts else path.absolute()


def nearest_existing_path(path: Path) -> Path:
    """Return a path if it exists, else the nearest folder above it that does."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())
