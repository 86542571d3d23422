"""The memory under build_artifacts/: which steps are finished, and every run over the matrix with each of its cells.

All that is written is one SQLite transaction, so whoever is killed at any moment leaves the whole record or none. A
step is named by a key over everything that decides its result, and written only once it has ended well. A run is
written as it goes: what a cell became, when, at what cost, and every change on the way.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln import files
from kiln.container.owner import Owner, is_gone
from kiln.errors import DiskFull
from kiln.ledger import records
from kiln.model.run import CellState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kiln.model.run import CellRun, MatrixReport

VERSION = 2
BUSY_SECONDS = 30.0
SCHEMA = """
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
CREATE TABLE IF NOT EXISTS cell (
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
CREATE INDEX IF NOT EXISTS cell_of_config ON cell (config, state);
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


# Cells with what is known of their runs, which are rehearsals or builds: neither kind tells anything of the other.
KNOWN = """
CREATE TEMP VIEW known AS
SELECT cell.*, run.owner, coalesce(json_extract(run.detail, '$.rehearsal'), 0) AS rehearsal
FROM cell JOIN run ON run.id = cell.run
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A step that ended well: ``finished`` is seconds since the epoch, ``detail`` what the step wants back."""

    key: str
    config: str
    title: str
    finished: float
    seconds: float
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A package file in the channel, as it was when it was put there.

    ``modified`` are nanoseconds since the epoch, ``inputs`` a hash over what every cell's packages are made of.
    """

    path: str
    sha256: str
    size: int
    modified: int
    config: str
    inputs: str


class Ledger:
    """The SQLite file under build_artifacts/; safe for several threads and processes."""

    def __init__(self, path: Path) -> None:
        """Open the file, or begin one; a file that SQLite cannot read is put aside as ``*.broken``.

        Raises:
            DiskFull: when there is no room even for that.
        """
        self._path = path
        self._lock = threading.Lock()
        try:
            with _full_disk_told(path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._open = self._prepared()
        except sqlite3.OperationalError:
            raise  # locked: nothing is wrong with what is written there
        except sqlite3.DatabaseError:
            self._open = self._begun_anew()

    def close(self) -> None:
        """Let go of the file; the last to do so tidies it up."""
        self._open.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, sqlite3.Error):
            self._open.close()

    # Steps

    def finished(self, key: str) -> Finished | None:
        """Return what is known of a finished step."""
        row = self._row("SELECT key, config, title, finished, seconds, detail FROM step WHERE key = ?", key)
        return row and Finished(
            key=row[0], config=row[1], title=row[2], finished=row[3], seconds=row[4], detail=json.loads(row[5])
        )

    def record(self, key: str, *, config: str, title: str, seconds: float, detail: Mapping[str, Any]) -> None:
        """Write down that a step has ended well; a later record of the same key takes the place of an earlier one."""
        row = (key, config, title, time.time(), seconds, json.dumps(detail, sort_keys=True))
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO step VALUES (?, ?, ?, ?, ?, ?)", row)

    def forget(self, key: str) -> None:
        """Strike out a step whose result is gone."""
        with self._writing() as connection:
            connection.execute("DELETE FROM step WHERE key = ?", (key,))

    def latest(self, title: str, config: str | None = None) -> tuple[Finished, ...]:
        """Return the finished steps of a title, of one cell or of all, the latest first."""
        rows = self._rows(
            "SELECT key, config, title, finished, seconds, detail FROM step"
            " WHERE title = ?1 AND (?2 IS NULL OR config = ?2) ORDER BY finished DESC",
            title,
            config,
        )
        names = ("key", "config", "title", "finished", "seconds")
        return tuple(Finished(**dict(zip(names, row, strict=False)), detail=json.loads(row[5])) for row in rows)

    # Packages

    def keep(self, *kept: Kept) -> None:
        """Write down what package files lie in the channel now."""
        rows = [(each.path, each.sha256, each.size, each.modified, each.config, each.inputs) for each in kept]
        with self._writing() as connection:
            connection.executemany("INSERT OR REPLACE INTO artifact VALUES (?, ?, ?, ?, ?, ?)", rows)

    def kept(self, path: str) -> Kept | None:
        """Return what is known of a package file in the channel."""
        row = self._row("SELECT path, sha256, size, modified, config, inputs FROM artifact WHERE path = ?", path)
        names = ("path", "sha256", "size", "modified", "config", "inputs")
        return row and Kept(**dict(zip(names, row, strict=True)))

    # Runs

    def begin(self, report: MatrixReport) -> int:
        """Write down that a run of this process begins, with all of its cells, and return its number."""
        with self._writing() as connection:
            cursor = connection.execute(
                "INSERT INTO run (command, started, owner, detail) VALUES (?, ?, ?, ?)",
                (report.command, report.started, str(Owner.here()), json.dumps(records.run_detail(report))),
            )
            number = int(cursor.lastrowid or 0)
            for position, cell in enumerate(report.cells):
                _write_cell(connection, number, position, cell)
        return number

    def change(self, run: int, cell: CellRun) -> None:
        """Write down a cell as it is now."""
        with self._writing() as connection:
            query = "SELECT position FROM cell WHERE run = ? AND config = ?"
            row = connection.execute(query, (run, cell.config)).fetchone()
            last = "SELECT count(*) FROM cell WHERE run = ?"
            position = row[0] if row else connection.execute(last, (run,)).fetchone()[0]
            _write_cell(connection, run, position, cell)

    def end(self, run: int) -> None:
        """Write down that a run is over."""
        with self._writing() as connection:
            connection.execute("UPDATE run SET finished = ? WHERE id = ?", (time.time(), run))

    def runs(self) -> tuple[int, ...]:
        """Return the numbers of all runs, the latest first."""
        return tuple(number for (number,) in self._rows("SELECT id FROM run ORDER BY id DESC"))

    def report(self, run: int | None = None) -> MatrixReport | None:
        """Return a run as it stands, the latest when none is named; None when there is no such run.

        Cells that were under way in a run that was killed are told as interrupted.
        """
        row = self._row(
            "SELECT id, command, started, finished, owner, detail FROM run WHERE id = ?1 OR ?1 IS NULL"
            " ORDER BY id DESC LIMIT 1",
            run,
        )
        if row is None:
            return None
        number, command, started, finished, owner, detail = row
        query = "SELECT config, state, started, finished, peak_memory, detail FROM cell WHERE run = ? ORDER BY position"
        killed = finished is None and not self._lives(owner)
        cells = tuple(records.cell(*each, killed=killed) for each in self._rows(query, number))
        return records.run(number, command, started, finished, json.loads(detail), cells)

    def changes(self, run: int) -> tuple[tuple[str, CellState, float], ...]:
        """Return every change of a run in its order: the cell, its new state, when (seconds since the epoch)."""
        rows = self._rows("SELECT config, state, at FROM change WHERE run = ? ORDER BY id", run)
        return tuple((config, CellState(state), at) for config, state, at in rows)

    def states(self, *, rehearsal: bool = False) -> dict[str, CellState]:
        """Return what became of each cell in the last run that had it; rehearsals are told apart from builds."""
        known: dict[str, CellState] = {}
        for number in self.runs():
            report = self.report(number)
            for cell in report.cells if report and report.rehearsal is rehearsal else ():
                known.setdefault(cell.config, cell.state)
        return known

    def estimates(self, *, rehearsal: bool = False) -> dict[str, float]:
        """Return the seconds that each cell took when it was last built, or rehearsed, from beginning to end."""
        rows = self._rows(
            "SELECT config, finished - started FROM known WHERE rehearsal = ? AND state = ?"
            " AND started IS NOT NULL ORDER BY run",
            rehearsal,
            CellState.DONE.value,
        )
        return dict(rows)

    def peaks(self, *, rehearsal: bool = False) -> dict[str, int]:
        """Return the most memory that each cell held when it was last built, or rehearsed, in bytes."""
        query = "SELECT config, peak_memory FROM known WHERE rehearsal = ? AND peak_memory IS NOT NULL ORDER BY run"
        return dict(self._rows(query, rehearsal))

    def abandoned(self, config: str, *, rehearsal: bool = False) -> bool:
        """Whether the last run that had a cell under way is gone without having said so: killed."""
        row = self._row(
            "SELECT owner FROM known WHERE rehearsal = ? AND config = ? AND state = ? ORDER BY run DESC LIMIT 1",
            rehearsal,
            config,
            CellState.RUNNING.value,
        )
        return row is not None and not self._lives(row[0])

    @staticmethod
    def _lives(label: str) -> bool:
        owner = Owner.parse(label)
        return owner is not None and not is_gone(owner, Owner.here(), Owner.of_process(owner.pid))

    # The file

    def _row(self, query: str, *values: object) -> Any:
        rows = self._rows(query, *values)
        return rows[0] if rows else None

    def _rows(self, query: str, *values: object) -> list[Any]:
        with self._lock, files.no_room_as_disk_full(self._path.parent):
            return self._open.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which has the right to write from its first moment and so never loses a race later."""
        with self._lock, _full_disk_told(self._path.parent):
            self._open.execute("BEGIN IMMEDIATE")
            with self._open:
                yield self._open

    def _prepared(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _begun_anew(self) -> sqlite3.Connection:
        """Losing the memory costs time, trusting a broken one could cost a wrong package."""
        for suffix in ("-wal", "-shm"):
            files.remove(self._path.with_name(self._path.name + suffix))
        self._path.replace(self._path.with_name(self._path.name + ".broken"))
        return self._prepared()


def _prepare(connection: sqlite3.Connection) -> None:
    """Have the tables in a file, whoever else does the same at this moment."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            # SQLite does not wait by itself when two change this mode at once.
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
    # In this mode NORMAL loses at most the last changes to a power cut; it never leaves the file inconsistent.
    connection.execute("PRAGMA synchronous = NORMAL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in {0, 1, VERSION}:  # 1 had the table of steps alone
        raise sqlite3.DatabaseError(f"ledger version {version}")
    if version != VERSION:
        connection.executescript(f"BEGIN IMMEDIATE;{SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")
    connection.execute(KNOWN)


def _write_cell(connection: sqlite3.Connection, run: int, position: int, cell: CellRun) -> None:
    """Lay a cell over what was known of it, and add the change to the history."""
    detail = json.dumps(records.cell_detail(cell))
    row = (run, cell.config, position, cell.state.value, cell.started, cell.finished, cell.peak_memory, detail)
    connection.execute("INSERT OR REPLACE INTO cell VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    change = (run, cell.config, cell.state.value, time.time())
    connection.execute("INSERT INTO change (run, config, state, at) VALUES (?, ?, ?, ?)", change)


@contextlib.contextmanager
def _full_disk_told(folder: Path) -> Iterator[None]:
    """SQLite has an error of its own for a full disk."""
    try:
        with files.no_room_as_disk_full(folder):
            yield
    except sqlite3.OperationalError as error:
        if "full" not in str(error):
            raise
        hint = "free some room and run the same command again; what was finished is kept"
        raise DiskFull(f"the disk became full while writing in {folder}", why=str(error), hint=hint) from error
