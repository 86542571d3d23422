"""A ledger that is damaged, newer, in the way, or written by many; and two commands at once on one feedstock."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import LedgerFault, SystemFault
from kiln.state.ledger.ledger import Ledger
from tests import pairs
from tests.unit.state.run_reports import writer

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


@pytest.mark.sampled
def test_eight_writers_lose_nothing(tmp_path: Path) -> None:
    item = 250
    writers = [writer(tmp_path / "l.sqlite", item) for _ in range(8)]
    first = [int(process.stdout.readline()) for process in writers if process.stdout]
    for process in writers:
        process.communicate()
    with Ledger(tmp_path / "l.sqlite") as ledger:
        reports = [ledger.run_report(number) for number in first]
    assert [len(report.configs) for report in reports if report] == [item] * 8


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of every feedstock in turn: a package may name its folder."""
    return tmp_path_factory.mktemp("pairs") / "feedstock"


@pytest.fixture(scope="module")
def expected(place: Path) -> dict[str, str]:
    """Return the packages of a build that nothing disturbs."""
    return pairs.undisturbed(place)


@pytest.mark.sampled
@pytest.mark.parametrize("pair", pairs.PAIRS, ids=lambda pair: pair.name)
def test_of_two_at_once_each_succeeds_or_says_that_the_other_builds(
    pair: pairs.Pair, place: Path, expected: dict[str, str]
) -> None:
    assert list(pairs.trial(pair, place, 2, expected)) == [[]] * 2


@pytest.mark.sampled
def test_what_was_built_while_the_feedstock_changed_is_not_taken_for_what_it_says_now(tmp_path: Path) -> None:
    root = pairs.feedstock(tmp_path / "feedstock")
    recipe, settings = root / "recipe" / "meta.yaml", root / "conda-forge.yml"
    changing = f"    - grep -q changed '{settings}' || echo '# changed' >> '{settings}'\n"
    recipe.write_text(recipe.read_text().replace("about:", f"{changing}about:"))
    first, second, third = (pairs.run(root, pairs.build(pairs.A))[0] for _ in range(3))
    assert [first.code, second.code, third.code] == [0, 0, 0], first.text
    assert "changed while it was built" in first.text
    assert ("1 done" in second.text, "1 cached" in third.text) == (True, True), second.text
