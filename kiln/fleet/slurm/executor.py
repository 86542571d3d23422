"""The executor of a supervisor's commands on Slurm: builds followed and collected by their files."""

from __future__ import annotations

import contextlib
import shutil
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from kiln.base import files
from kiln.base.errors import NotWritable
from kiln.base.patterns import is_channel_subdir
from kiln.build.job.collected import ResultsCollected
from kiln.fleet.ansible import collect
from kiln.fleet.ansible.handlers import LogStream
from kiln.fleet.ansible.playbooks import LITTLE
from kiln.fleet.ansible.sessions import CommandThreads
from kiln.fleet.protocol import (
    BuildFinished,
    CollectFailed,
    CollectResults,
    CommandUndelivered,
    FollowBuild,
    Heartbeat,
    JobsListed,
    LeaseRenewed,
    LogLine,
    PrepareWorker,
    ProbeWorkers,
    ProvisionWorkers,
    QueryJobs,
    QueuedBuildStarted,
    RenewLease,
    StartBuild,
    StopBuild,
    TearDownRun,
    TerminateWorker,
    WatchService,
    WorkerPrepared,
    WorkerUnreachable,
)
from kiln.fleet.slurm import jobs as slurm_jobs
from kiln.fleet.slurm.attempts import AttemptFolder
from kiln.fleet.slurm.site import (
    NEVER,
    SlurmClient,
    SlurmSession,
    has_result,
    is_job_over,
    job_outcome,
)
from kiln.state.results import JobSize
from kiln.state.store import deliveries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kiln.fleet.ansible.sessions import Handler
    from kiln.fleet.protocol import Command, Event, KeepPackages
    from kiln.fleet.slurm.site import QueuedJob, SlurmSite


SETTLE = 30.0  # seconds in which a result may still arrive over a network's filesystem, after Slurm reports an end
REPORTS = ("log", "report.json", "state.json")


def query_jobs_of_run(session: SlurmSession, command: QueryJobs) -> Event:
    """Report the jobs of a run whose inputs are those of now."""
    jobs = session.client.list_jobs()
    if jobs is None:
        return CommandUndelivered(command=command, reason="squeue did not answer")
    states = {}
    for config, key in command.keys.items():
        attempt = AttemptFolder.latest_of_config(session.site, config)
        if attempt is None or (attempt.job_state.get("key") or key) != key:
            continue
        job = _listed_job_of_attempt(session, attempt, jobs, config)
        if job is not None or attempt.job_number:
            states[config] = "ended" if is_job_over(attempt.job_state, job) else "running"
    return JobsListed(worker=command.worker, jobs=states)


def _listed_job_of_attempt(
    session: SlurmSession, attempt: AttemptFolder, jobs: Sequence[QueuedJob], config: str
) -> QueuedJob | None:
    """Return the job of an attempt as Slurm lists it; its number is stored if a killed process has not done so."""
    number = int(attempt.folder.name)
    job = next((job for job in jobs if job.is_attempt_of(session.site.run, config, number)), None)
    if job is not None and not attempt.job_number:
        attempt.store_job_number(job.id)
    return job


def follow_build(session: SlurmSession, command: FollowBuild) -> BuildFinished | None:
    """Follow a build until it has ended, or is cancelled; return how it ended."""
    session.configs[command.worker] = command.config
    attempt = AttemptFolder.latest_of_config(session.site, command.config)
    if attempt is None:
        reason = "its files are gone from the shared folder"
        return BuildFinished(worker=command.worker, config=command.config, exit_code=None, reason=reason)
    with LogStream(command.log) as log:
        follower = BuildFollower(session, command, attempt, log)
        while session.must_still_follow(command.worker):
            end = follower.poll_build()
            if end is not None:
                session.events.put(end)  # before the end of another that depended on it
                session.ended.add(command.config)
                return None
            if not log.more:
                session.stopped.wait(session.site.poll)
    return None


