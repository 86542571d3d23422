"""The tables of the ledger, and the reading of one that cannot be written."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
import tempfile
from pathlib import Path

from kiln.base.errors import LedgerFault
from kiln.base.system.files import file_content_stamp

VERSION = 4
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


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of a new ledger; another process that does the same waits, and finds them."""
    connection.executescript(f"BEGIN IMMEDIATE;{RUNS}PRAGMA user_version = {VERSION};COMMIT;")


def table_names(connection: sqlite3.Connection) -> set[str]:
    """Return the names of a database's tables."""
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
