"""Read a ledger that cannot be written together with its write-ahead log, which SQLite can only read in a copy.

Without its own index of the log (``-shm``), SQLite ignores the log of a database in a read-only folder: a run's last
records, or all of them, would be missing without a word.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from pathlib import Path

from kiln.errors import LedgerFault
from kiln.operating_system.file_operations import file_content_stamp

LOG = "-wal"
ATTEMPTS = 5  # to copy both files while nobody writes them


def has_write_ahead_log(path: Path) -> bool:
    """Return whether records of a ledger may be in its write-ahead log alone."""
    log = _write_ahead_log_path(path)
    return log.is_file() and log.stat().st_size > 0


def copy_into_memory(path: Path) -> sqlite3.Connection:
    """Return a copy of a ledger in memory, with the records of its write-ahead log.

    Raises:
        LedgerFault: a file cannot be read or copied, or another process goes on writing.
    """
    with tempfile.TemporaryDirectory(prefix="kiln-ledger-") as folder:
        copy = Path(folder) / "ledger.sqlite"
        try:
            unchanged = any(_copy_unless_changed(path, copy) for _ in range(ATTEMPTS))
        except OSError as error:
            raise LedgerFault(
                f"the ledger {path} and its last records in {_write_ahead_log_path(path).name} cannot be read together",
                why=f"{error.filename or folder}: {error.strerror or error}",
                hint=f"make both readable, or read them as their owner: ls -l {path}*",
            ) from error
        if not unchanged:
            hint = "run the same command again once that process has ended"
            raise LedgerFault(f"the ledger {path} is being written by another process", hint=hint)
        memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        with contextlib.closing(sqlite3.connect(copy)) as source:
            source.backup(memory)
    return memory


def _copy_unless_changed(path: Path, copy: Path) -> bool:
    """Copy a ledger and its log; return whether neither changed meanwhile."""
    pairs = ((path, copy), (_write_ahead_log_path(path), _write_ahead_log_path(copy)))
    before = [file_content_stamp(source) for source, _ in pairs]
    for source, target in pairs:
        shutil.copyfile(source, target)
    return [file_content_stamp(source) for source, _ in pairs] == before


def _write_ahead_log_path(path: Path) -> Path:
    return path.with_name(path.name + LOG)
