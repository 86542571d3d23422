"""Jobs on Slurm: submitted once, listed and ended."""

from __future__ import annotations

import json
import platform
import tempfile
import time
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files
from kiln.base.errors import MachinesUnknown, TeardownIncomplete
from kiln.fleet.protocol import (
    BuildStarted,
    CommandFailed,
    CommandUndelivered,
    ListedMachine,
    ProvisionFailed,
    ProvisionWorkers,
    RunTornDown,
    TearDownFailed,
    WorkerProvisioned,
    WorkersProbed,
    WorkerTerminated,
)
from kiln.fleet.records import is_fleet_run_unfinished
from kiln.fleet.slurm import attempts
from kiln.fleet.slurm.attempts import CONTROLLER, AttemptFolder
from kiln.fleet.slurm.site import LATER, SlurmClient, has_result
from kiln.state.results import JobSize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from kiln.fleet.protocol import Event, ProbeWorkers, StartBuild, TearDownRun, TerminateWorker
    from kiln.fleet.slurm.site import QueuedJob, SlurmSession, SlurmSite


ID = "slurm"  # of all workers: they are names of jobs
AWAIT_SECONDS = 300.0  # for the submission of the job that another depends on


def prepare_cluster_for_jobs(session: SlurmSession, command: ProvisionWorkers) -> None:
    """Check that Slurm accepts such jobs, and bring kiln to the shared folder; the workers themselves are names."""
    workers = command.workers
    with session.submitting:
        if reason := _job_refusal_reason(session):
            for event in _refusal_events(workers, reason):
                session.events.put(event)
            return
        if session.project is None:
            session.task_reporter("prepare", *workers)("copy kiln to the shared folder")
            session.project = attempts.install_kiln(session.site)
    for worker in workers:
        session.events.put(WorkerProvisioned(worker=worker, id=ID))


def _job_refusal_reason(session: SlurmSession) -> str:
    """Return why Slurm would not accept a job of the run, empty if it would."""
    session.site.shared_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=session.site.shared_folder) as folder:
        attempt = AttemptFolder(folder=Path(folder))
        files.write_text(attempt.script_path, "#!/bin/sh\n", mode=0o700)
        name = f"kiln-{session.site.run}-check"
        sizes = {size: config for config, size in session.site.sizes.items()} or {JobSize(): ""}
        for config in sizes.values():
            options = attempts.sbatch_options(session.site, attempt, worker=name, config=config, number=0, after="")
            result = session.client.run_program("sbatch", "--test-only", *options, str(attempt.script_path))
            if not result.ok:
                reason = result.tail[-500:] or "sbatch did not answer"
                return f"{config} needs {session.site.job_size(config)}: {reason}" if config else reason
    return ""


def _refusal_events(workers: tuple[str, ...], reason: str) -> tuple[Event, ...]:
    if LATER.search(reason):
        return (CommandUndelivered(command=ProvisionWorkers(workers=workers), reason=reason),)
    return tuple(ProvisionFailed(worker=worker, reason=reason) for worker in workers)


def submit_build_job(session: SlurmSession, command: StartBuild) -> Event:
    """Submit a config's job, unless an earlier process of the run has done so."""
    session.configs[command.worker] = command.config
    session.report_step(command.config, "submit to Slurm")
    session.ended.discard(command.config)
    future = session.submitted[command.config]
    try:
        event, number = _submit_job_once(session, command)
    except BaseException:
        future.set_result("")
        raise
    future.set_result(number)
    return event


