"""Commands on a Slurm whose programs are scripts: nothing is submitted twice, or cancelled too much."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from kiln.base.errors import FleetLimit, MachinesUnknown, TeardownIncomplete
from kiln.build.job.collected import ResultsCollected
from kiln.fleet.model import FleetRun
from kiln.fleet.protocol import (
    BuildFinished,
    BuildStarted,
    CollectResults,
    CommandFailed,
    CommandUndelivered,
    FollowBuild,
    JobsListed,
    ProvisionFailed,
    ProvisionWorkers,
    QueryJobs,
    RunTornDown,
    StartBuild,
    TearDownFailed,
    TearDownRun,
    TerminateWorker,
    WorkerTerminated,
    WorkerUnreachable,
)
from kiln.fleet.records import FleetLedger
from kiln.fleet.slurm import jobs as slurm_jobs
from kiln.fleet.slurm.attempts import AttemptFolder
from kiln.fleet.slurm.executor import BuildFollower, SlurmExecutor
from kiln.fleet.slurm.site import QueuedJob
from kiln.state.results import JobSize
from tests.unit.fleet.slurm.test_attempts import CONFIG, PROJECT, attempt_of, site_of
from tests.unit.fleet.slurm.test_site import fake, line
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.fleet.protocol import Command
    from kiln.fleet.slurm.site import SlurmSite

pytestmark = pytest.mark.processes
WORKER = "kiln-r1-1"
RUN = FleetRun(id="r1", provider="slurm", type="job", started=1.0, finished=None, number=1, lives=False)


@pytest.fixture
def site(tmp_path: Path) -> SlurmSite:
    """A site whose Slurm consists of scripts in tmp_path: no jobs, and sbatch answers 41."""
    for program, output in (("squeue", ""), ("sbatch", "41\n"), ("scancel", "")):
        fake(tmp_path, program, output)
    site = site_of(tmp_path)
    return dataclasses.replace(site, environment={"PATH": f"{tmp_path}:/usr/bin:/bin"}, poll=0.01)


def listed(tmp_path: Path, state: str, *, number: str = "41", config: str = CONFIG, reason: str = "None") -> str:
    folder = str(tmp_path / "shared" / "run-r1" / "ab" / "1")
    text = line(number, state, WORKER, "n1", f"kiln r1 {config} 1", folder, reason) + "\n"
    fake(tmp_path, "squeue", text)
    return text


def calls(tmp_path: Path, program: str) -> list[str]:
    path = tmp_path / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [entry for entry in lines if entry.startswith(f"{program} ")]


def executor_of(site: SlurmSite) -> SlurmExecutor:
    executor = SlurmExecutor(site, keep=lambda _, packages: tuple(packages))
    executor.session.project = PROJECT
    return executor


def answer(executor: SlurmExecutor, command: Command, *kinds: type[Any]) -> Any:
    """Return the first event of a kind that a command causes."""
    executor.submit(command)
    return event_of(executor, *kinds)


def event_of(executor: SlurmExecutor, *kinds: type[Any]) -> Any:
    """Return the next event of a kind."""
    for _ in range(200):
        event = executor.next_event(executor.now() + 20.0)
        assert event is not None, "no event"
        if isinstance(event, kinds):
            return event
    raise AssertionError("other events only")


def store(site: SlurmSite, **state: object) -> None:
    attempt = AttemptFolder.latest_of_config(site, CONFIG)
    assert attempt is not None
    (attempt.folder / "state.json").write_text(json.dumps({"key": "k", **state}))


def test_a_job_that_an_unanswered_submission_left_is_found(site: SlurmSite, tmp_path: Path) -> None:
    attempt_of(site)
    listed(tmp_path, "PENDING", number="40")
    start = StartBuild(worker=WORKER, config=CONFIG, key="k", attempt=1)
    answer(executor_of(site), start, BuildStarted)
    assert calls(tmp_path, "sbatch") == []
    attempt = AttemptFolder.latest_of_config(site, CONFIG)
    assert attempt is not None
    assert attempt.job_number == "40"


def test_a_warm_job_waits_for_the_number_of_its_cold_one(site: SlurmSite, tmp_path: Path) -> None:
    executor = executor_of(site)
    listed(tmp_path, "RUNNING", config="cold")
    executor.submit(StartBuild(worker="kiln-r1-2", config="cold", attempt=2))
    executor.submit(StartBuild(worker=WORKER, config=CONFIG, key="k", after="cold"))
    assert {event_of(executor, BuildStarted).config, event_of(executor, BuildStarted).config} == {"cold", CONFIG}
    assert any("--dependency=afterok:41" in call for call in calls(tmp_path, "sbatch"))


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Unable to contact slurm controller", CommandUndelivered),
        ("invalid account", CommandFailed),
        ("", CommandUndelivered),
    ],
)
def test_a_refused_submission_is_repeated_or_fails(
    site: SlurmSite, tmp_path: Path, message: str, kind: type[Any]
) -> None:
    fake(tmp_path, "sbatch", code=1)
    script = tmp_path / "sbatch"
    script.write_text(script.read_text().replace("exit", f"echo '{message}' >&2\nexit"))
    assert isinstance(answer(executor_of(site), StartBuild(worker=WORKER, config=CONFIG), kind), kind)


def test_a_cluster_that_takes_no_such_job_refuses_all_workers(site: SlurmSite, tmp_path: Path) -> None:
    script = tmp_path / "sbatch"
    script.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: x' >&2\nexit 1\n")
    event = answer(executor_of(site), ProvisionWorkers(workers=(WORKER,)), ProvisionFailed)
    assert "invalid partition" in event.reason


def test_a_refused_size_names_its_config(site: SlurmSite, tmp_path: Path) -> None:
    script = tmp_path / "sbatch"
    script.write_text("#!/bin/sh\necho 'sbatch: error: Requested node configuration is not available' >&2\nexit 1\n")
    site = dataclasses.replace(site, sizes={CONFIG: JobSize(gpus=4)})
    event = answer(executor_of(site), ProvisionWorkers(workers=(WORKER,)), ProvisionFailed)
    assert event.reason.startswith(f"{CONFIG} needs 16 cores, 34.3597 GB of memory, 4 GPUs: sbatch: error: Requested")


@pytest.mark.parametrize("limit", [None, 60.0])
def test_the_end_of_a_job_at_its_time_limit_is_reported_as_such(
    site: SlurmSite, tmp_path: Path, limit: float | None
) -> None:
    attempt_of(site).store_job_number("41")
    store(site, state="ended", result="terminated", exit_code=None, started=5.0)
    listed(tmp_path, "TIMEOUT")
    site = dataclasses.replace(site, sizes={CONFIG: JobSize(time_limit=limit)})
    follow = FollowBuild(worker=WORKER, config=CONFIG, log=tmp_path / "log.txt")
    event = answer(executor_of(site), follow, BuildFinished)
    assert (event.exit_code, event.overdue) == (None if limit is None else FleetLimit.exit_code, True)


def test_a_finished_build_is_reported_though_slurm_is_away(site: SlurmSite, tmp_path: Path) -> None:
    attempt_of(site)
    store(site, state="ended", exit_code=0, ended=7.0, started=5.0)
    fake(tmp_path, "squeue", code=1)
    executor = executor_of(site)
    event = answer(executor, FollowBuild(worker=WORKER, config=CONFIG), BuildFinished)
    assert event == BuildFinished(worker=WORKER, config=CONFIG, exit_code=0, at=7.0)


def test_without_slurm_and_without_a_result_a_job_is_unreachable(site: SlurmSite, tmp_path: Path) -> None:
    attempt_of(site)
    fake(tmp_path, "squeue", code=1)
    executor = executor_of(site)
    answer(executor, FollowBuild(worker=WORKER, config=CONFIG), WorkerUnreachable)
    executor.session.stopped.set()


def test_the_reason_of_a_cancelled_job_is_the_configs(site: SlurmSite, tmp_path: Path) -> None:
    attempt_of(site)
    listed(tmp_path, "CANCELLED")
    executor = executor_of(site)
    end = answer(executor, FollowBuild(worker=WORKER, config=CONFIG), BuildFinished)
    event = answer(executor, CollectResults(worker=WORKER, config=CONFIG, key="k"), ResultsCollected)
    assert event.reason == end.reason == "Slurm's job 41 was cancelled, but not by this run"


def test_jobs_of_other_inputs_are_not_resumed(site: SlurmSite, tmp_path: Path) -> None:
    attempt_of(site)
    listed(tmp_path, "RUNNING")
    executor = executor_of(site)
    for key, jobs in (("k", {CONFIG: "running"}), ("other", {})):
        event = answer(executor, QueryJobs(worker=WORKER, keys={CONFIG: key}), JobsListed)
        assert event.jobs == jobs


def test_a_job_that_has_stored_its_result_is_not_cancelled(site: SlurmSite, tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "run-r1" / "ab" / "1"
    folder.mkdir(parents=True)
    executor = executor_of(site)
    listed(tmp_path, "RUNNING")
    (folder / "state.json").write_text(json.dumps({"state": "ended", "exit_code": 0}))
    answer(executor, TerminateWorker(worker=WORKER), WorkerTerminated)
    assert calls(tmp_path, "scancel") == [], "Slurm would cancel the jobs that depend on it"
    (folder / "state.json").write_text(json.dumps({"state": "running"}))
    answer(executor, TerminateWorker(worker=WORKER), WorkerTerminated)
    assert calls(tmp_path, "scancel") == ["scancel 41"]


def test_the_tear_down_removes_the_runs_files_once_no_job_is_left(site: SlurmSite, tmp_path: Path) -> None:
    attempt_of(site)
    fake(tmp_path, "squeue", code=1)
    (site.settings.folder / "run-other").mkdir()
    executor = executor_of(site)
    fake(tmp_path, "squeue", "")
    assert isinstance(answer(executor, TearDownRun(), RunTornDown, TearDownFailed), RunTornDown)
    assert [path.name for path in site.settings.folder.iterdir()] == ["run-other"]


def test_what_cannot_be_asked_or_cancelled_is_not_called_gone(
    site: SlurmSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_jobs, "ENDING", 0.0)
    attempt_of(site)
    fake(tmp_path, "squeue", code=1)
    with pytest.raises(MachinesUnknown):
        slurm_jobs.cancel_and_require_run_removed(site)
    listed(tmp_path, "COMPLETING")
    with pytest.raises(TeardownIncomplete, match="job 41 is COMPLETING"):
        slurm_jobs.cancel_and_require_run_removed(site)
    assert site.shared_folder.is_dir()


def test_a_sweep_cancels_the_jobs_of_runs_that_nobody_continues(
    site: SlurmSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_jobs, "ENDING", 0.0)
    attempt_of(site)
    text = listed(tmp_path, "RUNNING") + line("50", "RUNNING", "mine", "n1", "(null)", "/home/me", "None")
    fake(tmp_path, "squeue", text)
    site.ledger.write_bytes(b"damaged")
    assert slurm_jobs.sweep_abandoned_runs(site.environment, everything=False) == (), "the ledger cannot be read"
    site.ledger.unlink()
    with FleetLedger(site.ledger) as ledger:
        ledger.begin_fleet(RUN)
        assert slurm_jobs.sweep_abandoned_runs(site.environment, everything=False) == (), "the run is unfinished"
        ledger.end_fleet("r1")
    with pytest.raises(TeardownIncomplete, match="job 41 is RUNNING"):
        slurm_jobs.sweep_abandoned_runs(site.environment, everything=False)
    assert calls(tmp_path, "scancel") == ["scancel 41"]


def test_a_sweep_leaves_runs_alone_whose_ledger_or_folder_is_on_another_computer(
    site: SlurmSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_jobs, "ENDING", 0.0)
    attempt_of(site)
    listed(tmp_path, "RUNNING")
    with monkeypatch.context() as other:
        other.setattr("platform.node", lambda: "another-login-node")
        assert slurm_jobs.sweep_abandoned_runs(site.environment, everything=False) == (), (
            "its ledger may be on that one's disk"
        )
    site.settings.folder.rename(tmp_path / "not mounted")
    assert slurm_jobs.sweep_abandoned_runs(site.environment, everything=False) == ()
    (tmp_path / "not mounted").rename(site.settings.folder)
    assert calls(tmp_path, "scancel") == []
    with pytest.raises(TeardownIncomplete, match="job 41 is RUNNING"):
        slurm_jobs.sweep_abandoned_runs(site.environment, everything=False)
    assert calls(tmp_path, "scancel") == ["scancel 41"], "the feedstock was deleted here"


def test_the_end_of_a_job_that_was_not_started_is_reported_after_that_of_its_cold_build(
    site: SlurmSite, tmp_path: Path
) -> None:
    AttemptFolder.create(site, PROJECT, config=CONFIG, number=1, key="k", after="cold")
    AttemptFolder.create(site, PROJECT, config="cold", number=1, key="k")
    warm = listed(tmp_path, "CANCELLED", reason="DependencyNeverSatisfied")
    cold = listed(tmp_path, "RUNNING", number="40", config="cold")
    fake(tmp_path, "squeue", warm + cold)
    executor = executor_of(site)
    executor.submit(FollowBuild(worker=WORKER, config=CONFIG))
    executor.submit(FollowBuild(worker="kiln-r1-2", config="cold"))
    until((tmp_path / "calls").exists, "both are followed")
    fake(tmp_path, "squeue", warm + cold.replace("RUNNING", "CANCELLED"))
    assert [event_of(executor, BuildFinished).config for _ in range(2)] == ["cold", CONFIG]


COMPLETED = QueuedJob(id="41", state="COMPLETED", name="w", nodes="n1", comment=(), folder="", reason="None")
ENDED = {"state": "ended", "exit_code": 0, "ended": 7.0}


def test_a_result_that_comes_after_the_state_was_read_is_waited_for(tmp_path: Path) -> None:
    """Slurm lists the job as completed by then; without the result, the config would be built again."""
    attempt = attempt_of(site_of(tmp_path))
    session: Any = SimpleNamespace(ended=set(), reasons={}, site=SimpleNamespace(sizes={}))
    command = FollowBuild(worker="w", config=CONFIG, log=tmp_path / "log")
    follower = BuildFollower(session, command, attempt, cast("Any", None))
    (attempt.folder / "state.json").write_text(json.dumps(ENDED))
    assert follower._finished_event({"state": "running"}, COMPLETED, answered=True) is None
    assert follower._finished_event(ENDED, COMPLETED, answered=True) == BuildFinished(
        worker="w", config=CONFIG, exit_code=0, reason="", at=7.0
    )