class BuildFollower:
    """One build that is followed."""

    def __init__(self, session: SlurmSession, command: FollowBuild, attempt: AttemptFolder, log: LogStream) -> None:
        self._session = session
        self._command = command
        self._attempt = attempt
        self._log = log
        self._place = ""
        self._started: float | None = None
        self._ended_at: float | None = None

    def poll_build(self) -> BuildFinished | None:
        """Report the changes of a build; return how it ended, None while it waits or runs."""
        worker, config = self._command.worker, self._command.config
        jobs = self._session.client.list_jobs()
        state = self._attempt.job_state
        self._session.events.put(WorkerUnreachable(worker=worker) if jobs is None else Heartbeat(worker=worker))
        job = None if jobs is None else _listed_job_of_attempt(self._session, self._attempt, jobs, config)
        self._report_job_place(state, job)
        for step, text in self._log.append_log_from_file(self._attempt.latest_build_log(config)):
            self._session.events.put(LogLine(config=config, step=step, text=text))
        return None if self._log.more else self._finished_event(state, job, answered=jobs is not None)

    def _finished_event(self, state: dict[str, Any], job: QueuedJob | None, *, answered: bool) -> BuildFinished | None:
        is_finished = has_result(state)
        if not (is_finished or answered) or not is_job_over(state, job):
            self._ended_at = None
            return None
        self._ended_at = time.monotonic() if self._ended_at is None else self._ended_at
        is_settled = is_finished or time.monotonic() >= self._ended_at + self._settling_seconds(job)
        if not is_settled:
            return None
        past = (
            ""
            if job is not None or is_finished
            else self._session.client.job_state_in_accounting(self._attempt.job_number)
        )
        limit = self._session.site.sizes.get(self._command.config, JobSize()).time_limit
        words = self._attempt.end_of_job_output()
        end = job_outcome(self._command, state, job, past=past, last_words=words, time_limit=limit)
        if end is not None and end.exit_code and state.get("exit_code") is None:
            self._session.reasons[end.config] = end.reason
        return end

    def _settling_seconds(self, job: QueuedJob | None) -> float:
        """Return how long a result is waited for: not for a job that cannot have one.

        The end of a job that was not started is reported after that of the build that it depended on, so that the
        config can take its place.
        """
        if job is not None and job.reason == NEVER:
            return 0.0 if self._attempt.awaited_config in self._session.ended else SETTLE
        return 0.0 if job is not None and job.state in {"CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"} else SETTLE

    def _report_job_place(self, state: dict[str, Any], job: QueuedJob | None) -> None:
        """Report where a job waits or runs, when that has changed."""
        worker, config = self._command.worker, self._command.config
        place = self._place
        if job is not None and job.state == "PENDING":
            place = f"Slurm's job {job.id} waits ({job.reason})"
        elif job is not None and job.is_active:
            place = f"Slurm's job {job.id} runs on {job.nodes}"
        if place != self._place:
            self._place = place
            self._session.report_step(config, place)
        started = state.get("started")
        if isinstance(started, float) and started != self._started:
            self._started = started
            self._session.events.put(QueuedBuildStarted(worker=worker, config=config, at=started))


def fetch_results(session: SlurmSession, request: CollectResults) -> Event:
    """Copy a build's results from the shared folder, check them, and hand the packages to the session's ``keep``."""
    worker, config = request.worker, request.config
    session.report_step(config, "collect from the shared folder")
    attempt = AttemptFolder.latest_of_config(session.site, config)
    if attempt is None:
        reason = "its files are gone from the shared folder"
        return CollectFailed(worker=worker, config=config, reason=reason, foreign=True)
    target = session.site.folder / "collected" / worker / config
    files.remove(target)
    copy_build_results(attempt, target, config)
    if reason := session.reasons.get(config, ""):
        log = target / "log"
        return ResultsCollected(worker=worker, config=config, reason=reason, log=log if log.is_file() else None)
    event = collect.check_and_keep_results(target, request, keep=session.keep)
    files.remove(target / "packages")  # they are in the channel
    return event


