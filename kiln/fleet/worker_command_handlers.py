"""The commands to a worker: prepare it, query its jobs, renew its lease, start and follow a build."""

from __future__ import annotations

import dataclasses
import json
import shlex
from typing import TYPE_CHECKING, Any

from kiln import masking
from kiln.errors import BrokenHandover, OutOfMemory
from kiln.fleet import unfinished_build_transfer
from kiln.fleet.executor_protocol import (
    BuildFinished,
    BuildStarted,
    CommandFailed,
    CommandUndelivered,
    Event,
    FollowBuild,
    Heartbeat,
    JobsListed,
    LeaseRenewed,
    LogLine,
    PrepareWorker,
    QueryJobs,
    RenewLease,
    StartBuild,
    StopBuild,
    WatchService,
    WorkerPrepared,
    WorkerUnreachable,
)
from kiln.fleet.executor_shared_state import NO_CONNECTION, SSH_SECONDS, PlaybookSession
from kiln.fleet.fleet_run_settings import CACHE, POOL
from kiln.fleet.log_stream import LogStream, job_state_and_result
from kiln.fleet.playbook_runner import NOT_ENDED, PlaybookResult, read_json_object
from kiln.job.budget_monitor import termination_time_in_notice
from kiln.store import bazel_variables_of_compile_scripts, executor_credentials_encoding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.process_runner import ProcessResult

NOTICE = "/run/kiln-notice"  # as kiln-notice has it
POOL_SCHEME = "grpcs://"  # of the address of a pool's server; a cache's is HTTP
GATED = ("local", "static")  # providers without security groups: the server itself admits each worker
START_SECONDS = 600.0  # for the start of a build, which returns once it runs
LOST_CONNECTION = NO_CONNECTION | {10, 12, 30, 35}  # of ssh, and of rsync
QUERIES = 3  # of the jobs of a worker that may be reachable again
REASON_LENGTH = 300  # characters of ssh's output that are reported


def prepare_worker(session: PlaybookSession, command: PrepareWorker) -> Event:
    """Prepare a worker for builds, or as the holder of the cache."""
    worker = command.worker
    result = session.playbooks.run_playbook(
        "prepare.yml",
        worker=worker,
        on_task=session.task_reporter(worker),
        variables={"kiln_build_options": [*session.site.options]},
    )
    if result.ok:
        cache = read_json_object(session.site.folder / "cache.json") if worker.endswith(CACHE) else {}
        return WorkerPrepared(worker=worker, cache=str(cache.get("url", "")))
    return _failed_playbook_event(command, result)


def _failed_playbook_event(command: PrepareWorker | StartBuild, result: PlaybookResult) -> Event:
    reason = result.failure_reason(command.worker)
    is_reached = command.worker not in result.unreachable and reason != NOT_ENDED
    return _failed_command_event(command, reason, is_reached=is_reached)


def _failed_command_event(command: PrepareWorker | QueryJobs | StartBuild, reason: str, *, is_reached: bool) -> Event:
    """Return the event of a command that failed: one whose worker was not reached can be sent again."""
    if is_reached:
        return CommandFailed(worker=command.worker, reason=reason)
    return CommandUndelivered(command=command, reason=reason)


def report_service_health(session: PlaybookSession, command: WatchService) -> None:
    """Report whether a cache, or the part of a pool on a worker, runs, until the worker is terminated."""
    worker = command.worker
    unit = "kiln-pool" if POOL.fullmatch(worker) else "kiln-cache"
    while session.must_still_follow(worker):
        result = session.ssh(worker, f"systemctl is-active --quiet {unit} || exit; cat {NOTICE} 2>/dev/null || true")
        session.events.put(Heartbeat(worker=worker) if result.ok else WorkerUnreachable(worker=worker))
        at = termination_time_in_notice(result.stdout) if result.ok else None
        if at is not None:
            session.report_reclaim(worker, at)
        session.stopped.wait(session.site.poll)


