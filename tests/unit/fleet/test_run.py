"""Runs that are resumed, found again without their ledger, torn down, swept and listed."""

from __future__ import annotations

import dataclasses
import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from kiln.base.errors import (
    AlreadyRunning,
    CredentialsRefused,
    KilnError,
    MachinesUnknown,
    TeardownIncomplete,
    UsageError,
)
from kiln.container.images import OwnerProcess
from kiln.fleet import run as fleet_run
from kiln.fleet.ansible.playbooks import PlaybookResult, PlaybookRunner, PlaybookSite
from kiln.fleet.model import FleetRun, JobState, WorkerState
from kiln.fleet.records import FleetLedger, RunRecorder
from kiln.fleet.run import (
    FILE,
    count_machines_of_unrecorded_runs,
    inputs_tag,
    notes_of_unrecorded_runs,
    recover_run,
    remove_run_note,
    write_run_note,
)
from kiln.fleet.supervisor import Supervisor
from kiln.state.results import ConfigState
from tests.fleets import (
    HOUR,
    MACHINE,
    Faults,
    Killed,
    NullObserver,
    SimulatedWorker,
    Simulation,
    estimates,
    null_recorder,
    run_config,
)
from tests.unit.fleet.test_supervisor import GPU, of_types

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOTE = FleetRun(
    id="r1",
    provider="aws",
    type="compute-16",
    key="k" * 64,
    started=1_790_000_000.0,
    finished=None,
    number=0,
    lives=False,
)
PRICES = {"compute-16": 0.7}
KEYS = {"config00": "key0", "config01": "key1", "config02": "key2", "config03": "key3"}
STATUS = {
    "config00": {"key": "key0", "state": "ended", "exit_code": 0, "result": "success", "started": 1.0, "ended": 2.0},
    "config01": {"key": "key1", "state": "running", "exit_code": None, "result": None, "started": 3.0, "ended": None},
    "config02": {"key": "other", "state": "ended", "exit_code": 0, "result": "success", "started": 1.0, "ended": 2.0},
    "config03": {"key": "key3", "state": "ended", "exit_code": 34, "result": "exit-code", "started": 1.0, "ended": 2.0},
    "strange": {"key": "", "state": "running", "exit_code": None, "result": None, "started": 3.0, "ended": None},
}


def row(name: str, **more: object) -> dict[str, object]:
    kind = {"owner": "r1", "run": "r1", "id": f"i-{name}", "type": "compute-16", "ended": False, "state": "running"}
    return {"name": name, **kind, **more}


class Site:
    """A site whose provider lists machines; those in ``answers`` answer, some only after the firewall was opened."""

    def __init__(self, folder: Path, machines: list[dict[str, object]] | None, answers: dict[str, object]) -> None:
        self.folder, self.machines, self.answers = folder, machines, answers
        self.played: list[str] = []
        self.needs_admission = False
        (folder / "ssh").mkdir(parents=True)
        for name in answers:
            (folder / "ssh" / f"{name}.config").touch()

    def run_playbook(self, name: str, **_: object) -> PlaybookResult:
        self.played.append(name)
        answer = None if self.machines is None else {"machines": self.machines}
        return PlaybookResult(ok=answer is not None, reasons={}, answer=answer)

    def ssh(self, worker: str, *_: object, **__: object) -> Any:
        ok = self.answers[worker] is not None and (not self.needs_admission or "admit.yml" in self.played)
        return SimpleNamespace(ok=ok, stdout=json.dumps(self.answers[worker]))


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(site: Any) -> Any:
        return SimpleNamespace(site=site, playbooks=site, ssh=site.ssh)

    monkeypatch.setattr(fleet_run, "PlaybookSession", SimpleNamespace(from_site=session))


@pytest.mark.usefixtures("sites")
def test_machines_that_answer_are_adopted_with_their_jobs_and_the_others_ended(tmp_path: Path) -> None:
    machines = [
        row("kiln-r1-1"),
        row("kiln-r1-2"),
        row("kiln-r1-3", ended=True),
        row("kiln-r1-4", owner="another"),
        row("kiln-r1-5"),  # half made: nothing is known of it here
    ]
    machines.append(row("../kiln-r1-6"))
    site = Site(tmp_path, machines, {"kiln-r1-1": {**STATUS, "broken": "by its build"}, "kiln-r1-2": None})
    run = recover_run(cast("Any", site), NOTE, keys=KEYS, hourly=PRICES)
    assert run is not None
    assert {(worker.name, worker.state) for worker in run.workers} == {
        ("kiln-r1-1", WorkerState.READY),
        ("kiln-r1-2", WorkerState.LOST),
        ("kiln-r1-3", WorkerState.LOST),
        ("kiln-r1-5", WorkerState.LOST),
    }
    assert {(job.config, job.state, job.exit_code) for job in run.jobs} == {
        ("config00", JobState.FINISHED, 0),
        ("config01", JobState.RUNNING, None),
    }
    assert (run.id, run.key, run.lives, run.workers[0].id) == ("r1", NOTE.key, False, "i-kiln-r1-1")
    assert site.played == ["list.yml"]


