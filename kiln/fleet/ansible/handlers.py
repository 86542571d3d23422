"""The commands to a worker: prepare it, start a build, and follow it and its log."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import re
import shlex
from typing import IO, TYPE_CHECKING, Any

from kiln.base.errors import BrokenHandover, OutOfMemory
from kiln.base.serialization import read_json_object
from kiln.build.job.messages import termination_time_in_notice
from kiln.fleet.ansible import collect, fetch
from kiln.fleet.ansible.playbooks import NOT_ENDED, recorded_machine
from kiln.fleet.ansible.sessions import NO_CONNECTION, SSH_SECONDS, PlaybookSession
from kiln.fleet.options import CLOUDS
from kiln.fleet.protocol import (
    BuildFinished,
    BuildStarted,
    CommandFailed,
    CommandUndelivered,
    Heartbeat,
    JobsListed,
    LeaseRenewed,
    LogLine,
    WorkerPrepared,
    WorkerUnreachable,
)
from kiln.fleet.run_config import CACHE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.base.process import ProcessResult
    from kiln.fleet.protocol import (
        Event,
        FollowBuild,
        PrepareWorker,
        QueryJobs,
        RenewLease,
        StartBuild,
        StopBuild,
        WatchService,
    )


AT_ONCE = 1 << 20  # bytes of a log that are fetched at a time
LOGS = (
    "/var/lib/kiln/project/build_artifacts/logs"  # of kiln build on the worker, which may have several logs of a config
)
MARK = "--- log ---"
STEP = re.compile(r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d === (?P<title>.+)")


class LogStream:
    """A build's log, appended to a file here; after a failed fetch, or in another process, it continues at its end.

    ``more`` is set while there is more to be fetched at once.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._offset = 0
        self._rest = b""
        self._is_started = False
        self.step = "build"
        self.more = False

    def __enter__(self) -> LogStream:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)
            self._offset = self._file.tell()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def status_and_log_command(self, config: str, seconds: float = 0.0) -> str:
        """Return the command that prints the state of all jobs, and the next piece of a config's log.

        Unless there is more to be fetched at once, it waits on the worker for the build's end, for ``seconds`` at most.
        """
        wait = f"kiln-job wait {shlex.quote(config)} {seconds if self._is_started and not self.more else 0.0}"
        log = f"$(ls -t {LOGS}/*/{shlex.quote(config)}.log 2>/dev/null | head -n 1)"
        piece = f'tail -c +{self._offset + 1} "{log}" 2>/dev/null | head -c {AT_ONCE} | base64 -w 0'
        return f"sudo sh -c {shlex.quote(f'{wait}; kiln-job status && echo && echo {MARK} && {piece}')}"

    def append_log_from_file(self, source: Path | None) -> list[tuple[str, str]]:
        """Append the next piece of a log on this computer, and return its lines, each with its step."""
        if source is None:
            return self.append_log_piece(b"")
        with source.open("rb") as file:
            file.seek(self._offset)
            return self.append_log_piece(file.read(AT_ONCE))

    def parse_status_and_log(self, answer: str, config: str) -> tuple[Mapping[str, Any], list[tuple[str, str]]]:
        """Return the state of a config's job, and the new lines of its log, each with its step."""
        status, _, piece = answer.partition(MARK)
        lines = self.append_log_piece(base64.b64decode(piece.strip()))
        return dict(json.loads(status).get(config, {})), lines

    def append_log_piece(self, data: bytes) -> list[tuple[str, str]]:
        """Append the next piece of the log, and return its lines, each with its step."""
        self._is_started = True
        self.more = len(data) >= AT_ONCE
        self._offset += len(data)
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk here must not lose a build there
                self._file.write(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [self._line_with_step(line) for line in lines]

    def _line_with_step(self, raw: bytes) -> tuple[str, str]:
        text = raw.decode("utf-8", "replace")
        if match := STEP.match(text):
            self.step = match["title"]
            return self.step, ""
        return self.step, text


def job_state_and_result(job: Mapping[str, Any]) -> tuple[str, str, int | None]:
    """Return a job's state, its result and its exit code; a job that its worker does not know is lost."""
    code = job.get("exit_code")
    return str(job.get("state", "lost")), str(job.get("result") or ""), None if code is None else int(code)


NOTICE = "/run/kiln-notice"  # as kiln-job has it
START_SECONDS = 600.0  # for the start of a build, which returns once it runs
LOST_CONNECTION = NO_CONNECTION | fetch.LOST_CONNECTION  # of ssh, and of rsync
QUERIES = 3  # of the jobs of a worker that may be reachable again
REASON_LENGTH = 300  # characters of ssh's output that are reported


def prepare_worker(session: PlaybookSession, command: PrepareWorker) -> Event:
    """Prepare a worker for builds, or as the holder of the cache."""
    worker = command.worker
    result = session.playbooks.run_playbook(
        "prepare.yml",
        worker=worker,
        on_task=session.task_reporter("prepare", worker),
        variables={"kiln_build_options": [*session.site.options]},
    )
    if result.ok:
        cache = read_json_object(session.site.folder / "cache.json") if worker.endswith(CACHE) else {}
        return WorkerPrepared(worker=worker, cache=str(cache.get("url", "")))
    reason = result.failure_reason(worker)
    is_reached = worker not in result.unreachable and reason != NOT_ENDED
    return _failed_command_event(command, reason, is_reached=is_reached)


def _failed_command_event(command: PrepareWorker | QueryJobs | StartBuild, reason: str, *, is_reached: bool) -> Event:
    """Return the event of a command that failed: one whose worker was not reached can be sent again."""
    if is_reached:
        return CommandFailed(worker=command.worker, reason=reason)
    return CommandUndelivered(command=command, reason=reason)


def report_service_health(session: PlaybookSession, command: WatchService) -> None:
    """Report whether a cache runs, until the worker is terminated."""
    worker = command.worker
    while session.must_still_follow(worker):
        words = f"systemctl is-active --quiet kiln-cache || exit; cat {NOTICE} 2>/dev/null || true"
        result = session.ssh(worker, words)
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
    options = collect.handover_options(session, command)
    result = collect.send_handover_to_worker(session, command) if options else None
    if result is not None and not result.ok:
        return _failed_command_event(
            command, _command_output_end(result), is_reached=result.exit_code not in LOST_CONNECTION
        )
    secrets = {**session.site.job_secrets, **(_cache_access(session, command) if command.cache else {})}
    # On standard input: they are in no argument.
    result = session.ssh(
        command.worker,
        f"sudo kiln-job start {shlex.quote(command.config)}",
        seconds=START_SECONDS,
        stdin=job_settings(command.key, options, secrets),
    )
    if not result.ok:
        return _failed_command_event(
            command, _command_output_end(result), is_reached=result.exit_code not in NO_CONNECTION
        )
    return BuildStarted(worker=command.worker, config=command.config)


def _cache_access(session: PlaybookSession, command: StartBuild) -> dict[str, str]:
    """Return the variable with the cache's address and password; none where its worker does not let the build's in."""
    site = session.site
    if site.variables["kiln_provider"] not in CLOUDS:  # whose security groups admit all workers of the run
        address = recorded_machine(site.folder, command.worker)["private"]
        cache = f"kiln-{site.variables['kiln_run']}-{CACHE}"
        if not session.ssh(cache, f"sudo kiln-cache-gate let-in {shlex.quote(address)}").ok:
            return {}
    password = (site.folder / "keys" / "cache").read_text(encoding="utf-8")
    return {"BAZEL_REMOTE_CACHE": command.cache.replace("http://", f"http://kiln:{password}@", 1)}


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
        collect.remove_handover(session, config)
        code, result = None, "what was handed over to it is damaged"
    started, ended = job.get("started"), job.get("ended")
    seconds = max(0.0, float(ended) - float(started)) if started and ended else None
    reason = "" if code == 0 else result
    return BuildFinished(worker=worker, config=config, exit_code=code, reason=reason, seconds=seconds)