def query_jobs_of_worker(session: PlaybookSession, command: QueryJobs) -> Event:
    """Report the jobs of a worker."""
    reason, reached = "no answer", False
    for _ in range(QUERIES):
        result = session.ssh(command.worker, "sudo kiln-job status")
        if result.ok:
            return JobsListed(
                worker=command.worker, jobs=job_states_of_same_inputs(json.loads(result.stdout), command.keys)
            )
        reason = result.tail[-REASON_LENGTH:] or reason
        reached = reached or result.exit_code not in NO_CONNECTION
        session.stopped.wait(session.site.poll)
    return _failed_command_event(command, reason, is_reached=reached)


def job_states_of_same_inputs(status: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, str]:
    """Return the state of each job of a worker, without the jobs of other inputs than the config's."""
    return {
        config: str(job["state"])
        for config, job in status.items()
        if not (keys.get(config) and job.get("key") and job["key"] != keys[config])
    }


def renew_lease(session: PlaybookSession, command: RenewLease) -> Event | None:
    """Renew a worker's lease."""
    result = session.ssh(command.worker, f"sudo kiln-lease renew {int(command.seconds)}")
    if result.ok:
        return LeaseRenewed(worker=command.worker)
    return WorkerUnreachable(worker=command.worker) if result.exit_code in NO_CONNECTION else None


def start_build_on_worker(session: PlaybookSession, command: StartBuild) -> Event:
    """Start a build."""
    session.configs[command.worker] = command.config
    session.report_step(command.config, f"start on {command.worker}")
    options = unfinished_build_transfer.handover_options(session, command)
    result = unfinished_build_transfer.send_handover_to_worker(session, command) if options else None
    if result is not None and not result.ok:
        return _failed_command_event(
            command, _command_output_end(result), is_reached=result.exit_code not in LOST_CONNECTION
        )
    if command.cache.startswith(POOL_SCHEME):
        return _start_build_with_pool(session, command, options)
    if command.cache:
        return _start_build_with_cache(session, command, options)
    return _start_build_with_settings(session, command, options, session.site.job_secrets)


def _command_output_end(result: ProcessResult) -> str:
    return result.tail[-REASON_LENGTH:] or "it did not answer"


def stop_build(session: PlaybookSession, command: StopBuild) -> Event | None:
    """Stop a build, whose end is then found by what follows it."""
    session.report_step(command.config, f"stop: {command.reason}")
    config = shlex.quote(command.config)
    words = f"stop {config}" if command.until is None else f"save {config} {command.until:.0f}"
    result = session.ssh(command.worker, f"sudo kiln-job {words}", seconds=START_SECONDS)
    return None if result.ok else CommandUndelivered(command=command, reason=_command_output_end(result))


def job_settings(key: str, options: str = "", secrets: Mapping[str, str] | None = None) -> str:
    """Return the settings of one build's unit: the hash over the config's inputs, its own options, and secrets."""
    settings = {"KILN_FLEET_KEY": key, "KILN_JOB_OPTIONS": options, **(secrets or {})}
    return "".join(f"{name}={value}\n" for name, value in settings.items() if value)


def _start_build_with_pool(session: PlaybookSession, command: StartBuild, options: str) -> Event:
    """Start a build whose compile runs in the pool, with the certificate of the run's clients."""
    variables, folder = session.site.variables, session.site.folder
    if variables["kiln_provider"] in GATED:
        hosts = read_json_object(folder / "inventory" / f"{command.worker}.json")["kiln_machines"]["hosts"]
        address = shlex.quote(str(hosts[command.worker]["kiln_machine"]["private"]))
        result = session.ssh(f"kiln-{variables['kiln_run']}-{CACHE}", f"sudo kiln-cache-gate let-in {address}")
        if not result.ok:
            reason = f"the pool's server does not answer: {result.tail[-REASON_LENGTH:]}"
            return CommandUndelivered(command=command, reason=reason)
    secrets = {
        bazel_variables_of_compile_scripts.EXECUTOR: command.cache,
        bazel_variables_of_compile_scripts.CREDENTIALS: executor_credentials_encoding.encode_credentials_folder(
            folder / "keys" / "pool-client"
        ),
    }
    masking.register_secrets(bazel_variables_of_compile_scripts.with_secrets_inside_credentials(secrets).values())
    return _start_build_with_settings(session, command, options, secrets)


