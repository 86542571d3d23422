"""A ledger that may not be written is read with all of its records, or refused with the reason that holds."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import LedgerFault, NotWritable
from kiln.state.ledger import schema
from kiln.state.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


NOBODY = 65534


LEDGER, LOG, INDEX = "ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"


STEP = "INSERT INTO step VALUES ('key', 'config', 'title', 1, 1, '{\"packages\": []}')"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that an ordinary user reaches: pytest's own is for its user alone."""
    with tempfile.TemporaryDirectory(prefix="kiln-ledger-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "artifacts"
        Path(name, "artifacts").chmod(0o755)


def written(folder: Path, source: Path, *, tables_in_log: bool) -> None:
    """Write a ledger whose last record, or all of it, is in the log only, as a killed process leaves it."""
    source.mkdir()
    if not tables_in_log:
        with Ledger(source / LEDGER):
            pass
    with contextlib.closing(sqlite3.connect(source / LEDGER, isolation_level=None)) as connection:
        connection.executescript("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0;")
        if tables_in_log:
            connection.executescript(f"{schema.RUNS}{schema.FLEET}PRAGMA user_version = {schema.VERSION};")
        connection.execute(STEP)
        shutil.copytree(source, folder)
    if os.geteuid() == 0:
        for path in (folder, *folder.iterdir()):
            os.chown(path, NOBODY, NOBODY)


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    """Be a user whom permissions bind; root is not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def steps(folder: Path) -> int:
    """Return the number of steps that a ledger is read with."""
    with ordinary_user(), Ledger(folder / LEDGER) as ledger:
        ledger.latest_config_states()
        (count,) = ledger._fetch_row("SELECT count(*) FROM step")
        return int(count)


@pytest.mark.parametrize("tables_in_log", [False, True])
@pytest.mark.parametrize("index", ["kept", "absent", "unreadable"])
def test_the_records_of_a_log_in_a_read_only_folder_are_read(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, index: str, tables_in_log: bool
) -> None:
    written(folder, tmp_path / "source", tables_in_log=tables_in_log)
    if index == "absent":
        (folder / INDEX).unlink()
    elif index == "unreadable":
        (folder / INDEX).chmod(0)
    folder.chmod(0o555)
    before = sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())
    assert steps(folder) == 1
    if index != "kept":
        assert "is read-only (unable to open database file); nothing is recorded" in caplog.text
        assert sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir()) == before


def cut(path: Path) -> None:
    """Cut a file in the middle of a frame."""
    os.truncate(path, path.stat().st_size // 2 + 7)


LOGS: dict[str, Callable[[Path], object]] = {
    "absent": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": cut,
    "ten bytes": lambda path: os.truncate(path, 10),
    "foreign": lambda path: path.write_bytes(b"foreign!" * 999),
}


@pytest.mark.parametrize("log", LOGS)
def test_a_ledger_whose_tables_were_in_a_lost_log_is_not_called_an_older_kilns(
    folder: Path, tmp_path: Path, log: str
) -> None:
    written(folder, tmp_path / "source", tables_in_log=True)
    LOGS[log](folder / LOG)
    (folder / INDEX).unlink()
    folder.chmod(0o555)
    with pytest.raises(LedgerFault, match="has no records") as caught:
        steps(folder)
    assert "ledger.sqlite-wal" in caught.value.hint
    assert "older kiln" not in str(caught.value)


def test_an_unreadable_log_is_not_passed_over(folder: Path, tmp_path: Path) -> None:
    written(folder, tmp_path / "source", tables_in_log=False)
    (folder / INDEX).unlink()
    (folder / LOG).chmod(0)
    folder.chmod(0o555)
    with pytest.raises(LedgerFault, match=r"last records in ledger\.sqlite-wal cannot be read"):
        steps(folder)


@pytest.mark.parametrize("content", [b"text\n" * 99, b"SQLite format 3\0", b"PK\3\4" + bytes(5000)])
def test_a_damaged_ledger_in_a_read_only_folder_is_called_damaged(folder: Path, content: bytes) -> None:
    folder.mkdir()
    (folder / LEDGER).write_bytes(content)
    folder.chmod(0o555)
    with pytest.raises(LedgerFault, match=r"is damaged, and cannot be repaired since its folder is read-only"):
        steps(folder)


@pytest.mark.parametrize("mode", [0o755, 0o555])
@pytest.mark.parametrize("version", [0, schema.VERSION])
def test_a_database_of_another_program_is_refused_unchanged(folder: Path, version: int, mode: int) -> None:
    folder.mkdir()
    with contextlib.closing(sqlite3.connect(folder / LEDGER)) as connection:
        connection.executescript(f"CREATE TABLE note (text); PRAGMA user_version = {version};")
    if os.geteuid() == 0:
        for path in (folder, folder / LEDGER):
            os.chown(path, NOBODY, NOBODY)
    before = (folder / LEDGER).read_bytes()
    folder.chmod(mode)
    with pytest.raises(LedgerFault, match="is a database of another program") as caught:
        steps(folder)
    assert caught.value.why == "its tables are note"
    assert (folder / LEDGER).read_bytes() == before


def test_every_state_of_permissions_and_files_ends_in_records_or_an_own_error(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    written(folder, source, tables_in_log=False)
    kept = tmp_path / "kept"
    folder.rename(kept)
    states = itertools.product((0o644, 0o444, 0), (0o644, 0, None), (0o644, 0, None), (0o755, 0o555))
    for ledger, log, index, place in states:
        shutil.copytree(kept, folder)
        for path, mode in ((LEDGER, ledger), (LOG, log), (INDEX, index)):
            if mode is None:
                (folder / path).unlink()
            else:
                (folder / path).chmod(mode)
            if mode is not None and os.geteuid() == 0:
                os.chown(folder / path, NOBODY, NOBODY)
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        folder.chmod(place)
        if 0 in {ledger, log}:
            with pytest.raises((LedgerFault, NotWritable)):
                steps(folder)
        else:
            assert steps(folder) == (0 if log is None else 1), (ledger, log, index, place)
        folder.chmod(0o755)
        shutil.rmtree(folder)
    folder.mkdir()


def test_files_that_are_written_meanwhile_are_not_taken_for_a_ledger(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(folder, tmp_path / "source", tables_in_log=False)
    stamps = itertools.count()
    monkeypatch.setattr(schema, "file_content_stamp", lambda _: (next(stamps), 0, 0))
    with pytest.raises(LedgerFault, match="is being written by another process"):
        schema.copy_into_memory(folder / LEDGER)