@pytest.mark.usefixtures("sites")
def test_the_firewall_is_opened_to_this_computer_before_all_count_as_lost(tmp_path: Path) -> None:
    site = Site(tmp_path, [row("kiln-r1-1")], {"kiln-r1-1": STATUS})
    site.needs_admission = True
    run = recover_run(cast("Any", site), NOTE, keys=KEYS, hourly=PRICES)
    assert run is not None
    assert [worker.state for worker in run.workers] == [WorkerState.READY]
    assert site.played == ["list.yml", "admit.yml"]


@pytest.mark.usefixtures("sites")
def test_a_run_without_machines_has_ended_and_a_silent_provider_is_an_error(tmp_path: Path) -> None:
    assert recover_run(cast("Any", Site(tmp_path / "a", [], {})), NOTE, keys=KEYS, hourly=PRICES) is None
    with pytest.raises(MachinesUnknown, match="the ledger does not have the fleet run r1"):
        recover_run(cast("Any", Site(tmp_path / "b", None, {})), NOTE, keys=KEYS, hourly=PRICES)


def test_only_runs_that_the_ledger_does_not_have_are_recovered(tmp_path: Path) -> None:
    for name in ("r1", "r2", "copied"):
        (tmp_path / name).mkdir()
    write_run_note(NOTE, tmp_path / "r1")
    write_run_note(NOTE, tmp_path / "copied")  # a copy of the folder is not a run
    assert list(notes_of_unrecorded_runs(tmp_path, known=[])) == [NOTE]
    assert list(notes_of_unrecorded_runs(tmp_path, known=["r1"])) == []
    remove_run_note(tmp_path / "r1")
    assert list(notes_of_unrecorded_runs(tmp_path, known=[])) == []


def test_the_workers_of_another_computer_are_found_by_the_hash_of_their_inputs() -> None:
    tag = inputs_tag(NOTE.key)
    machines = [
        *(row(f"kiln-r1-{number}", inputs=tag) for number in (1, 2)),
        row("kiln-r2-1", run="r2", inputs=tag, ended=True),
        row("kiln-r3-1", run="r3", inputs="other"),
        row("kiln-r4-1", run="r4", inputs=tag),
        row("kiln-r5-1", run="r5"),
    ]
    assert count_machines_of_unrecorded_runs(machines, key=NOTE.key, known=["r4"]) == {"r1": 2}


@pytest.mark.usefixtures("sites")
def test_a_recovered_run_goes_on_with_what_its_workers_build_and_starts_none_beside_them(tmp_path: Path) -> None:
    jobs = estimates(4, hours=1.0, groups=4)
    simulation = Simulation(jobs)
    now = simulation.clock
    for name in ("kiln-r1-1", "kiln-r1-2"):
        simulation.workers[name] = SimulatedWorker(
            born=now, dies=now + 99 * HOUR, lease=now + HOUR, serial=int(name[-1])
        )
    first = simulation.workers["kiln-r1-1"]
    first.jobs |= {"config00": now - 60, "config01": now + HOUR / 2}
    machines = [row("kiln-r1-1", id="1"), row("kiln-r1-2", id="2")]
    site = Site(tmp_path, machines, {"kiln-r1-1": STATUS, "kiln-r1-2": {}})
    run = recover_run(cast("Any", site), NOTE, keys=KEYS, hourly=PRICES)
    config = run_config(jobs, previous_run=run)
    supervisor = Supervisor(config, executor=simulation, recorder=null_recorder())
    report = supervisor.execute_run()
    assert {entry.state for entry in report.configs} == {ConfigState.DONE}
    assert {name for name, _, _ in simulation.paid} == {"kiln-r1-1", "kiln-r1-2"}
    assert [config for config, _ in simulation.built].count("config00") == 0, "it was finished before"
    assert simulation.clock - now < 2 * HOUR


