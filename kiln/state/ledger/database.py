"""The file of the ledger: opened, locked while it is written, and repaired when it is damaged."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import shutil
import sqlite3
import stat
import threading
import time
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from kiln.base import files
from kiln.base.errors import DiskFull, KilnError, LedgerFault, NotWritable
from kiln.state.ledger import schema
from kiln.state.ledger.schema import KNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


LOGGER = logging.getLogger(__name__)

COMPANIONS = ("-wal", "-shm")  # files of SQLite next to the database
FINISHED = "finished"  # the folder of finished configs, one file each, next to the ledger
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError)  # errors of decoding a damaged record
SQLITE = (sqlite3.Error, UnicodeDecodeError)  # a message that quotes damaged bytes may be invalid UTF-8
LEAST_SPACE = 100_000  # bytes: what SQLite needs next to the ledger to open it; it calls a full disk an I/O error then
KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")
LedgerType = TypeVar("LedgerType", bound="Database")


class DamagedLedger(Exception):
    """A record of the ledger is damaged; the ledger itself handles this error."""


def retry_after_repair(
    method: Callable[Concatenate[LedgerType, Parameters], Value],
) -> Callable[Concatenate[LedgerType, Parameters], Value]:
    """Decorate a reading method: when a record is damaged, repair the file and call the method once more."""

    @functools.wraps(method)
    def method_with_retry(ledger: LedgerType, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Value:
        try:
            return method(ledger, *args, **kwargs)
        except DamagedLedger as damage:
            ledger.replace_damaged(damage)
        with refuse_remaining_damage(ledger.path):
            return method(ledger, *args, **kwargs)

    return method_with_retry


@contextlib.contextmanager
def decoding_errors_as_damage() -> Iterator[None]:
    """Raise `DamagedLedger` for a record that cannot be decoded."""
    try:
        yield
    except UNREADABLE as error:
        raise DamagedLedger(f"a record cannot be read: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def convert_sqlite_errors(path: Path) -> Iterator[None]:
    """Convert the errors of SQLite."""
    try:
        with files.full_disk_as_kiln_error(path.parent):
            yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.Error as error:
        raise unusable_file_error(error, path) or DamagedLedger(str(error)) from error
    except UnicodeDecodeError as error:  # SQLite's message quotes damaged bytes
        raise DamagedLedger(str(error)) from error


@contextlib.contextmanager
def refuse_remaining_damage(path: Path) -> Iterator[None]:
    """Raise an error for damage that remains after a repair."""
    try:
        yield
    except DamagedLedger as damage:
        hint = f"mv {path} {path}.aside, then run the same command again"
        raise LedgerFault(f"the ledger {path} is damaged", why=str(damage), hint=hint) from damage


def unusable_file_error(error: sqlite3.Error, path: Path) -> KilnError | None:
    """Return the error for a file that is whole but cannot be used; None when its content is damaged."""
    message = str(error)
    if "disk I/O" in message and shutil.disk_usage(path.parent).free < LEAST_SPACE:
        message += ", the disk is full"
    if "full" in message:
        hint = "free some disk space and run the same command again; what was finished is kept"
        return DiskFull(f"the disk became full while writing in {path.parent}", why=message, hint=hint)
    if "locked" in message or "busy" in message:
        return LedgerFault(
            f"the ledger {path} is locked by another process",
            why=f"{message}, for longer than a transaction takes",
            hint=f"wait until that process has ended ('fuser {path}' shows it), then run the same command again",
        )
    unrecovered = "locking protocol" in message and not _may_access_folder(path.parent, os.W_OK)
    if "readonly" in message or "unable to open" in message or unrecovered:
        hint = (
            f"check the owner of {path.parent} (ls -ld), and whether its file system is mounted read-only (findmnt -T)"
        )
        return NotWritable(f"the ledger {path} cannot be written", why=message, hint=hint)
    if "disk I/O" in message:
        hint = "look for a limit on the size of files (ulimit -f), and for errors of the disk (sudo dmesg)"
        return LedgerFault(f"the ledger {path} cannot be read from the disk", why=message, hint=hint)
    return None


def require_regular_files(path: Path) -> None:
    """Require that the ledger and the files of SQLite next to it are regular files, where they exist."""
    for place in (path, *(path.with_name(path.name + suffix) for suffix in COMPANIONS)):
        with contextlib.suppress(FileNotFoundError):
            kind = _special_file_kind(place)
            if kind is not None:
                hint = f"mv {place} {place}.aside, then run the same command again"
                raise LedgerFault(f"{place} is {kind}, not a file of the ledger", hint=hint)


def _special_file_kind(place: Path) -> str | None:
    mode = place.lstat().st_mode
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISLNK(mode):
        return f"a link to {place.readlink()}"
    return next((name for is_one, name in KINDS if is_one(mode)), "a device")


def require_known_schema(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema of a ledger, 0 for a new one; a file that this kiln does not know is not changed."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in {0, schema.VERSION}:
        age, cure = ("newer", "update kiln, or begin") if version > schema.VERSION else ("older", "begin")
        raise LedgerFault(
            f"the ledger {path} has schema {version}, and this kiln knows {schema.VERSION} alone",
            why=f"another kiln, {age} than this one, has written it",
            hint=f"{cure} a new ledger: mv {path} {path}.{age}",
        )
    tables = schema.table_names(connection)
    if tables and not tables & schema.TABLES:
        raise LedgerFault(
            f"{path} is a database of another program, not a ledger",
            why=f"its tables are {', '.join(sorted(tables))}",
            hint=f"mv {path} {path}.aside, then run the same command again",
        )
    return int(version)


def replace_damaged_file(path: Path, inode: int | None, why: str) -> None:
    """Replace a damaged ledger by a new one, unless another process has; the damaged one is kept next to it.

    ``inode`` is that of the damaged file if it was open already.
    """
    if not _may_access_folder(path.parent, os.W_OK | os.X_OK):
        raise LedgerFault(
            f"the ledger {path} is damaged, and cannot be repaired since its folder is read-only",
            why=why,
            hint=f"make the folder writable once, or copy it to where you can write: chmod u+w {path.parent}",
        )
    with files.held_folder_lock(path.parent):
        if inode not in {None, path.stat().st_ino} or (inode is None and _is_database_intact(path)):
            return
        backup = next(name for name in _backup_paths(path) if not os.path.lexists(name))
        with files.atomic_replacement(path) as part:
            rows, configs = _copy_readable_records(path, part)
            files.link_or_copy(path, backup)
            for suffix in COMPANIONS:
                with contextlib.suppress(FileNotFoundError):
                    path.with_name(path.name + suffix).replace(backup.with_name(backup.name + suffix))
    LOGGER.warning(
        "note: the ledger %s was damaged (%s) and is kept as %s; a new one was written with %d readable records and %d "
        "finished builds from %s",
        *(path, why, backup.name, rows, configs, path.parent / FINISHED),
    )


def kept_damaged_files(path: Path) -> tuple[Path, ...]:
    """Return the damaged ledgers that were kept next to a repaired one."""
    return tuple(backup for backup in _backup_paths(path) if os.path.lexists(backup))


def _is_database_intact(path: Path) -> bool:
    try:
        with contextlib.closing(connect_read_only(path)) as connection:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except SQLITE:
        return False


def _may_access_folder(folder: Path, mode: int) -> bool:
    """Return whether this process may use a folder so; Windows does not tell effective users apart."""
    return os.access(folder, mode, effective_ids=os.access in os.supports_effective_ids)


def _backup_paths(path: Path) -> Iterator[Path]:
    return (path.with_name(f"{path.name}.broken{'' if number == 1 else f'-{number}'}") for number in range(1, 1000))


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a ledger that is neither created nor repaired."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _copy_readable_records(old: Path, new: Path) -> tuple[int, int]:
    """Write a new ledger with the readable records; return the numbers of records and of finished configs."""
    with contextlib.closing(sqlite3.connect(new)) as target:
        target.executescript(f"{schema.RUNS}{schema.FLEET}PRAGMA user_version = {schema.VERSION};")
        with contextlib.suppress(*SQLITE), contextlib.closing(connect_read_only(old)) as source:
            source.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
            for table in schema.table_names(target):
                _copy_intact_rows(table, source, target)
        rows = target.total_changes
        configs = sum(_restore_finished_config(file, target) for file in sorted((old.parent / FINISHED).glob("*.json")))
        target.commit()
    return rows, configs


def _copy_intact_rows(table: str, source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Copy the sound rows of a table, from both of its ends up to the damage."""
    columns = target.execute(f"PRAGMA table_info({table})").fetchall()
    names = [column[1] for column in columns]
    key = [column[1] for column in columns if column[5]] or ["rowid"]
    into = f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608
    for order in ("", " DESC"):
        by = ", ".join(f"{name}{order}" for name in key)
        with contextlib.suppress(*SQLITE):
            for row in source.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY {by}"):  # noqa: S608 - ours
                values = dict(zip(names, row, strict=True))
                if _is_row_decodable(table, values):
                    target.execute(into, tuple(values.values()))