def copy_build_results(attempt: AttemptFolder, target: Path, config: str) -> None:
    """Copy a build's report, state and logs, and the packages that its report lists; links are not followed."""
    target.mkdir(parents=True, mode=0o700)
    for name in REPORTS:
        _copy_end_if_exists(attempt.folder, name, target / name)
    if (log := attempt.latest_build_log(config)) is not None:
        _copy_end_if_exists(
            attempt.artifacts, str(log.relative_to(attempt.artifacts)), target / log.relative_to(attempt.artifacts)
        )
    for name, size in _reported_packages(target / "report.json", config):
        files.require_disk_space(target, size + LITTLE, for_what=f"the package {name}")
        _copy_file_if_exists(attempt.artifacts, name, target / "packages" / name, size=size)


def _reported_packages(report: Path, config: str) -> list[tuple[str, int]]:
    """Return the paths and sizes of packages below their folder; `delivery_check` checks them."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        entries = deliveries.read_report(report)["configs"]
        artifacts = [
            package["artifact"] for entry in entries if entry["config"] == config for package in entry["packages"]
        ]
        packages = [
            (f"{artifact['subdir']}/{str(artifact['path']).rpartition('/')[2]}", int(artifact["size"]))
            for artifact in artifacts
        ]
        return [
            (name, size)
            for name, size in packages
            if is_channel_subdir(name.partition("/")[0]) or deliveries.WHEEL.fullmatch(name)
        ]
    return []


def _copy_file_if_exists(folder: Path, name: str, target: Path, *, size: int) -> None:
    """Copy a file of a size below a folder, if it exists; one behind a link, or of another size, is left out."""
    source = folder / name
    with contextlib.suppress(NotWritable):
        if files.safe_path_inside(source, folder).is_file() and source.stat().st_size == size:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target, follow_symlinks=False)


def _copy_end_if_exists(folder: Path, name: str, target: Path) -> None:
    """Copy a report or a log below a folder, of a log that is too long its end; one behind a link is left out."""
    with contextlib.suppress(NotWritable, FileNotFoundError):
        data = files.end_of_file(files.safe_path_inside(folder / name, folder), deliveries.LONGEST_REPORT)
        files.write_bytes(target, data)


QUERIES = 3  # of the states of files for one of squeue, which burdens Slurm's controller
HANDLERS: Mapping[type, Handler] = {
    ProvisionWorkers: slurm_jobs.prepare_cluster_for_jobs,
    PrepareWorker: lambda _, command: WorkerPrepared(worker=command.worker),
    QueryJobs: query_jobs_of_run,
    StartBuild: slurm_jobs.submit_build_job,
    FollowBuild: follow_build,
    CollectResults: fetch_results,
    RenewLease: lambda _, command: LeaseRenewed(worker=command.worker),  # a job lives without its controller
    ProbeWorkers: slurm_jobs.probe_slurm,
    TerminateWorker: slurm_jobs.cancel_jobs_of_worker,
    TearDownRun: slurm_jobs.tear_down_run,
    WatchService: lambda *_: None,  # the cache is a folder
    StopBuild: lambda *_: None,  # Slurm has the jobs' time limits
}


class SlurmExecutor(CommandThreads):
    """Executes commands on a Slurm cluster; see `kiln.fleet.protocol.WorkerExecutor`."""

    def __init__(self, site: SlurmSite, *, keep: KeepPackages) -> None:
        """``keep`` moves the collected packages of a config to the folder of finished packages."""
        client = SlurmClient(site.environment, interval=QUERIES * site.poll)
        self.session = SlurmSession(site=site, client=client, keep=keep)
        super().__init__(self.session, site.folder, HANDLERS)

    def submit(self, command: Command) -> None:
        """Execute a command in its own thread; a job that depends on another waits for that one's number."""
        if isinstance(command, StartBuild):
            self.session.submitted[command.config] = Future()
        super().submit(command)