def _submit_job_once(session: SlurmSession, command: StartBuild) -> tuple[Event, str]:
    """Return what became of a submission, and the number of the job, empty without one."""
    after = _job_number_once_submitted(session, command.after)
    if command.after and not after:
        return CommandUndelivered(command=command, reason=f"the job of {command.after} is not submitted yet"), ""
    with session.submitting:
        jobs = session.client.list_jobs(fresh=True)
        if session.stopped.is_set() or jobs is None:
            reason = "the run is being stopped" if session.stopped.is_set() else "squeue did not answer"
            return CommandUndelivered(command=command, reason=reason), ""
        begun = BuildStarted(worker=command.worker, config=command.config)
        attempt = AttemptFolder.for_attempt(session.site, command.config, command.attempt)
        for job in jobs:
            if job.is_attempt_of(session.site.run, command.config, command.attempt):
                attempt.store_job_number(job.id)  # an unanswered or unrecorded submission has left it
                return begun, job.id
        assert session.project is not None, "kiln is copied before a worker exists"
        attempt = AttemptFolder.create(
            session.site,
            session.project,
            config=command.config,
            number=command.attempt,
            key=command.key,
            after=command.after,
        )
        active = {job.id for job in jobs if job.is_active}
        options = attempts.sbatch_options(
            session.site,
            attempt,
            worker=command.worker,
            config=command.config,
            number=command.attempt,
            after=after if after in active else "",
        )
        result = session.client.submit_job(options, str(attempt.script_path))
        reason = result.tail[-500:] or "sbatch did not answer"
        if not result.ok and (LATER.search(reason) or not result.tail):
            return CommandUndelivered(command=command, reason=reason), ""
        if not result.ok:
            return CommandFailed(worker=command.worker, reason=reason), ""
        number = result.stdout.strip().partition(";")[0]  # with several clusters, the name of one follows
        attempt.store_job_number(number)
        return begun, number


def _job_number_once_submitted(session: SlurmSession, config: str) -> str:
    """Return the number of a config's job, which is being submitted or was, by this process of the run or another."""
    if future := session.submitted.get(config):
        return future.result() if futures.wait((future,), timeout=AWAIT_SECONDS).done else ""
    attempt = AttemptFolder.latest_of_config(session.site, config) if config else None
    return "" if attempt is None else attempt.job_number


ENDING = 180.0  # seconds that cancelled jobs may take to end; Slurm's KillWait is 30 s by default
ANSWERING = 15.0  # seconds that Slurm may take to answer at all: a restart of its controller takes some
PAUSE = 1.0
SILENT = "squeue did not answer"


def cancel_jobs_of_worker(session: SlurmSession, command: TerminateWorker) -> Event:
    """Cancel the jobs of a worker; most have ended before.

    One that has stored its result is left alone, even if Slurm does not know yet that it has ended: a cancelled job
    would take with it those that depend on it.
    """

    def is_unfinished_job_of_worker(job: QueuedJob) -> bool:
        is_of_worker = job.run_id == session.site.run and job.name == command.worker
        return is_of_worker and not has_result(AttemptFolder(folder=Path(job.folder)).job_state)

    if cancel_selected_jobs(session.client, is_unfinished_job_of_worker) is None:
        return CommandFailed(worker=command.worker, reason=SILENT)
    return WorkerTerminated(worker=command.worker)


def probe_slurm(session: SlurmSession, command: ProbeWorkers) -> WorkersProbed:
    """Report whether Slurm answers."""
    if session.client.list_jobs(fresh=True) is None:
        return WorkersProbed(answers=frozenset(), machines=None)
    machines = tuple(ListedMachine(name=name, owner=session.site.run) for name in command.workers)
    return WorkersProbed(answers=frozenset(command.workers), machines=machines)


def tear_down_run(session: SlurmSession, _: TearDownRun) -> Event:
    """Stop all other commands, cancel all jobs of the run, and remove its folder on the shared filesystem."""
    session.stopped.set()
    with session.submitting:  # a job that is just being submitted is listed afterwards
        left = cancel_and_remove_run(session.site, session.client)
    if left is None:
        return TearDownFailed(reason=SILENT, unknown=True)
    return TearDownFailed(reason=_remaining_jobs_text(left)) if left else RunTornDown()


def cancel_and_remove_run(site: SlurmSite, client: SlurmClient) -> tuple[QueuedJob, ...] | None:
    """Cancel all jobs of a run, and remove its files; return the jobs that remain, None when Slurm does not answer."""
    files.remove(site.disk_reserve_file)
    left = cancel_selected_jobs(client, lambda job: job.run_id == site.run, seconds=ENDING)
    if left == ():
        files.remove(site.shared_folder)
    return left


