"""Workers that the provider lists and that do not answer are probed again once its firewall admits this address."""

from __future__ import annotations

import json
import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from kiln.fleet.ansible import executor
from kiln.fleet.ansible.executor import probe_workers, provision_workers, tear_down_run, terminate_worker
from kiln.fleet.ansible.playbooks import NOT_ENDED, PlaybookResult, PlaybookSite
from kiln.fleet.ansible.sessions import PlaybookSession
from kiln.fleet.protocol import (
    CommandFailed,
    CommandUndelivered,
    ProbeWorkers,
    ProvisionFailed,
    ProvisionWorkers,
    TearDownFailed,
    TearDownRun,
    TerminateWorker,
    WorkerProvisioned,
    WorkerTerminated,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.fleet.protocol import Event, WorkersProbed

WORKERS = ("f-1", "f-2", "f-3")


class Provider:
    """A provider whose firewall admits this address from ``admit.yml`` on; ``f-3`` is silent behind it, too."""

    def __init__(self, machines: list[dict[str, Any]] | None, fault: str = "") -> None:
        self.machines = machines
        self.fault = fault
        self.played: list[str] = []
        self.provider_lock = threading.Lock()
        self.playbooks = self

    def run_playbook(self, name: str, **_: object) -> PlaybookResult:
        self.played.append(name)
        answer = None if self.machines is None else {"machines": self.machines}
        reasons = {"localhost": self.fault} if self.fault else {}
        return PlaybookResult(ok=answer is not None, reasons=reasons, answer=answer if name == "list.yml" else {})

    def ssh(self, worker: str, command: str, **_: object) -> SimpleNamespace:
        return SimpleNamespace(ok=command == "true" and worker == "f-1" and "admit.yml" in self.played)


def probed(machines: list[dict[str, Any]] | None, fault: str = "") -> tuple[WorkersProbed, list[str]]:
    provider = Provider(machines, fault)
    return probe_workers(cast("PlaybookSession", provider), ProbeWorkers(workers=WORKERS)), provider.played


def requested(*names: str, zone: str = "") -> ProvisionWorkers:
    return ProvisionWorkers(workers=names, offers=dict.fromkeys(names, ("compute-8", True, zone)))


def listed(*names: str, ended: bool = False) -> list[dict[str, Any]]:
    return [{"name": name, "ended": ended} for name in names]


def test_the_firewall_is_opened_to_this_address_before_a_listed_worker_counts_as_silent() -> None:
    event, played = probed(listed("f-1", "f-3"))
    assert played == ["list.yml", "admit.yml"]
    assert (event.answers, event.listed_names) == (frozenset({"f-1"}), frozenset({"f-1", "f-3"}))


def test_a_worker_that_is_not_listed_or_has_ended_opens_nothing() -> None:
    event, played = probed(listed("f-1", "f-2", ended=True))
    assert played == ["list.yml"]
    assert (event.answers, event.listed_names) == (frozenset(), frozenset())


def test_without_a_listing_nothing_is_known_and_nothing_opened() -> None:
    event, played = probed(None)
    assert played == ["list.yml"]
    assert (event.answers, event.listed_names, event.credentials) == (frozenset(), None, False)


@pytest.mark.processes
def test_a_provider_that_never_answers_holds_up_neither_probes_nor_other_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor gives up no silent worker before the answer to its probe."""
    monkeypatch.setattr(executor, "LISTING", 0.2)
    monkeypatch.setattr(executor, "CHANGE", 0.2)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho asking\nsleep 600\n")
    python.chmod(0o755)
    environment = {"PATH": os.environ["PATH"]}
    site = PlaybookSite(folder=tmp_path, playbooks=tmp_path, python=python, variables={}, environment=environment)
    session = PlaybookSession.from_site(site)
    probed = probe_workers(session, ProbeWorkers(workers=()))
    assert (probed.machines, probed.credentials, probed.reason) == (None, False, NOT_ENDED)
    provision_workers(session, requested("f-1"))
    again = CommandUndelivered(command=requested("f-1"), reason=NOT_ENDED)
    assert session.events.get_nowait() == again, "it is requested again"
    assert terminate_worker(session, TerminateWorker(worker="f-2")) == CommandFailed(worker="f-2", reason=NOT_ENDED)
    assert not session.provider_lock.locked()


EXPIRED = "An error occurred (RequestExpired) when calling the DescribeInstances operation: Request has expired."


def test_a_provider_that_refuses_expired_credentials_says_so_when_it_is_asked() -> None:
    event, _ = probed(None, EXPIRED)
    assert (event.listed_names, event.credentials) == (None, True)


@pytest.mark.parametrize(("fault", "credentials"), [(EXPIRED, True), ("Could not connect to the endpoint", False)])
def test_a_tear_down_that_the_credentials_do_not_allow_is_told_from_one_without_a_network(
    fault: str, credentials: bool, tmp_path: Path
) -> None:
    result = PlaybookResult(ok=False, reasons={"localhost": fault}, answer=None)
    session = SimpleNamespace(
        stopped=threading.Event(),
        playbooks=SimpleNamespace(stop_all_playbooks=lambda: None, run_playbook=lambda _, **__: result),
        site=SimpleNamespace(disk_reserve_file=tmp_path / "reserve", folder=tmp_path),
    )
    event = tear_down_run(cast("PlaybookSession", session), TearDownRun())
    assert event == TearDownFailed(reason=fault, unknown=True, credentials=credentials)


@pytest.mark.parametrize("per_worker", [True, False])
def test_a_provider_s_own_fault_is_no_refusal_and_is_asked_again(tmp_path: Path, per_worker: bool) -> None:
    reason = "An error occurred (RequestLimitExceeded) when calling the RunInstances operation"

    class Playbooks:
        def run_playbook(self, *_: object, **__: object) -> PlaybookResult:
            if per_worker:
                (tmp_path / "refused").mkdir()
                (tmp_path / "refused" / "f-1.json").write_text(json.dumps({"reason": reason}))
            return PlaybookResult(ok=False, reasons={"localhost": reason}, answer={"up": []})

    session = PlaybookSession(site=cast("Any", SimpleNamespace(folder=tmp_path)), playbooks=cast("Any", Playbooks()))
    provision_workers(session, requested("f-1"))
    again = CommandUndelivered(command=requested("f-1"), reason=reason, answered=True)
    assert session.events.get_nowait() == again


def test_workers_are_removed_side_by_side_and_none_is_created_meanwhile(tmp_path: Path) -> None:
    together, played, chosen = threading.Barrier(2, timeout=20), [], []

    class Playbooks:
        def run_playbook(self, name: str, *, variables: dict[str, Any], **_: object) -> PlaybookResult:
            if name == "down.yml":
                chosen.append(variables)
                together.wait()  # broken unless both removals run at once
            played.append(name)
            return PlaybookResult(ok=True, reasons={}, answer={"up": [], "left": []})

    session = PlaybookSession(site=cast("Any", SimpleNamespace(folder=tmp_path)), playbooks=cast("Any", Playbooks()))
    with session.shared_removal_lock():  # holds back the creation until the first removal has begun
        ends: list[Event] = []
        commands = (TerminateWorker(worker=WORKERS[0]), TerminateWorker(worker=WORKERS[1], id="i-2"))
        removals = [
            threading.Thread(target=lambda each=each: ends.append(terminate_worker(session, each)), daemon=True)
            for each in commands
        ]
        creation = threading.Thread(target=provision_workers, args=(session, requested(*WORKERS[2:])), daemon=True)
        creation.start()
        for removal in removals:
            removal.start()
        for removal in removals:
            removal.join(timeout=20)
        assert played == ["down.yml", "down.yml"]
    creation.join(timeout=20)
    assert played[2:] == ["provision.yml"]
    assert not session.provider_lock.locked()
    assert set(ends) == {WorkerTerminated(worker=WORKERS[0]), WorkerTerminated(worker=WORKERS[1])}
    assert sorted(chosen, key=str) == [{"kiln_only": [WORKERS[0]]}, {"kiln_only_ids": ["i-2"]}]


def test_a_note_of_the_provisioning_is_shown_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    note = "workers cannot delete themselves when their leases end"

    class Playbooks:
        def run_playbook(self, _: str, **__: object) -> PlaybookResult:
            return PlaybookResult(ok=True, reasons={}, answer={"up": ["f-1"], "notes": [note]})

    hosts = {"kiln_machines": {"hosts": {"f-1": {"kiln_machine": {"id": "5ff7"}}}}}
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "f-1.json").write_text(json.dumps(hosts))
    site = SimpleNamespace(folder=tmp_path)
    session = PlaybookSession(site=cast("Any", site), playbooks=cast("Any", Playbooks()))
    for _ in range(2):
        provision_workers(session, requested("f-1"))
    assert [record.getMessage() for record in caplog.records] == [f"note: {note}"]
    assert isinstance(session.events.get_nowait(), WorkerProvisioned)


@pytest.mark.parametrize(
    ("reason", "scarce"),
    [
        ("An error occurred (InsufficientInstanceCapacity) when calling the RunInstances operation", True),
        ("An error occurred (MaxSpotInstanceCountExceeded) when calling the RunInstances operation", False),
        ("No valid host was found. There are not enough hosts available.", True),
        ("An error occurred (VcpuLimitExceeded) when calling the RunInstances operation", False),
        ("Quota exceeded for cores: Requested 32, but already used 0 of 20 cores", False),
    ],
)
def test_a_worker_is_requested_by_its_offer_and_a_refusal_says_whether_capacity_is_scarce(
    tmp_path: Path, reason: str, scarce: bool
) -> None:
    requests: list[dict[str, object]] = []

    class Playbooks:
        def run_playbook(self, _: str, *, variables: dict[str, Any], **__: object) -> PlaybookResult:
            requests.extend(variables["kiln_machines"])
            (tmp_path / "refused").mkdir()
            (tmp_path / "refused" / "f-1.json").write_text(json.dumps({"reason": reason}))
            return PlaybookResult(ok=False, reasons={}, answer={"up": []})

    site = SimpleNamespace(folder=tmp_path)
    session = PlaybookSession(site=cast("Any", site), playbooks=cast("Any", Playbooks()))
    provision_workers(session, requested("f-1", zone="us-east-1b"))
    assert requests == [{"name": "f-1", "type": "compute-8", "spot": True, "zone": "us-east-1b"}]
    assert session.events.get_nowait() == ProvisionFailed(worker="f-1", reason=reason, scarce=scarce)
