"""A run that was not ended is resumed or refused, and a removal that is not confirmed is an error with its cause."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import (
    AlreadyRunning,
    CredentialsRefused,
    KilnError,
    MachinesUnknown,
    TeardownIncomplete,
    UsageError,
)
from kiln.fleet import run as fleet_run
from kiln.fleet.ansible.playbooks import PlaybookResult, PlaybookRunner, PlaybookSite
from kiln.fleet.model import FleetRun

if TYPE_CHECKING:
    from pathlib import Path

OPEN = FleetRun(id="r1", provider="aws", type="c7i.large", started=5.0, finished=None, number=3, lives=False, key="k")
ENDED = dataclasses.replace(OPEN, id="r0", finished=9.0)
GONE = PlaybookResult(ok=True, reasons={}, answer={"left": [], "machines": [{"name": "w1"}]})
REFUSALS = [
    (PlaybookResult(ok=False, reasons={"localhost": "AuthFailure: bad key"}), CredentialsRefused, "AuthFailure"),
    (PlaybookResult(ok=False, reasons={"localhost": "timed out"}), MachinesUnknown, "timed out"),
    (PlaybookResult(ok=True, reasons={}), MachinesUnknown, "the playbook did not list what the provider has"),
]
REMAINS = PlaybookResult(ok=False, reasons={"localhost": "w1 remains"}, answer={"left": ["w1"], "machines": []})


class Playbooks:
    """The playbooks that were run, each of which ends with ``result``."""

    def __init__(self) -> None:
        self.result = GONE
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def run_playbook(self, name: str, *, variables: dict[str, Any] | None = None, **__: object) -> Any:
        self.calls.append((name, variables or {}))
        return self.result


@pytest.fixture
def playbooks(monkeypatch: pytest.MonkeyPatch) -> Playbooks:
    playbooks = Playbooks()
    monkeypatch.setattr(PlaybookRunner, "run_playbook", playbooks.run_playbook)
    return playbooks


@pytest.fixture
def site(tmp_path: Path) -> PlaybookSite:
    return PlaybookSite(
        folder=tmp_path / "r1", playbooks=tmp_path, python=tmp_path / "python", variables={}, environment={}
    )


def noted_runs(site: PlaybookSite) -> list[FleetRun]:
    """Return the runs that their folders still have a note of."""
    return list(fleet_run.notes_of_unrecorded_runs(site.folder.parent, known=()))


def test_a_run_that_was_not_ended_is_resumed_and_an_ended_one_is_not() -> None:
    assert fleet_run.run_to_resume([ENDED, OPEN], provider="aws", key="k") == OPEN
    assert fleet_run.run_to_resume([ENDED], provider="azure", key="other") is None


def test_a_run_of_another_process_is_not_resumed() -> None:
    lives = dataclasses.replace(OPEN, lives=True)
    with pytest.raises(AlreadyRunning, match="the fleet run r1 is running in another process"):
        fleet_run.run_to_resume([lives], provider="aws", key="k")


@pytest.mark.parametrize(
    ("provider", "key", "why"),
    [("azure", "k", "it has another provider"), ("aws", "other", "its recipe or build options differ")],
)
def test_a_run_whose_workers_are_of_no_use_is_to_be_removed_first(provider: str, key: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        fleet_run.run_to_resume([OPEN], provider=provider, key=key)
    assert caught.value.why == why
    assert "kiln fleet down r1" in caught.value.hint


@pytest.mark.parametrize(("result", "kind", "why"), [*REFUSALS, (REMAINS, TeardownIncomplete, "w1 remains")])
def test_a_tear_down_that_is_not_confirmed_is_an_error_and_the_run_stays_known(
    site: PlaybookSite, playbooks: Playbooks, result: PlaybookResult, kind: type[KilnError], why: str
) -> None:
    playbooks.result = result
    site.folder.mkdir()
    fleet_run.write_run_note(OPEN, site.folder)
    with pytest.raises(kind) as caught:
        fleet_run.tear_down_run(site, "r1")
    assert why in caught.value.why
    assert [run.id for run in noted_runs(site)] == ["r1"]


def test_a_run_that_was_torn_down_leaves_neither_a_note_nor_a_reserve(site: PlaybookSite, playbooks: Playbooks) -> None:
    site.folder.mkdir()
    fleet_run.write_run_note(OPEN, site.folder)
    site.disk_reserve_file.write_bytes(b"reserve")
    fleet_run.tear_down_run(site, "r1")
    assert playbooks.calls == [("down.yml", {})]
    assert not site.disk_reserve_file.exists()
    assert noted_runs(site) == []


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ({"everything": False}, {"kiln_sweep_all": False}),
        ({"everything": True, "user": ""}, {"kiln_sweep_all": True, "kiln_sweep_user": ""}),
        ({"everything": True, "ids": []}, {"kiln_sweep_all": True, "kiln_sweep_ids": []}),
    ],
)
def test_a_sweep_has_the_requested_limits_and_returns_the_workers_that_remain(
    site: PlaybookSite, playbooks: Playbooks, options: dict[str, Any], variables: dict[str, Any]
) -> None:
    assert fleet_run.sweep_leftover_workers(site, **options) == [{"name": "w1"}]
    assert playbooks.calls == [("sweep.yml", variables)]


@pytest.mark.parametrize(("result", "kind", "why"), [*REFUSALS, (REMAINS, TeardownIncomplete, "w1 remains")])
def test_a_sweep_that_is_not_confirmed_is_an_error(
    site: PlaybookSite, playbooks: Playbooks, result: PlaybookResult, kind: type[KilnError], why: str
) -> None:
    playbooks.result = result
    with pytest.raises(kind) as caught:
        fleet_run.sweep_leftover_workers(site, everything=False)
    assert why in caught.value.why


def test_the_workers_of_all_runs_and_users_are_listed(site: PlaybookSite, playbooks: Playbooks) -> None:
    assert fleet_run.list_existing_workers(site) == [{"name": "w1"}]
    assert playbooks.calls == [("list.yml", {"kiln_everywhere": True})]


@pytest.mark.parametrize(("result", "kind", "why"), REFUSALS)
def test_workers_that_cannot_be_listed_are_an_error(
    site: PlaybookSite, playbooks: Playbooks, result: PlaybookResult, kind: type[KilnError], why: str
) -> None:
    playbooks.result = result
    with pytest.raises(kind) as caught:
        fleet_run.list_existing_workers(site)
    assert why in caught.value.why
