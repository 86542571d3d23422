"""A ledger that is damaged, newer or in the way, met by the real commands: an own error or a run that goes on."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import LedgerFault, SystemFault
from tests import pairs

if TYPE_CHECKING:
    from pathlib import Path

READERS = (("report", "--json"), ("build", "--all", "--failed", "--dry-run"), ("fleet", "status"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a feedstock with a finished config."""
    root = pairs.feedstock(tmp_path_factory.mktemp("ledger") / "feedstock")
    (ended,) = pairs.run(root, pairs.build(pairs.A))
    assert ended.code == 0, ended.text
    return root


def test_what_is_finished_is_not_built_again_past_a_damaged_ledger(built: Path) -> None:
    before = pairs.packages(built)
    ledger = built / "build_artifacts" / "ledger.sqlite"
    ledger.write_bytes(b"damaged " * 4096)
    (ended,) = pairs.run(built, pairs.build(pairs.A))
    assert ended.code == 0, ended.text
    assert "is kept as ledger.sqlite.broken" in ended.text
    assert "1 cached" in ended.text
    assert pairs.packages(built) == before
    assert ledger.with_name("ledger.sqlite.broken").read_bytes().startswith(b"damaged")


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_every_reader_tells_a_newer_ledger_and_leaves_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    root = pairs.feedstock(tmp_path / "feedstock")
    ledger = root / "build_artifacts" / "ledger.sqlite"
    ledger.parent.mkdir()
    with sqlite3.connect(ledger) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    (ended,) = pairs.run(root, words)
    assert ended.code == LedgerFault.exit_code, ended.text
    assert "schema 99" in ended.text
    assert "Traceback" not in ended.text
    assert not list(ledger.parent.glob("*.broken"))


@pytest.mark.parametrize("words", [("build", "--all", "--failed", "--dry-run"), ("fleet", "status")], ids=" ".join)
def test_a_pipe_in_its_place_holds_no_command_up(tmp_path: Path, words: tuple[str, ...]) -> None:
    root = pairs.feedstock(tmp_path / "feedstock")
    (root / "build_artifacts").mkdir()
    os.mkfifo(root / "build_artifacts" / "ledger.sqlite")
    (ended,) = pairs.run(root, words)
    assert ended.code == SystemFault.exit_code, ended.text
    assert "is a pipe, not a file" in ended.text