def _is_row_decodable(table: str, row: dict[str, Any]) -> bool:
    from kiln.state.ledger import json_columns

    try:
        detail = json.loads(row["detail"]) if "detail" in row else {}
        if table == "config_run":
            columns = [row[name] for name in json_columns.CONFIG_COLUMNS]
            json_columns.config_from_columns(columns, killed=False)
        elif table == "run":
            json_columns.run_from_columns([row[name] for name in json_columns.RUN_COLUMNS], ())
        return isinstance(detail, dict)
    except UNREADABLE:
        return False


def write_config_backup(folder: Path, key: str, step: Iterable[object], artifacts: Iterable[Iterable[object]]) -> None:
    """Write a finished config into a file: its row of the table of steps, and those of its packages."""
    text = json.dumps({"step": list(step), "artifacts": [list(row) for row in artifacts]}, sort_keys=True)
    files.write_text(files.safe_path_inside(folder / FINISHED / f"{key}.json", folder), text)


def _restore_finished_config(file: Path, target: sqlite3.Connection) -> bool:
    """Add a finished config; return whether it could be read and was missing."""
    with contextlib.suppress(OSError, *UNREADABLE, sqlite3.Error):
        data = json.loads(file.read_text(encoding="utf-8"))
        json.loads(data["step"][-1])["packages"]
        added = target.execute("INSERT OR IGNORE INTO step VALUES (?, ?, ?, ?, ?, ?)", data["step"]).rowcount
        target.executemany("INSERT OR IGNORE INTO artifact VALUES (?, ?, ?, ?, ?, ?)", data["artifacts"])
        return added == 1
    return False


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
        except (NotWritable, DiskFull) as refusal:
            if not self.path.is_file():
                raise
            connection = self._connect_and_prepare(self._connect_read_only, _prepare_read_only)
            LOGGER.warning("note: the ledger %s is read-only (%s); nothing is recorded", self.path, refusal.why)
            return connection

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    def _connect_read_only(self) -> sqlite3.Connection:
        if schema.has_write_ahead_log(self.path):
            return schema.copy_into_memory(self.path)
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
    connection.execute(KNOWN)
    connection.execute("PRAGMA query_only = 1")


def _prepare_for_writing(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new file, while other processes may do the same."""
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
    if version == 0:
        schema.create_tables(connection)
    connection.execute(KNOWN)
