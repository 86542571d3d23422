"""Diagnose a ledger that cannot be used, and repair a damaged one: write a new one with its readable records.

The damaged file is kept next to the new one. Rows that are whole are copied, and so are the files of finished configs:
losing these would cost builds, trusting damaged ones could publish a wrong package.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
import sqlite3
import stat
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from kiln import files
from kiln.errors import DiskFull, KilnError, LedgerFault, NotWritable
from kiln.ledger import migration, schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from kiln.ledger.sqlite_file import Database

LOGGER = logging.getLogger(__name__)

COMPANIONS = ("-wal", "-shm")  # files of SQLite next to the database
FINISHED = "finished"  # the folder of finished configs, one file each, next to the ledger
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError)  # errors of decoding a damaged record
SQLITE = (sqlite3.Error, UnicodeDecodeError)  # a message that quotes damaged bytes may be invalid UTF-8
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
    """Convert the errors of SQLite.

    Raises:
        KilnError: the error that `unusable_file_error` returns.
        DamagedLedger: when the content of the file is damaged.
    """
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
    """Raise an error for damage that remains after a repair.

    Raises:
        LedgerFault: with the command that begins a new ledger.
    """
    try:
        yield
    except DamagedLedger as damage:
        hint = f"mv {path} {path}.aside, then run the same command again"
        raise LedgerFault(f"the ledger {path} is damaged", why=str(damage), hint=hint) from damage


def unusable_file_error(error: sqlite3.Error, path: Path) -> KilnError | None:
    """Return the error for a file that is whole but cannot be used; None when its content is damaged."""
    message = str(error)
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
    """Require that the ledger and the files of SQLite next to it are regular files, where they exist.

    Raises:
        LedgerFault: naming the path and its kind.
    """
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
    """Return the schema of a ledger, 0 for a new one; a file that this kiln does not know is not changed.

    Raises:
        LedgerFault: naming the schemas, or the tables of another program's database.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not 0 <= version <= schema.VERSION:
        raise LedgerFault(
            f"the ledger {path} has schema {version}, but this kiln only knows schemas up to {schema.VERSION}",
            why="a newer kiln has written it",
            hint=f"update kiln, or begin a new ledger: mv {path} {path}.newer",
        )
    tables = migration.table_names(connection)
    if tables and not tables & schema.TABLES and not tables & migration.TABLES.keys():
        raise LedgerFault(
            f"{path} is a database of another program, not a ledger",
            why=f"its tables are {', '.join(sorted(tables))}",
            hint=f"mv {path} {path}.aside, then run the same command again",
        )
    return int(version)


def replace_damaged_file(path: Path, inode: int | None, why: str) -> None:
    """Replace a damaged ledger by a new one, unless another process has; the damaged one is kept next to it.

    ``inode`` is that of the damaged file if it was open already.

    Raises:
        LedgerFault: when the folder cannot be written.
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
    """Open a ledger that is neither created, migrated nor repaired."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _copy_readable_records(old: Path, new: Path) -> tuple[int, int]:
    """Write a new ledger with the readable records; return the numbers of records and of finished configs."""
    with contextlib.closing(sqlite3.connect(new)) as target:
        target.executescript(f"{schema.RUNS}{schema.FLEET}PRAGMA user_version = {schema.VERSION};")
        with contextlib.suppress(*SQLITE), contextlib.closing(connect_read_only(old)) as source:
            source.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
            for table in migration.table_names(target):
                _copy_intact_rows(table, source, target)
        rows = target.total_changes
        configs = sum(_restore_finished_config(file, target) for file in sorted((old.parent / FINISHED).glob("*.json")))
        migration.rename_old_values(target)
        target.commit()
    return rows, configs


def _copy_intact_rows(table: str, source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Copy the sound rows of a table, from both of its ends up to the damage."""
    columns = target.execute(f"PRAGMA table_info({table})").fetchall()
    names = [column[1] for column in columns]
    key = [column[1] for column in columns if column[5]] or ["rowid"]
    into = f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608
    earlier = [old for old, new in migration.TABLES.items() if new == table]
    for place, order in itertools.product((table, *earlier), ("", " DESC")):
        by = ", ".join(f"{name}{order}" for name in key)
        with contextlib.suppress(*SQLITE):
            for row in source.execute(f"SELECT {', '.join(names)} FROM {place} ORDER BY {by}"):  # noqa: S608 - ours
                values = dict(zip(names, row, strict=True))
                if "state" in values:
                    values["state"] = migration.STATES.get(values["state"], values["state"])
                if _is_row_decodable(table, values):
                    target.execute(into, tuple(values.values()))


def _is_row_decodable(table: str, row: dict[str, Any]) -> bool:
    from kiln.ledger import run_record_json_columns

    try:
        detail = json.loads(row["detail"]) if "detail" in row else {}
        if table == "config_run":
            columns = [row[name] for name in run_record_json_columns.CONFIG_COLUMNS]
            run_record_json_columns.config_from_columns(columns, killed=False)
        elif table == "run":
            run_record_json_columns.run_from_columns([row[name] for name in run_record_json_columns.RUN_COLUMNS], ())
        return isinstance(detail, dict)
    except UNREADABLE:
        return False


def write_config_backup(folder: Path, key: str, step: Iterable[object], artifacts: Iterable[Iterable[object]]) -> None:
    """Write a finished config into a file: its row of the table of steps, and those of its packages.

    Raises:
        NotWritable: the file, or its folder, is a link.
    """
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