def _start_build_with_settings(
    session: PlaybookSession, command: StartBuild, options: str, secrets: Mapping[str, str]
) -> Event:
    """Start a build; its own settings and its secrets are sent on standard input."""
    words = f"sudo kiln-job start {shlex.quote(command.config)}"
    settings = job_settings(command.key, options, secrets)
    result = session.ssh(command.worker, words, seconds=START_SECONDS, stdin=settings)
    if not result.ok:
        return _failed_command_event(
            command, _command_output_end(result), is_reached=result.exit_code not in NO_CONNECTION
        )
    return BuildStarted(worker=command.worker, config=command.config)


def _start_build_with_cache(session: PlaybookSession, command: StartBuild, options: str) -> Event:
    """Start a build that uses the cache, and needs its password."""
    result = session.playbooks.run_playbook(
        "build.yml",
        worker=command.worker,
        tags=("start",),
        variables={
            "kiln_configs": [command.config],
            "kiln_build_options": [*session.site.options],
            "kiln_cache": command.cache,
            "kiln_key": command.key,
            "kiln_job_options": options,
            "kiln_rebuild": True,
        },
    )
    if result.ok:
        return BuildStarted(worker=command.worker, config=command.config)
    return _failed_playbook_event(command, result)


def follow_build(session: PlaybookSession, command: FollowBuild) -> BuildFinished | None:
    """Follow a build until it has ended, or its worker is terminated; return how it ended."""
    session.configs[command.worker] = command.config
    with LogStream(command.log) as log:
        while session.must_still_follow(command.worker):
            event = _poll_build(session, command.worker, command.config, log)
            if event is not None:
                return event
    return None


def _poll_build(session: PlaybookSession, worker: str, config: str, log: LogStream) -> BuildFinished | None:
    """Poll a build once; return how it ended once all of its log is here.

    The worker itself delays its answer until the build's end, so that this is reported at once; one that does not
    answer is polled again later.
    """
    result = session.ssh(
        worker, log.status_and_log_command(config, session.site.poll), seconds=SSH_SECONDS + session.site.poll
    )
    job, lines = {}, []  # type: Mapping[str, Any], list[tuple[str, str]]
    if result.ok:
        try:
            job, lines = log.parse_status_and_log(result.stdout, config)
        except ValueError as error:
            result = dataclasses.replace(result, exit_code=1, tail=f"{worker} sent an invalid answer: {error}")
    if not result.ok:
        session.events.put(WorkerUnreachable(worker=worker))
        session.stopped.wait(session.site.poll)
        return None
    session.events.put(Heartbeat(worker=worker))
    if job.get("reclaimed_at"):
        session.report_reclaim(worker, float(job["reclaimed_at"]))
    for step, text in lines:
        session.events.put(LogLine(config=config, step=step, text=text))
    return None if log.more else _finished_event(session, worker, config, job)


def _finished_event(session: PlaybookSession, worker: str, config: str, job: Mapping[str, Any]) -> BuildFinished | None:
    """Return how a build ended, None while it runs."""
    state, result, code = job_state_and_result(job)
    if state == "running":
        return None
    if code != 0 and (fault := str(job.get("disk_fault") or "")):
        reason = f"its disk cannot be written: {fault}"
        return BuildFinished(worker=worker, config=config, exit_code=None, reason=reason, unfit=True)
    if state != "ended":
        reason = "its build is gone: was the worker restarted?"
        return BuildFinished(worker=worker, config=config, exit_code=None, reason=reason)
    if result == "oom-kill":
        code = OutOfMemory.exit_code
    if code == BrokenHandover.exit_code:
        unfinished_build_transfer.remove_handover(session, config)
        code, result = None, "what was handed over to it is damaged"
    return BuildFinished(worker=worker, config=config, exit_code=code, reason="" if code == 0 else result)