def test_the_note_of_a_run_has_all_machine_types_as_its_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a recovered run would be planned again on its first type alone, which may hold only some of its configs."""
    jobs = of_types("compute-16", "gpu")
    simulation = Simulation(jobs, faults=Faults(killed=HOUR / 2))
    monkeypatch.setattr(fleet_run, "AnsibleExecutor", lambda _, **__: simulation)
    monkeypatch.setattr(fleet_run, "RESERVE", 1)
    site: Any = SimpleNamespace(folder=tmp_path / "fleet" / "r1", disk_reserve_file=tmp_path / "reserve")
    config = run_config(jobs, type_workers={MACHINE: 1, GPU: 1})
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            fleet_run.execute_fleet_run(config, site, RunRecorder(ledger, NullObserver()), keep=lambda *_: ())
        (stored,) = ledger.fleet_runs()
    (note,) = notes_of_unrecorded_runs(tmp_path / "fleet", known=[])
    assert note.type == stored.type == "compute-16, gpu"


@pytest.mark.parametrize("change", [{"provider": None}, {"started": "x"}, {"more": 1}])
def test_a_damaged_note_is_an_error_with_the_command_that_ends_its_run(
    tmp_path: Path, change: dict[str, object]
) -> None:
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / fleet_run.FILE).write_text(json.dumps({"id": "r1", **change}))
    with pytest.raises(MachinesUnknown, match="is damaged, and the ledger does not have the fleet run r1") as error:
        list(notes_of_unrecorded_runs(tmp_path, known=[]))
    assert "kiln fleet down r1 --provider PROVIDER" in error.value.hint
    assert list(notes_of_unrecorded_runs(tmp_path, known=["r1"])) == []


@pytest.mark.parametrize(
    ("change", "where"),
    [({"machine": "another"}, "on the computer another"), ({"pid": os.getppid()}, "in another process")],
)
def test_a_copy_of_a_runs_folder_is_not_taken_for_the_run(tmp_path: Path, change: dict[str, Any], where: str) -> None:
    """As by a backup, or a checkout that was copied with its build_artifacts: the run goes on elsewhere."""
    folder = tmp_path / "r1"
    folder.mkdir()
    write_run_note(NOTE, folder)
    assert [note.id for note in notes_of_unrecorded_runs(tmp_path, known=())] == ["r1"], "this process is the run's own"
    owner = OwnerProcess.of_this_process() if "machine" in change else OwnerProcess.of_process(change["pid"])
    assert owner is not None
    data = json.loads((folder / FILE).read_text())
    data["owner"] = str(dataclasses.replace(owner, **change))
    (folder / FILE).write_text(json.dumps(data))
    with pytest.raises(AlreadyRunning, match=f"the fleet run r1 was started {where}") as caught:
        list(notes_of_unrecorded_runs(tmp_path, known=()))
    assert str(folder) in caught.value.hint
    assert list(notes_of_unrecorded_runs(tmp_path, known=("r1",))) == []
    data["owner"] = str(dataclasses.replace(owner, machine=OwnerProcess.of_this_process().machine, started="0"))
    (folder / FILE).write_text(json.dumps(data))
    assert [note.id for note in notes_of_unrecorded_runs(tmp_path, known=())] == ["r1"], "its process has ended"
    del data["owner"]
    (folder / FILE).write_text(json.dumps(data))
    assert [note.id for note in notes_of_unrecorded_runs(tmp_path, known=())] == ["r1"], "of an earlier kiln"


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


@pytest.mark.parametrize(
    ("change", "provider", "error"),
    [
        ({"lives": True}, "aws", "the fleet run r1 is running in another process"),
        ({}, "azure", "it has another provider"),
        ({"key": "other"}, "aws", "its recipe or build options differ"),
    ],
)
def test_a_run_whose_workers_are_of_no_use_is_not_resumed(change: dict[str, Any], provider: str, error: str) -> None:
    run = dataclasses.replace(OPEN, **change)
    with pytest.raises(AlreadyRunning if run.lives else UsageError) as caught:
        fleet_run.run_to_resume([run], provider=provider, key="k")
    assert error in str(caught.value)
    assert run.lives or "kiln fleet down r1" in caught.value.hint


@pytest.mark.parametrize(
    "action",
    [
        lambda site: fleet_run.tear_down_run(site, "r1"),
        lambda site: fleet_run.sweep_leftover_workers(site, everything=False),
        fleet_run.list_existing_workers,
    ],
)
@pytest.mark.parametrize(("result", "kind", "why"), [*REFUSALS, (REMAINS, TeardownIncomplete, "w1 remains")])
def test_what_a_provider_does_not_confirm_is_an_error_and_the_run_stays_known(
    site: PlaybookSite,
    playbooks: Playbooks,
    result: PlaybookResult,
    kind: type[KilnError],
    why: str,
    action: Callable[[PlaybookSite], object],
) -> None:
    playbooks.result = result
    site.folder.mkdir()
    fleet_run.write_run_note(OPEN, site.folder)
    with pytest.raises(kind) as caught:
        action(site)
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


def test_the_workers_of_all_runs_and_users_are_listed(site: PlaybookSite, playbooks: Playbooks) -> None:
    assert fleet_run.list_existing_workers(site) == [{"name": "w1"}]
    assert playbooks.calls == [("list.yml", {"kiln_everywhere": True})]
