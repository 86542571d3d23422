"""The tables of the ledger, the migration of older ones, and the reading of one that cannot be written."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
import tempfile
from pathlib import Path

from kiln.base.errors import LedgerFault
from kiln.base.system.files import file_content_stamp

VERSION = 4  # 1 had the table of steps alone; 2 and 3 other names, see `kiln.state.ledger.schema`
RUNS = """
CREATE TABLE IF NOT EXISTS step (
    key TEXT PRIMARY KEY,
    config TEXT NOT NULL,
    title TEXT NOT NULL,
    finished REAL NOT NULL,
    seconds REAL NOT NULL,
    detail TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS run (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    command TEXT NOT NULL,
    started REAL NOT NULL,
    finished REAL,
    owner TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS config_run (
    run INTEGER NOT NULL REFERENCES run (id),
    config TEXT NOT NULL,
    position INTEGER NOT NULL,
    state TEXT NOT NULL,
    started REAL,
    finished REAL,
    peak_memory INTEGER,
    detail TEXT NOT NULL,
    PRIMARY KEY (run, config)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS config_run_state ON config_run (config, state);
CREATE TABLE IF NOT EXISTS change (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    run INTEGER NOT NULL,
    config TEXT NOT NULL,
    state TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS artifact (
    path TEXT PRIMARY KEY,
    sha256 TEXT NOT NULL,
    size INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    config TEXT NOT NULL,
    inputs TEXT NOT NULL
) WITHOUT ROWID;
"""
FLEET = """
CREATE TABLE IF NOT EXISTS fleet (
    id TEXT PRIMARY KEY,
    provider TEXT NOT NULL,
    type TEXT NOT NULL,
    started REAL NOT NULL,
    finished REAL,
    owner TEXT NOT NULL,
    number INTEGER NOT NULL,
    key TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS worker (
    fleet TEXT NOT NULL REFERENCES fleet (id),
    name TEXT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (fleet, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS job (
    fleet TEXT NOT NULL REFERENCES fleet (id),
    config TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (fleet, config, attempt)
) WITHOUT ROWID;
"""
TABLES = frozenset(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", RUNS + FLEET))

# Configs with their runs, which are rehearsals or builds; queries keep the two kinds apart. The duration of
# a build includes that of the jobs that it continues.
KNOWN = """
CREATE TEMP VIEW known AS
SELECT config_run.*, run.owner, coalesce(json_extract(run.detail, '$.rehearsal'), 0) AS rehearsal,
config_run.finished - config_run.started + coalesce(json_extract(config_run.detail, '$.earlier_seconds'), 0) AS duration
FROM config_run JOIN run ON run.id = config_run.run
"""


LOG = "-wal"
ATTEMPTS = 5  # to copy both files while nobody writes them


def has_write_ahead_log(path: Path) -> bool:
    """Return whether records of a ledger may be in its write-ahead log alone."""
    log = _write_ahead_log_path(path)
    return log.is_file() and log.stat().st_size > 0


def copy_into_memory(path: Path) -> sqlite3.Connection:
    """Return a copy of a ledger in memory, with the records of its write-ahead log."""
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


# Schema 2 called the build of a config a cell, the fleet's workers machines, and the first build of a group its leader;
# schema 3 had other names for the times and states of workers and jobs.
RENAMED_TABLES = {"cell": "config_run", "machine": "worker"}
FIELDS = {
    "config_run": {"leader": "cold", "machine": "worker"},
    "worker": {"asked": "requested", "up": "provisioned", "gone": "terminated"},
    "job": {"leader": "cold", "machine": "worker", "began": "started", "ended": "finished"},
}
VALUES = {  # of the field `state` of records
    "worker": {"asked for": "requested", "leaving": "terminating", "gone": "terminated"},
    "job": {"asked for": "requested", "ended": "finished", "home": "collected"},
}
TITLES = {"cell": "config"}  # of steps
STATES = {"found": "cached", "elsewhere": "locked by another process"}


def migrate_schema(connection: sqlite3.Connection) -> None:
    """Rename the tables and values of an older schema, and create missing tables; other processes wait meanwhile."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        (version,) = connection.execute(
            "PRAGMA user_version"
        ).fetchone()  # read again: another process may have been first
        if version != VERSION:
            tables = table_names(connection)
            connection.execute("DROP INDEX IF EXISTS cell_of_config")
            for old, new in RENAMED_TABLES.items():
                if old in tables and new not in tables:
                    connection.execute(f"ALTER TABLE {old} RENAME TO {new}")
            for statement in filter(str.strip, RUNS.split(";")):
                connection.execute(statement)
            rename_old_values(connection)
            connection.execute(f"PRAGMA user_version = {VERSION}")


def rename_old_values(connection: sqlite3.Connection) -> None:
    """Rename the states and the fields of records; current names stay as they are."""
    for column, words, tables in (("state", STATES, ("config_run", "change")), ("title", TITLES, ("step",))):
        for table in tables:
            for old, new in words.items():
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (new, old))  # noqa: S608 - ours
    for table in FIELDS.keys() & table_names(connection):
        key = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5]]
        rows = connection.execute(f"SELECT detail, {', '.join(key)} FROM {table}").fetchall()  # noqa: S608 - ours
        where = " AND ".join(f"{name} = ?" for name in key)
        for detail, *values in rows:
            renamed = _rename_detail_fields(detail, FIELDS[table], VALUES.get(table, {}))
            if renamed != detail:
                connection.execute(f"UPDATE {table} SET detail = ? WHERE {where}", (renamed, *values))  # noqa: S608


def _rename_detail_fields(detail: str, fields: dict[str, str], states: dict[str, str]) -> str:
    """Return a JSON object with its fields and its state renamed; other text stays, for its reader to refuse."""
    try:
        record = json.loads(detail)
    except ValueError:
        return detail
    if not isinstance(record, dict) or not (fields.keys() & record.keys() or record.get("state") in states):
        return detail
    renamed = {fields.get(name, name): value for name, value in record.items()}
    return json.dumps({**renamed, **({"state": states[record["state"]]} if record.get("state") in states else {})})


def table_names(connection: sqlite3.Connection) -> set[str]:
    """Return the names of a database's tables."""
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
