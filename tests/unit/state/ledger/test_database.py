"""A ledger that is damaged, newer, locked or not a file: an error, or a repair with all readable records."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import DiskFull, KilnError, LedgerFault, NotWritable
from kiln.fleet.records import FleetLedger
from kiln.state.ledger import database, schema
from kiln.state.ledger.ledger import Ledger, StoredArtifact
from kiln.state.results import ConfigState
from tests.unit.state.run_reports import DONE, RUN, A

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = "0" * 64
KEPT = StoredArtifact(path="linux-64/a-1-h_0.conda", sha256="5" * 64, size=7, modified=1, config="a", inputs="i")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a ledger with many steps and runs, and a config that is finished."""
    path = tmp_path_factory.mktemp("original") / "ledger.sqlite"
    with FleetLedger(path) as ledger:
        for number in range(300):
            ledger.store_step(f"k{number:03}", config="c", title="t", seconds=1, detail={"files": {"x" * 200: "y"}})
        for number in range(3):
            run = ledger.begin_run(dataclasses.replace(RUN, jobs=number))
            ledger.update_config(run, DONE)
            ledger.end_run(run)
        ledger.store_artifacts(KEPT)
        ledger.store_step(KEY, config="a", title="config", seconds=2, detail={"packages": []})
        ledger.back_up_finished_config(KEY, KEPT)
    return path


@pytest.fixture
def path(tmp_path: Path, original: Path) -> Path:
    """Return a copy of the ledger and of its backups."""
    shutil.copytree(original.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / original.name


def changed(path: Path, *statements: str) -> None:
    """Change a ledger by hand."""
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def read_configs(path: Path) -> None:
    """Read everything that commands read."""
    with FleetLedger(path) as ledger:
        ledger.finished_step(KEY)
        ledger.latest_steps("t")
        ledger.stored_artifact(KEPT.path)
        for number in ledger.run_numbers():
            ledger.run_report(number)
        ledger.latest_config_states()
        ledger.last_build_seconds()
        ledger.last_build_peak_memory_by_config()
        ledger.was_last_build_killed("a")
        ledger.fleet_runs()
        ledger.last_build_durations()


def test_of_a_file_with_a_damaged_page_the_rest_is_copied(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data) // 4096 // 2 * 4096
    data[middle : middle + 4096] = os.urandom(4096)
    path.write_bytes(data)
    with Ledger(path) as ledger:
        assert len(ledger.latest_steps("t")) > 100
        assert ledger.finished_step(KEY)
        assert ledger.stored_artifact(KEPT.path) == KEPT
    assert path.with_name("ledger.sqlite.broken").read_bytes() == data
    assert "is kept as ledger.sqlite.broken" in caplog.text


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE config_run SET detail = '{' WHERE run = 2",
        "UPDATE config_run SET detail = '[]' WHERE run = 2",
        "UPDATE config_run SET state = 'banana' WHERE run = 2",
        "UPDATE config_run SET started = 'early' WHERE run = 2",
        "UPDATE run SET detail = 'null' WHERE id = 2",
        "UPDATE run SET detail = '{\"unknown\": 1}' WHERE id = 2",
        "UPDATE step SET detail = 'x' WHERE key = 'k001'",
        "UPDATE step SET detail = X'FF00FF' WHERE key = 'k001'",
        "ALTER TABLE run RENAME COLUMN owner TO possessor",
        "ALTER TABLE config_run DROP COLUMN peak_memory",
        "DROP TABLE artifact",
        "INSERT INTO job VALUES ('f', 'c', 1, '{')",
    ],
)
def test_all_records_but_a_damaged_one_are_copied_and_the_file_is_kept(path: Path, statement: str) -> None:
    changed(path, statement)
    read_configs(path)
    with FleetLedger(path) as ledger:
        assert len(ledger.latest_steps("t")) >= 299
        assert ledger.finished_step(KEY)
        assert ledger.stored_artifact(KEPT.path) == KEPT
        ledger.update_config(ledger.begin_run(RUN), dataclasses.replace(A, state=ConfigState.DONE))


def test_finished_builds_are_restored_from_their_files(path: Path) -> None:
    path.write_bytes(b"this is not a database, " * 500)
    with Ledger(path) as ledger:
        assert ledger.finished_step(KEY)
        assert ledger.stored_artifact(KEPT.path) == KEPT
        assert ledger.run_numbers() == ()


