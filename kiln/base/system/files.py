"""Locks, opened and flushed files, and special names, where systems differ."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


if sys.platform == "win32":
    _DEVICES = frozenset({"CON", "PRN", "AUX", "NUL", *(f"{kind}{n}" for kind in ("COM", "LPT") for n in range(1, 10))})

    def is_special_path(path: str) -> bool:
        """Return whether Windows would write elsewhere than this path says: drives, streams, devices, other separators.

        Source: learn.microsoft.com/windows/win32/fileio/naming-a-file.
        """
        if "\\" in path or ":" in path:
            return True
        parts = [part for part in path.split("/") if part not in {"", ".", ".."}]
        return any(part[-1] in ". " or part.partition(".")[0].rstrip().upper() in _DEVICES for part in parts)

else:

    def is_special_path(path: str) -> bool:  # noqa: ARG001
        """Return False: a path means what it says."""
        return False


if sys.platform == "win32":
    import errno
    import msvcrt
    import tempfile
    import time

    _BYTE = 1 << 30  # a locked byte cannot be read by others: this one is beyond every lock file's content
    _PAUSE = 0.05  # seconds
    _HELD = frozenset({errno.EACCES, errno.EDEADLK, errno.EDEADLOCK})

    def acquire_lock(descriptor: int, *, wait: bool, shared: bool = False) -> None:  # noqa: ARG001
        """Lock an open file; Windows has no shared locks here, so ``shared`` ones exclude each other, too.

        Raises:
            BlockingIOError: another process holds it, and this one does not ``wait``.
        """
        while True:
            try:
                _lock_or_unlock_byte(descriptor, msvcrt.LK_NBLCK)
            except OSError as error:
                if error.errno not in _HELD:
                    raise
                if not wait:
                    raise BlockingIOError(errno.EAGAIN, "another process holds the lock") from error
                time.sleep(_PAUSE)
            else:
                return

    def open_folder_lock(folder: Path) -> int:
        """Open what is locked for a folder: Windows opens no folders, so it is a file of the user's temporary ones."""
        import hashlib

        name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
        locks = Path(tempfile.gettempdir(), "kiln-locks")
        locks.mkdir(exist_ok=True)
        return os.open(locks / name, os.O_RDWR | os.O_CREAT | os.O_NOINHERIT | os.O_BINARY, 0o600)

    def remove_lock_file(descriptor: int, lock: Path) -> None:
        """Remove a lock file that this process holds; Windows removes no open file, so another holder keeps it."""
        release_lock(descriptor)
        os.close(descriptor)
        with suppress(OSError):
            lock.unlink()

    def release_lock(descriptor: int) -> None:
        """Release a lock: Windows does so some time after the file was closed."""
        _lock_or_unlock_byte(descriptor, msvcrt.LK_UNLCK)

    def _lock_or_unlock_byte(descriptor: int, mode: int) -> None:
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, _BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, mode, 1)
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)

else:
    import fcntl

    def acquire_lock(descriptor: int, *, wait: bool, shared: bool = False) -> None:
        """Lock an open file; other holders of a ``shared`` lock may be there.

        Raises:
            BlockingIOError: another process holds it, and this one does not ``wait``.
        """
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)

    def open_folder_lock(folder: Path) -> int:
        """Open what is locked for a folder: itself."""
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def remove_lock_file(descriptor: int, lock: Path) -> None:
        """Remove a lock file that this process holds."""
        with suppress(OSError):  # another user's, left in a folder where only owners remove
            lock.unlink()
        os.close(descriptor)

    def release_lock(descriptor: int) -> None:
        """Leave the lock to the file's end: a process that has inherited the open file still holds it."""


