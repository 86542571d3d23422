"""The file of the ledger: opened, created or migrated, locked while it is written, and repaired when it is damaged."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any

from kiln.errors import LedgerFault, NotWritable
from kiln.ledger import migration, read_only_ledger_copy
from kiln.ledger.damage_repair import (
    DamagedLedger,
    convert_sqlite_errors,
    refuse_remaining_damage,
    replace_damaged_file,
    require_known_schema,
    require_regular_files,
)
from kiln.ledger.schema import KNOWN, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kiln.ledger.damage_repair import LedgerType

LOGGER = logging.getLogger(__name__)

BUSY_SECONDS = 30.0


class Database:
    """An SQLite file, safe for several threads and processes."""

    def __init__(self, path: Path) -> None:
        """Open or create the file; a damaged one is replaced by a new one with its readable records.

        Raises:
            LedgerFault: when its path is not a file, a newer kiln has written it, or another process locks it for long.
            NotWritable: when it cannot be opened at all; a read-only one can.
            DiskFull: when the disk is full.
        """
        self.path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._open = self._open_database()
        except DamagedLedger as damage:
            replace_damaged_file(path, None, str(damage))
            with refuse_remaining_damage(path):
                self._open = self._open_database()

    def close(self) -> None:
        """Close the file; SQLite tidies it up when the last process does so."""
        self._open.close()

    def __enter__(self: LedgerType) -> LedgerType:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, sqlite3.Error):
            self._open.close()

    def _fetch_row(self, query: str, *values: object) -> Any:
        rows = self._fetch_rows(query, *values)
        return rows[0] if rows else None

    def _fetch_rows(self, query: str, *values: object) -> list[Any]:
        with self._lock, convert_sqlite_errors(self.path):
            return self._open.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _write_transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that holds the write lock from its beginning, and so cannot fail on it later."""
        try:
            with self._lock, convert_sqlite_errors(self.path):
                self._open.execute("BEGIN IMMEDIATE")
                with self._open:
                    yield self._open
        except DamagedLedger as damage:
            self.replace_damaged(damage)
            what = f"the ledger {self.path} was damaged, as was found while writing it"
            raise LedgerFault(what, why=str(damage), hint="it was repaired; run the same command again") from damage

    def _create_tables(self, tables: str) -> None:
        if self._fetch_row("PRAGMA query_only") != (1,):
            with self._lock, convert_sqlite_errors(self.path):
                self._open.executescript(f"BEGIN IMMEDIATE;{tables}COMMIT;")

    def replace_damaged(self, damage: DamagedLedger) -> None:
        """Replace the file by a new one with the readable records of the damaged one."""
        with self._lock:
            self._open.close()
            replace_damaged_file(self.path, self._inode, str(damage))
            with refuse_remaining_damage(self.path):
                self._open = self._open_database()

    def _open_database(self) -> sqlite3.Connection:
        require_regular_files(self.path)
        try:
            return self._connect_and_prepare(self._connect, _prepare_for_writing)
        except NotWritable as refusal:
            if not self.path.is_file():
                raise
            connection = self._connect_and_prepare(self._connect_read_only, _prepare_read_only)
            LOGGER.warning("note: the ledger %s is read-only (%s); nothing is recorded", self.path, refusal.why)
            return connection

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    def _connect_read_only(self) -> sqlite3.Connection:
        if read_only_ledger_copy.has_write_ahead_log(self.path):
            return read_only_ledger_copy.copy_into_memory(self.path)
        name = f"{self.path.absolute().as_uri()}?immutable=1"
        return sqlite3.connect(name, isolation_level=None, check_same_thread=False, uri=True)

    def _connect_and_prepare(
        self, connect: Callable[[], sqlite3.Connection], prepare: Callable[[sqlite3.Connection, Path], None]
    ) -> sqlite3.Connection:
        with convert_sqlite_errors(self.path):
            connection = connect()
            try:
                prepare(connection, self.path)
                self._inode = self.path.stat().st_ino
            except BaseException:
                connection.close()
                raise
        return connection


def _prepare_read_only(connection: sqlite3.Connection, path: Path) -> None:
    """Prepare to read a read-only file, next to which SQLite cannot create its own files."""
    version = require_known_schema(connection, path)
    if version == 0:
        raise LedgerFault(
            f"the ledger {path} has no records, and a new one cannot be begun since it is read-only",
            why=f"the process that began it has ended before, or {path.name}-wal, which held them, is gone",
            hint=f"copy {path.name}-wal from where the ledger comes from, or make {path.parent} writable",
        )
    if version != VERSION:
        raise LedgerFault(
            f"the ledger {path} has schema {version}, and cannot be migrated since it is read-only",
            why="an older kiln has written it",
            hint=f"make it and its folder writable once: chmod u+w {path} {path.parent}",
        )
    connection.execute(KNOWN)
    connection.execute("PRAGMA query_only = 1")


def _prepare_for_writing(connection: sqlite3.Connection, path: Path) -> None:
    """Create or migrate the tables of a file, while other processes may do the same."""
    version = require_known_schema(connection, path)
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            # SQLite does not wait for a process that changes this mode at the same time.
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.02)
    # In this mode NORMAL loses at most the last changes to a power cut; it never leaves the file inconsistent.
    connection.execute("PRAGMA synchronous = NORMAL")
    if version != VERSION:
        migration.migrate_schema(connection)
    connection.execute(KNOWN)
