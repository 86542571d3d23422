"""A lock next to a folder while it is made or changed, and the removal of the files that killed processes left there.

Folders such as prefixes are in places that are not kiln's own, so no lock file may stay there. It exists as long as a
process holds it, or after that process was killed; the next holder removes it, and the parts next to it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import files
from kiln.base.errors import AlreadyRunning
from kiln.base.system.files import NO_LINK, acquire_lock, open_folder_lock
from kiln.base.system.processes import is_process_running

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDING = 10.0  # seconds for the processes of a killed one to end, which hold its lock until then
PAUSE = 0.05  # seconds
_SUFFIX = ".part.lock"
_WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


@contextlib.contextmanager
def exclusive_folder_lock(path: Path, *, wait: float = 0.0) -> Iterator[int]:
    """Make or change the folder ``path`` alone during the block, and remove what killed processes left half-made of it.

    Yields the lock's descriptor: the lock is held until this block ends, and by each process that the descriptor was
    handed to until that ends. The block begins at once or after ``wait`` seconds at most, and a few more where who
    holds the lock was killed, so that its processes can end. On a file system without locks nothing is held or removed.

    Raises:
        AlreadyRunning: naming the process that does so.
        OSError: when the folder of ``path`` cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = _lock_path(path)
    descriptor, is_held = _acquire_lock_file(lock, wait)
    try:
        if is_held:
            # Parts of another user, or in a folder that cannot be listed, stay: they do no harm.
            with contextlib.suppress(PermissionError):
                for part in files.part_files_beside(path):
                    with contextlib.suppress(OSError):
                        files.remove(part)
        yield descriptor
    finally:
        if _is_same_file(descriptor, lock):
            with contextlib.suppress(OSError):  # another user's, left in a folder where only owners remove
                lock.unlink()
        os.close(descriptor)


def remove_leftovers_of_killed_processes(path: Path) -> None:
    """Remove what killed processes left of a folder that is finished, where that can be done and nobody is at work."""
    with contextlib.suppress(OSError, AlreadyRunning):
        if os.path.lexists(_lock_path(path)) or files.part_files_beside(path):
            with exclusive_folder_lock(path):
                pass


@contextlib.contextmanager
def temporary_folder(store: Path, prefix: str) -> Iterator[Path]:
    """Make a folder in ``store`` for files that are not finished, and remove it at the end of the block.

    Those of the same ``prefix`` that killed processes left are removed first.
    """
    store.mkdir(parents=True, exist_ok=True)
    with files.held_folder_lock(store):
        for leftover in store.glob(f"{prefix}*"):
            _remove_unless_locked(leftover)
        folder = Path(tempfile.mkdtemp(dir=store, prefix=prefix))
        descriptor = open_folder_lock(folder)
        _try_acquire(descriptor)
    try:
        yield folder
    finally:
        files.remove(folder)
        os.close(descriptor)


def _remove_unless_locked(folder: Path) -> None:
    """Remove the folder of a killed process; another user's stays."""
    with contextlib.suppress(OSError):
        if folder.is_symlink() or not folder.is_dir():
            return
        descriptor = open_folder_lock(folder)
        try:
            if _try_acquire(descriptor):
                files.remove(folder)
        finally:
            os.close(descriptor)


def _try_acquire(descriptor: int) -> bool:
    try:
        acquire_lock(descriptor, wait=False)
    except OSError:
        return False
    return True


def _lock_path(path: Path) -> Path:
    return path.with_name(f".{path.name}{_SUFFIX}")


def _acquire_lock_file(lock: Path, wait: float) -> tuple[int, bool]:
    """Return the descriptor of a lock file, and whether its file system has locks."""
    begun = time.monotonic()
    while True:
        try:  # no link is followed
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | NO_LINK, 0o644)
        except PermissionError:  # a file without write permission can be locked all the same
            if not lock.is_file():
                raise
            descriptor = os.open(lock, os.O_RDONLY | NO_LINK)
        try:
            acquire_lock(descriptor, wait=False)
        except BlockingIOError:
            _pause_or_raise_already_running(lock, descriptor, wait, time.monotonic() - begun)
        except OSError as error:
            if error.errno in _WITHOUT_LOCKS:
                return descriptor, False
            os.close(descriptor)
            raise OSError(error.errno, error.strerror, str(lock)) from error
        else:
            if _is_same_file(descriptor, lock):
                if os.fstat(descriptor).st_nlink == 1:  # a file with a second name belongs to somebody else
                    with contextlib.suppress(OSError):  # opened to be read
                        os.ftruncate(descriptor, 0)
                        os.write(descriptor, f"{os.getpid()}\n".encode())
                return descriptor, True
            os.close(descriptor)  # its holder removed it after it was opened here


def _is_same_file(descriptor: int, lock: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), lock.lstat())
    except FileNotFoundError:
        return False


def _pause_or_raise_already_running(lock: Path, descriptor: int, wait: float, waited: float) -> None:
    """Wait a moment for the holder, or for the processes of a killed one; raises AlreadyRunning after long enough."""
    holder = os.read(descriptor, 20).decode("ascii", "replace").strip()
    os.close(descriptor)
    if waited >= (wait if holder.isdecimal() and is_process_running(int(holder)) else max(wait, ENDING)):
        raise files.already_running_error(lock, holder)
    time.sleep(PAUSE)
