"""The fleet's command line, without a provider."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln import cli
from kiln.cli.fleet_arguments import seconds
from kiln.errors import UsageError
from kiln.ledger.fleet import FleetLedger
from kiln.model.fleet import FleetRun

ROOT = Path(__file__).parents[3]


@pytest.fixture
def feedstock(tmp_path: Path) -> Path:
    """Return a feedstock with the configs of this one."""
    (tmp_path / "recipe").symlink_to(ROOT / "recipe")
    (tmp_path / ".ci_support").symlink_to(ROOT / ".ci_support")
    return tmp_path


@pytest.mark.parametrize(("text", "value"), [("10h", 36000.0), ("90min", 5400.0), ("45 s", 45.0), ("1.5", 5400.0)])
def test_times_are_hours_unless_they_have_a_unit(text: str, value: float) -> None:
    assert seconds(text) == value


def test_an_invalid_time_is_refused_with_examples() -> None:
    with pytest.raises(UsageError, match="invalid time 'soon'") as error:
        seconds("soon")
    assert "90min" in error.value.hint


def test_an_unknown_run_is_an_error(feedstock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["-C", str(feedstock), "fleet", "status", "r9"]) == UsageError.exit_code
    assert "fleet run 'r9' not found in the ledger" in capsys.readouterr().err


def test_the_status_of_a_repaired_ledger_names_the_sweep(feedstock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = FleetRun(id="r1", provider="aws", type="t", started=1.0, finished=None, number=1, lives=True)
    path = feedstock / "build_artifacts" / "ledger.sqlite"
    with FleetLedger(path) as ledger:
        ledger.begin_fleet(run)
    assert cli.run(["-C", str(feedstock), "fleet", "status", "--json"]) == 0
    output = capsys.readouterr()
    assert (json.loads(output.out)[0]["id"], "sweep" in output.err) == ("r1", False)
    path.write_bytes(b"SQLite format 3\0" + b"damaged" * 1000)
    assert cli.run(["-C", str(feedstock), "fleet", "status"]) == 0
    assert "kiln fleet sweep --provider PROVIDER" in capsys.readouterr().err
