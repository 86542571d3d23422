"""Locks on open files, held until the file is closed or its process ends."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

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