def test_a_ledger_is_repaired_where_users_are_not_told_apart(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows refuses the argument."""
    access = os.access

    def windows_access(place: Path, mode: int, *, effective_ids: bool = False) -> bool:
        if effective_ids:
            raise NotImplementedError
        return access(place, mode)

    monkeypatch.setattr(os, "access", windows_access)
    path.write_bytes(b"x" * 4096)
    read_configs(path)
    assert [place.name for place in database.kept_damaged_files(path)] == ["ledger.sqlite.broken"]


def test_every_damaged_ledger_is_kept(path: Path) -> None:
    for text in (b"one, no database " * 99, b"two, no database " * 99):
        path.write_bytes(text)
        Ledger(path).close()
    assert path.with_name("ledger.sqlite.broken").read_bytes().startswith(b"one")
    assert path.with_name("ledger.sqlite.broken-2").read_bytes().startswith(b"two")


def test_random_damage_never_ends_in_a_traceback(path: Path, tmp_path: Path) -> None:
    whole, chance = path.read_bytes(), random.Random(5)
    for number in range(40):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 8, 64))):
            start = chance.randrange(len(data))
            size = chance.choice((1, 16, 600))
            data[start : start + size] = chance.randbytes(min(size, len(data) - start))
        place = tmp_path / str(number) / "ledger.sqlite"
        place.parent.mkdir()
        place.write_bytes(data if number % 5 else data[: chance.randrange(len(data))])
        with contextlib.suppress(LedgerFault):
            read_configs(place)
            with Ledger(place) as ledger:
                ledger.end_run(ledger.begin_run(RUN))
        assert place.exists()


def test_damage_that_is_found_while_writing_is_repaired_for_the_next_command(path: Path) -> None:
    with Ledger(path) as ledger:
        changed(path, "ALTER TABLE step RENAME TO gone")
        with pytest.raises(LedgerFault, match="damaged"):
            ledger.store_step("new", config="c", title="t", seconds=1, detail={})
        ledger.store_step("new", config="c", title="t", seconds=1, detail={})
    with Ledger(path) as ledger:
        assert ledger.finished_step("new")
        assert ledger.finished_step(KEY)


@pytest.mark.parametrize(("other", "age"), [(-1, "older"), (1, "newer")])
def test_a_ledger_of_another_kiln_is_refused_and_not_changed(path: Path, other: int, age: str) -> None:
    version = schema.VERSION + other
    changed(path, f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    with pytest.raises(LedgerFault, match=rf"has schema {version}, .* {schema.VERSION} alone\n.* {age} than this"):
        Ledger(path)
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*.broken*"))


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (Path.mkdir, "a folder"),
        (os.mkfifo, "a pipe"),
        (lambda place: place.symlink_to("/tmp/elsewhere"), "a link to /tmp/elsewhere"),
    ],
)
def test_anything_but_a_file_is_refused_by_its_name(
    tmp_path: Path, suffix: str, make: Callable[[Path], None], kind: str
) -> None:
    make(tmp_path / f"ledger.sqlite{suffix}")
    with pytest.raises(LedgerFault, match=f"ledger.sqlite{suffix} is {kind}, not a file"):
        Ledger(tmp_path / "ledger.sqlite")


def test_leftovers_of_another_ledger_do_no_harm(path: Path) -> None:
    for suffix in database.COMPANIONS:
        path.with_name(path.name + suffix).write_bytes(os.urandom(9000))
    read_configs(path)
    with Ledger(path) as ledger:
        assert ledger.finished_step(KEY)


def test_a_ledger_that_is_locked_for_long_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with Ledger(path) as ledger, pytest.raises(LedgerFault, match="is locked by another process"):
        ledger.begin_run(RUN)
    holder.close()


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("database is locked", LedgerFault),
        ("attempt to write a readonly database", NotWritable),
        ("unable to open database file", NotWritable),
        ("database or disk is full", DiskFull),
        ("disk I/O error", LedgerFault),
    ],
)
def test_errors_of_the_system_become_errors_of_kiln(tmp_path: Path, message: str, kind: type[KilnError]) -> None:
    with pytest.raises(kind), database.convert_sqlite_errors(tmp_path / "l"):
        raise sqlite3.OperationalError(message)


@pytest.mark.parametrize("message", ["attempt to write a readonly database", "disk I/O error"])
def test_a_ledger_that_cannot_be_written_is_read(path: Path, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(_connection: sqlite3.Connection, _path: Path) -> None:
        raise sqlite3.OperationalError(message)

    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=4096))  # SQLite says no more of a full disk
    monkeypatch.setattr(database, "_prepare_for_writing", prepare)
    read_configs(path)
    with Ledger(path) as ledger, pytest.raises(NotWritable):
        ledger.begin_run(RUN)


def test_an_empty_file_is_a_new_ledger(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").touch()
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.run_numbers() == ()
