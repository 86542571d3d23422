"""``kiln fleet down`` for several runs: a fault with one leaves no workers of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.base.errors import CredentialsRefused
from kiln.cli import main
from kiln.cli.fleet import teardown
from kiln.cli.fleet.site import artifact_layout
from kiln.fleet import run as fleet_run
from kiln.fleet.model import FleetRun
from kiln.fleet.records import FleetLedger
from kiln.recipe.feedstock import Feedstock

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_run_that_cannot_be_torn_down_leaves_no_workers_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "meta.yaml").write_text("package: {name: a, version: 1}\n")
    removed = []

    def down(site: str, run: str) -> None:
        if site == "aws":
            raise CredentialsRefused("the provider does not accept the credentials", why=f"those of {run}")
        removed.append(run)

    monkeypatch.setattr(teardown, "playbook_site", lambda *words: words[3])
    monkeypatch.setattr(fleet_run, "tear_down_run", down)
    ledger_path = artifact_layout(Feedstock(root=tmp_path)).ledger
    with FleetLedger(ledger_path) as ledger:
        for number, provider in enumerate(("openstack", "aws", "local", "aws"), 1):
            ledger.begin_fleet(
                FleetRun(
                    id=f"r{number}", provider=provider, type="t", started=number, finished=None, number=0, lives=False
                )
            )
    assert main.run(["-C", str(tmp_path), "fleet", "down"]) == CredentialsRefused.exit_code
    assert sorted(removed) == ["r1", "r3"]
    errors = capsys.readouterr().err
    assert ("those of r2" in errors, "those of r4" in errors) == (True, True)
    with FleetLedger(ledger_path) as ledger:
        assert {run.id for run in ledger.fleet_runs() if run.finished is None} == {"r2", "r4"}
    assert main.run(["-C", str(tmp_path), "fleet", "down", "unknown", "r1"]) != 0
    assert removed[-1] == "r1"