def cancel_selected_jobs(
    client: SlurmClient, selects: Callable[[QueuedJob], bool], *, seconds: float = 0.0
) -> tuple[QueuedJob, ...] | None:
    """Cancel the selected jobs that wait or run, and wait for their ends; return those that remain after ``seconds``.

    None when Slurm does not answer.
    """
    begin = time.monotonic()
    while True:
        jobs = client.list_jobs(fresh=True)
        left = None if jobs is None else tuple(job for job in jobs if job.is_active and selects(job))
        if left:
            client.cancel_jobs(job.id for job in left)
        if left == () or time.monotonic() >= begin + (min(seconds, ANSWERING) if left is None else seconds):
            return left
        time.sleep(PAUSE)


def cancel_and_require_run_removed(site: SlurmSite) -> None:
    """Cancel all jobs of a run, and remove its files."""
    _require_no_jobs_left(
        cancel_and_remove_run(site, SlurmClient(site.environment)),
        f"jobs of the fleet run {site.run}",
    )


def sweep_abandoned_runs(environment: Mapping[str, str], *, everything: bool) -> tuple[str, ...]:
    """Cancel the jobs of runs that nobody will continue, or with ``everything`` those of all runs; return the runs.

    A run is continued while its folder is there, and while the ledger that it names has it as unfinished, or is on
    another computer.

    Raises:
        TeardownIncomplete: when jobs remain.
        MachinesUnknown: when Slurm does not answer.
    """
    client = SlurmClient(environment)
    jobs = list_own_jobs(client)
    folders: dict[str, Path] = {job.run_id: Path(job.folder).parent.parent for job in jobs if job.is_active}
    runs = {run for run, folder in folders.items() if everything or not _may_run_be_continued(folder, run)}
    _require_no_jobs_left(
        cancel_selected_jobs(client, lambda job: job.run_id in runs, seconds=ENDING if runs else 0.0),
        "jobs of earlier runs",
    )
    for run in runs:
        if folders[run].name == f"run-{run}":
            files.remove(folders[run])
    return tuple(sorted(runs))


def list_own_jobs(client: SlurmClient) -> tuple[QueuedJob, ...]:
    """Return the jobs of all of the user's runs."""
    jobs = client.list_jobs(fresh=True)
    if jobs is None:
        raise MachinesUnknown("Slurm could not be asked: jobs may be left", why=SILENT, hint="scontrol ping")
    return tuple(job for job in jobs if job.run_id)


def jobs_as_json(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the jobs of all of the user's runs as plain JSON values.

    Raises:
        MachinesUnknown: when Slurm does not answer.
    """
    return [
        {
            "name": job.name,
            "id": job.id,
            "run": job.run_id,
            "config": job.comment[2] if len(job.comment) > 2 else "",
            "state": job.state,
            "nodes": job.nodes,
            "reason": job.reason,
            "ended": not job.is_active,
        }
        for job in list_own_jobs(SlurmClient(environment))
    ]


def _may_run_be_continued(folder: Path, run: str) -> bool:
    """Return whether the controller of a run may return to it.

    Assume so when its ledger cannot be read, and when this computer does not see the shared folder, or has not the
    ledger of a run that another computer has started.
    """
    try:
        controller = json.loads((folder / CONTROLLER).read_text(encoding="utf-8"))
        path, is_here = Path(controller["ledger"]), controller.get("machine") in {None, platform.node()}
    except FileNotFoundError:
        return not folder.parent.is_dir()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return True
    return is_fleet_run_unfinished(path, run) if path.exists() else not is_here


def _require_no_jobs_left(left: Collection[QueuedJob] | None, what: str) -> None:
    hint = "run the same command again, or squeue --me and scancel"
    if left is None:
        raise MachinesUnknown(f"Slurm could not be asked: {what} may be left", why=SILENT, hint=hint)
    if left:
        raise TeardownIncomplete(f"{what} remain", why=_remaining_jobs_text(left), hint=hint)


def _remaining_jobs_text(jobs: Collection[QueuedJob]) -> str:
    return ", ".join(f"job {job.id} is {job.state}" for job in jobs)
