"""The ledger keeps finished steps, for several writers and past broken files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kiln.state.ledger.ledger import Ledger

if TYPE_CHECKING:
    from pathlib import Path


def test_a_finished_step_is_found_by_its_key_in_a_later_run(tmp_path: Path) -> None:
    Ledger(tmp_path / "l.sqlite").store_step("k", config="c", title="t", seconds=1.5, detail={"path": "a/b"})
    result = Ledger(tmp_path / "l.sqlite").finished_step("k")
    assert result is not None
    assert (result.config, result.title, result.seconds, result.detail) == ("c", "t", 1.5, {"path": "a/b"})


def test_an_unknown_or_forgotten_key_is_not_finished(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")
    assert ledger.finished_step("k") is None
    ledger.store_step("k", config="c", title="t", seconds=1, detail={})
    ledger.delete_step("k")
    assert ledger.finished_step("k") is None


def test_a_broken_file_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    path.write_bytes(b"this is not a database, " * 500)
    ledger = Ledger(path)
    assert ledger.finished_step("k") is None
    ledger.store_step("k", config="c", title="t", seconds=1, detail={})
    assert ledger.finished_step("k") is not None
    assert path.with_name("l.sqlite.broken").read_bytes().startswith(b"this is not")


def test_no_record_of_several_writers_is_lost(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")

    def write(number: int) -> None:
        ledger.store_step(f"k{number}", config="c", title="t", seconds=number, detail={})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(200)))
    assert all(ledger.finished_step(f"k{number}") for number in range(200))
