"""The submission of jobs: options are checked before, and no job is submitted twice."""

from __future__ import annotations

import tempfile
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import files
from kiln.fleet.executor_protocol import (
    BuildStarted,
    CommandFailed,
    CommandUndelivered,
    ProvisionFailed,
    ProvisionWorkers,
    WorkerProvisioned,
)
from kiln.fleet.slurm import attempt_folders_and_sbatch_options
from kiln.fleet.slurm.attempt_folders_and_sbatch_options import AttemptFolder
from kiln.fleet.slurm.client import LATER
from kiln.model.job_estimate import JobSize

if TYPE_CHECKING:
    from kiln.fleet.executor_protocol import Event, StartBuild
    from kiln.fleet.slurm.executor import SlurmSession

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
            session.task_reporter(*workers)("copy kiln to the shared folder")
            session.project = attempt_folders_and_sbatch_options.install_kiln(session.site)
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
            options = attempt_folders_and_sbatch_options.sbatch_options(
                session.site, attempt, worker=name, config=config, number=0, after=""
            )
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
        options = attempt_folders_and_sbatch_options.sbatch_options(
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
