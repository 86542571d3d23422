"""Detached runs that are stopped or collected: no worker is left where the controller does not answer."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kiln.cli import fleet_attach
from kiln.errors import MachinesUnknown
from kiln.fleet import run as fleet
from kiln.fleet.detached import controller, run_key
from kiln.fleet.detached.run_key import RunKey
from kiln.model.feedstock import Feedstock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUN = "0a1b2c3d"


class Connection:
    """A controller that gives these answers to `state`, one after the other; None is no answer."""

    def __init__(self, *answers: str | None) -> None:
        self.answers_left = list(answers)
        self.requests: list[str] = []

    def request(self, what: str) -> None:
        self.requests.append(what)

    def state(self) -> dict[str, Any]:
        answer = self.answers_left.pop(0) if self.answers_left else None
        if answer is None:
            raise MachinesUnknown("the controller cannot be reached")
        return {"process": answer}

    def answers(self) -> bool:
        return False


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is removed at the provider, in its order."""
    names: list[str] = []
    monkeypatch.setattr(fleet_attach, "LOOK", 0.0)
    monkeypatch.setattr(fleet_attach, "stored_site", lambda *_: "site")
    monkeypatch.setattr(fleet_attach, "site_of", lambda *words: words[3])
    monkeypatch.setattr(fleet_attach, "remove_controller", lambda _, run: names.append(f"controller of {run}"))
    monkeypatch.setattr(fleet, "down", lambda site, run: names.append(f"workers of {run} at {site}"))
    return names


def tear_down(monkeypatch: pytest.MonkeyPatch, folder: Path, connection: Connection, **more: Any) -> bool:
    @contextlib.contextmanager
    def connected(*_: object) -> Iterator[Connection]:
        yield connection

    monkeypatch.setattr(controller, "connected", connected)
    feedstock, provider = Feedstock(root=folder), more.pop("controllers_provider", "aws")
    key = RunKey(run=RUN, provider=provider, machine="m", address="192.0.2.7", port=22, host_key="k", private_key="p")
    key.write(feedstock.artifacts / "fleet" / RUN / run_key.NAME)
    options: Any = SimpleNamespace(**{"provider": None, **more})
    return fleet_attach.tear_down(options, feedstock, RUN)


def test_a_controller_that_is_gone_leaves_no_workers_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: list[str]
) -> None:
    assert tear_down(monkeypatch, tmp_path, Connection())
    assert removed == [f"controller of {RUN}", f"workers of {RUN} at aws"]
    assert not fleet_attach.is_detached(Feedstock(root=tmp_path), RUN)


def test_workers_of_a_cloud_whose_controller_was_an_existing_machine_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tear_down(monkeypatch, tmp_path, Connection(), controllers_provider="static")
    assert removed == [f"controller of {RUN}"]
    assert f"fleet down {RUN} --provider PROVIDER" in capsys.readouterr().err
    removed.clear()
    assert tear_down(monkeypatch, tmp_path, Connection(), controllers_provider="static", provider="openstack")
    assert removed == [f"controller of {RUN}", f"workers of {RUN} at openstack"]


def test_a_run_is_stopped_by_its_own_controller_though_the_network_fails_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: list[str]
) -> None:
    connection = Connection("running", None, None, "running", "ended")
    assert tear_down(monkeypatch, tmp_path, connection)
    assert connection.requests == ["stop", "collected"]
    assert removed == [f"controller of {RUN}"]
