"""A fleet run that the ledger has lost is resumed or ended; workers of another computer are not started beside."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kiln.cli import fleet_lost_runs
from kiln.errors import AlreadyRunning, MachinesUnknown
from kiln.fleet import lost_run_recovery
from kiln.fleet import run as fleet
from kiln.fleet.lost_run_recovery import RunNote
from kiln.ledger.fleet import FleetLedger
from kiln.model.feedstock import Feedstock
from kiln.model.fleet import FleetRun, WorkerRecord, WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY = "k" * 64
CONFIGS: Any = [SimpleNamespace(config="c", inputs=SimpleNamespace(shared=KEY, key="key"))]
WORKER = WorkerRecord(name="kiln-r1-1", type="compute-16", state=WorkerState.READY, requested=1.0)
RUN = FleetRun(
    id="r1",
    provider="aws",
    type="compute-16",
    started=1.0,
    finished=None,
    number=0,
    lives=False,
    key=KEY,
    workers=(WORKER,),
)


@pytest.fixture
def recover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FleetRun | None]:
    """Recover with a provider that has machines of r1, as far as a folder names that run."""
    monkeypatch.setattr(fleet_lost_runs, "site_of", lambda *words, **_: words[2])
    monkeypatch.setattr(lost_run_recovery, "recover", lambda *_, **__: RUN)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("AWS_REGION", raising=False)

    def call(ledger: FleetLedger, **more: object) -> FleetRun | None:
        options: Any = SimpleNamespace(
            **{"provider": "aws", "spot": False, "beside": False, "prices": None, "vars": [], **more}
        )
        return fleet_lost_runs.recover(options, Feedstock(root=tmp_path), CONFIGS, ledger)

    return call


def write_note(tmp_path: Path, key: str = KEY) -> None:
    folder = tmp_path / "build_artifacts" / "fleet" / "r1"
    folder.mkdir(parents=True)
    RunNote(id="r1", provider="aws", type="compute-16", key=key, started=1.0).write(folder)


def test_a_run_that_was_lost_is_in_the_ledger_again_before_it_is_resumed(
    tmp_path: Path, recover: Callable[..., FleetRun | None]
) -> None:
    write_note(tmp_path)
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        assert recover(ledger) == RUN
        (stored,) = ledger.fleets()
        assert (stored.id, stored.finished, stored.workers) == ("r1", None, (WORKER,))


def test_a_run_of_other_inputs_is_ended(
    tmp_path: Path, recover: Callable[..., FleetRun | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[object] = []
    monkeypatch.setattr(fleet, "down", lambda _, run: ended.append(run))
    write_note(tmp_path, key="other")
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        assert recover(ledger, beside=True) is None
    assert ended == ["r1"]


def test_no_worker_is_started_beside_those_of_another_computer(
    tmp_path: Path, recover: Callable[..., FleetRun | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = {"run": "r7", "inputs": KEY[:16], "ended": False}
    monkeypatch.setattr(fleet, "list_workers", lambda _: json.dumps([machine]))
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(AlreadyRunning, match="1 workers of the same recipe and build options exist") as error:
            recover(ledger)
        assert "kiln fleet down r7 --provider aws" in error.value.hint
        assert recover(ledger, beside=True) is None
        assert recover(ledger, provider="local") is None


def test_a_provider_that_cannot_be_asked_is_left_to_the_run(
    tmp_path: Path, recover: Callable[..., FleetRun | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> str:
        raise MachinesUnknown("the provider could not be asked")

    monkeypatch.setattr(fleet, "list_workers", fail)
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        assert recover(ledger) is None
