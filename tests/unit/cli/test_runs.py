"""``kiln runs`` lists what the ledger has recorded."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UsageError
from kiln.cli import main
from kiln.cli.main import make_pasteable
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import ConfigState
from tests import builders, runs

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A feedstock with a succeeded run, a failed one, and one whose process was killed."""
    feedstock = builders.feedstock(tmp_path / "f", "package:\n  name: a\n  version: '1'\n")
    good = runs.worked_through(["a", "b"])
    bad = runs.worked_through(["a", "b"], bad={1: ConfigState.FAILED})
    with Ledger(feedstock.artifacts / "ledger.sqlite") as ledger:
        ledger.end_run(ledger.begin_run(dataclasses.replace(good, commit=COMMIT)))
        ledger.end_run(ledger.begin_run(dataclasses.replace(bad, rehearsal=True)))
        killed = ledger.begin_run(runs.worked_through(["a", "b"], until=10.0))
        with ledger._write_transaction() as connection:
            connection.execute("UPDATE run SET owner = 'gone' WHERE id = ?", (killed,))
    return feedstock.root


def kiln(root: Path, *arguments: str) -> int:
    return main.dispatch(["-C", str(root), "runs", *arguments])


def test_runs_are_listed_with_commit_and_verdict_the_latest_first(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kiln(root) == 0
    header, _, killed, failed, good = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "started", "commit", "kind", "verdict", "took", "configs"]
    assert good.split()[0] == "1"
    assert good.split()[3:6] == ["01234567", "build", "succeeded"]
    assert good.endswith("2 done")
    assert failed.split()[3:5] == ["rehearsal", "failed"]
    assert failed.endswith("1 failed, 1 done")
    assert killed.split()[3:5] == ["build", "interrupted"]


def test_json_has_each_run_with_its_configs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kiln(root, "--json", "--last", "2") == 0
    killed, failed = json.loads(capsys.readouterr().out)
    assert (killed["run"], killed["verdict"], killed["commit"]) == (3, "interrupted", "")
    assert failed["configs"] == {"a": "done", "b": "failed"}
    assert failed["seconds"] > 0


def test_earlier_runs_are_counted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kiln(root, "--last", "1") == 0
    assert capsys.readouterr().out.splitlines()[-1] == make_pasteable("2 earlier runs: kiln runs --all", root)
    assert kiln(root, "--last", "1", "--all") == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_a_feedstock_without_runs_gets_no_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = builders.feedstock(tmp_path / "f", "package:\n  name: a\n  version: '1'\n")
    assert kiln(feedstock.root) == 0
    assert capsys.readouterr().out.startswith("no run is recorded yet")
    assert kiln(feedstock.root, "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert not feedstock.artifacts.exists()


def test_a_number_below_one_is_refused(root: Path) -> None:
    with pytest.raises(UsageError, match="--last is 0"):
        kiln(root, "--last", "0")