if sys.platform == "win32":
    _IN_MEMORY: Callable[[str], int] | None = None
    PRIVATE = os.O_NOINHERIT | os.O_BINARY  # text mode would change line ends
    NO_LINK = NO_WAIT = PRIVATE
    FOLDER = 0
    _PATIENCE = 2.0  # seconds for other programs, such as virus scanners, to close a file

    @functools.cache
    def links_can_be_made() -> bool:
        """Return whether this user may make links: administrators, and everyone in developer mode."""
        import tempfile

        with tempfile.TemporaryDirectory(prefix="kiln-") as folder:
            try:
                os.symlink("nowhere", os.path.join(folder, "link"))  # noqa: PTH118, PTH211
            except OSError:
                return False
        return True

    def refuse_link(path: str | os.PathLike[str]) -> None:
        """Refuse a link or a junction. Windows has no flag for it: one that is made right after this is followed.

        Raises:
            OSError: with ELOOP, as O_NOFOLLOW has it.
        """
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return
        if stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == stat.IO_REPARSE_TAG_MOUNT_POINT:
            raise OSError(errno.ELOOP, "it is a link", os.fspath(path))

    def flush_to_disk(path: Path) -> None:
        """Flush a file to the disk; Windows flushes folders itself."""
        if path.is_dir():
            return
        writable = os.access(path, os.W_OK)
        if writable:  # only a file opened for writing can be flushed
            _flush_file(path, os.O_RDWR | PRIVATE)

    def make_removable(path: Path) -> bool:
        """Let a file, or all files in a folder, be removed: Windows keeps read-only ones; return whether it exists."""
        below = (Path(place, name) for place, _, names in os.walk(path) for name in names)
        for file in (path, *below):
            if not file.is_symlink() and file.exists():
                file.chmod(stat.S_IREAD | stat.S_IWRITE)
        return path.exists()

    def flatten_folder(path: Path) -> None:
        """Refuse: the system's own limit on paths keeps folders from being so deep.

        Raises:
            OSError: always.
        """
        raise OSError(errno.ENAMETOOLONG, "its folders are too deep", str(path))

    def size_on_disk(status: os.stat_result) -> int:
        """Return the bytes that a file takes, up to its last block."""
        return status.st_size

    def make_hard_link(source: str, target: str) -> None:
        """Give a file another name; a link is not followed, so it cannot be linked here."""
        if os.path.islink(source):  # noqa: PTH114 - of many files
            raise OSError(errno.ENOTSUP, "links cannot be linked", source)
        os.link(source, target)

    def exchange_folders(one: Path, other: Path) -> None:
        """Exchange two folders, in three steps: an interrupted exchange leaves ``other`` next to its place.

        Raises:
            OSError: a file in them is open in a program, and nothing has changed.
        """
        aside = one.with_name(f"{one.name}.aside")
        other.rename(aside)
        try:
            one.rename(other)
        except BaseException:
            aside.rename(other)
            raise
        aside.rename(one)

    def open_descriptors() -> list[int]:
        """Return this process's open descriptors: none, as Windows' sockets are no files."""
        return []

    def make_named_pipe(path: Path) -> None:
        """Refuse: Windows has no pipes among its files.

        Raises:
            OSError: always.
        """
        raise OSError(errno.ENOTSUP, "Windows has no named pipes in folders", str(path))

    def replace_path(source: Path, target: Path) -> None:
        """Rename a file or folder onto another; an empty folder is removed first, which Windows does not replace."""
        if source.is_dir() and target.is_dir() and not target.is_symlink():
            target.rmdir()
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                source.replace(target)
            except PermissionError:
                if time.monotonic() > until or target.is_dir():
                    raise
                time.sleep(0.05)
            else:
                return

else:
    PRIVATE = os.O_CLOEXEC
    NO_WAIT = os.O_CLOEXEC | os.O_NONBLOCK  # for a named pipe into which nobody may ever write
    NO_LINK = os.O_NOFOLLOW | NO_WAIT
    FOLDER = os.O_DIRECTORY

    def links_can_be_made() -> bool:
        """Return True."""
        return True

    def refuse_link(path: str | os.PathLike[str]) -> None:
        """Leave the refusal to NO_LINK: the system refuses a link when it opens it."""

    def flush_to_disk(path: Path) -> None:
        """Flush a file or a folder to the disk."""
        _flush_file(path, os.O_RDONLY)

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
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
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

    def make_hard_link(source: str, target: str) -> None:
        """Give a file another name, or a link, which is not followed."""
        os.link(source, target, follow_symlinks=False)

    def open_descriptors() -> list[int]:
        """Return this process's open descriptors; macOS has the same folder as Linux."""
        return [int(name) for name in os.listdir("/dev/fd")]  # noqa: PTH208 - a folder of numbers

    def make_named_pipe(path: Path) -> None:
        """Make a named pipe."""
        os.mkfifo(path)

    def replace_path(source: Path, target: Path) -> None:
        """Rename a file or folder onto another, or onto an empty folder."""
        source.replace(target)

    if sys.platform == "linux":
        _IN_MEMORY: Callable[[str], int] | None = os.memfd_create
        _EXCHANGE = ("renameat2", -100, 2)  # AT_FDCWD of fcntl.h, and renameat2(2)'s RENAME_EXCHANGE

    else:
        _IN_MEMORY: Callable[[str], int] | None = None
        _EXCHANGE = ("renameatx_np", -2, 2)  # AT_FDCWD of macOS's fcntl.h, and rename(2)'s RENAME_SWAP

    def exchange_folders(one: Path, other: Path) -> None:
        """Exchange two folders atomically.

        Raises:
            OSError: the file system cannot do that.
        """
        import ctypes

        function, here, flag = _EXCHANGE
        rename = getattr(ctypes.CDLL(None, use_errno=True), function)
        if rename(here, os.fsencode(one), here, os.fsencode(other), flag):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(other))


def _flush_file(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


@contextmanager
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
    refuse_link(path)
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


def nearest_existing_path(path: Path) -> Path:
    """Return a path if it exists, else the nearest folder above it that does."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())
