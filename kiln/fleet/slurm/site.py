"""The site of a run on Slurm: its shared folder, its jobs' options and ends, and Slurm's programs."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - for from_json
from typing import TYPE_CHECKING, Any

from kiln.base import files, process
from kiln.base.errors import FleetLimit, MissingTool, OutOfMemory, UsageError, WorkersLost, did_you_mean
from kiln.base.serialization import from_json_values, to_json
from kiln.base.text import duration
from kiln.fleet.ansible.sessions import EventSession
from kiln.fleet.model import MachineType
from kiln.fleet.protocol import BuildFinished, FollowBuild
from kiln.state.results import JobSize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future


def has_result(state: Mapping[str, Any]) -> bool:
    """Return whether a job has stored how its build ended, by the state of its attempt."""
    return state.get("state") == "ended" and state.get("exit_code") is not None


NEVER = "DependencyNeverSatisfied"
TIMEOUT = "TIMEOUT"
# The states of jobs that have no result of their own: an exit code for those that are not submitted again.
FAILURES: Mapping[str, tuple[int | None, str]] = {
    "BOOT_FAIL": (None, "was on a node that did not boot"),
    "CANCELLED": (WorkersLost.exit_code, "was cancelled, but not by this run"),
    "DEADLINE": (FleetLimit.exit_code, "reached its deadline (--slurm-option=--deadline)"),
    "NODE_FAIL": (None, "was on a node that failed"),
    "OUT_OF_MEMORY": (OutOfMemory.exit_code, "used more memory than it had asked for"),
    "PREEMPTED": (None, "was preempted"),
    TIMEOUT: (None, "reached its time limit (--slurm-time, or the partition's)"),
}


def is_job_over(state: Mapping[str, Any], job: QueuedJob | None) -> bool:
    """Return whether a job has ended, as it says itself, or as Slurm lists it."""
    return has_result(state) or job is None or not job.is_active


def job_outcome(
    command: FollowBuild,
    state: Mapping[str, Any],
    job: QueuedJob | None,
    *,
    past: str = "",
    last_words: str = "",
    time_limit: float | None = None,
) -> BuildFinished | None:
    """Return how the job of a build ended; None while it waits or runs.

    ``job`` is None when Slurm no longer lists it: ``past`` is then its state in the accounting, if there is one.
    Without an exit code the config is to be built again; not if it reaches a ``time_limit`` of its own, in seconds.
    """
    if not is_job_over(state, job):
        return None
    end = functools.partial(BuildFinished, worker=command.worker, config=command.config)
    is_ended = state.get("state") == "ended"
    if has_result(state):
        code = int(state["exit_code"])
        return end(exit_code=code, reason="" if code == 0 else str(state.get("result")), at=state.get("ended"))
    name = past if job is None else job.state
    number = f"Slurm's job {state.get('id') or ('' if job is None else job.id)}".strip()
    if job is not None and job.reason == NEVER:
        return end(exit_code=None, reason=f"{number} was not started: the build whose compile it reuses failed")
    if name in FAILURES:
        failure_code, what = FAILURES[name]
        if name == TIMEOUT and time_limit is not None:
            failure_code = FleetLimit.exit_code
            what = f"was ended at its time limit of {duration(time_limit)}, which fleet-sizes.yml or the recipe sets"
        return end(exit_code=failure_code, reason=f"{number} {what}", overdue=name == TIMEOUT)
    if is_ended:
        return end(exit_code=None, reason=f"{number}: {state.get('result')}")
    return end(exit_code=None, reason=_unknown_end_reason(number, name, state, last_words))


def _unknown_end_reason(number: str, name: str, state: Mapping[str, Any], last_words: str) -> str:
    """Return the reason of an end of which neither Slurm nor the job has given one."""
    what = f"is gone without a result ({name or 'no longer listed'})"
    if name and state.get("state") == "submitted":
        where = "" if last_words else ": does its node see the shared folder?"
        what = f"ended as {name} before it began to build{where}"
    return f"{number} {what}{f': {last_words}' if last_words else ''}"


SECONDS = 60.0  # for one call; Slurm's own MessageTimeout is 10 s by default
PROGRAMS = ("sbatch", "squeue", "scancel")
MARK = "kiln"  # begins the comment of each job: kiln RUN CONFIG ATTEMPT
SEPARATOR = "\x1f"  # is in no name, comment or path
# The fields of a job as squeue formats them.
FIELDS = {"id": "%A", "state": "%T", "name": "%j", "nodes": "%N", "comment": "%k", "folder": "%Z", "reason": "%r"}
FORMAT = SEPARATOR.join(FIELDS.values())
PASSED = re.compile(r"PATH$|HOME$|USER$|LOGNAME$|SLURM_CONF$|SLURM_CLUSTERS$|SBATCH_")
# States in which a job will still run, runs, or is being requeued (JOB STATE CODES in squeue's manual).
ACTIVE = re.findall(
    r"\w+",
    """COMPLETING CONFIGURING PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD RESIZING RESV_DEL_HOLD RUNNING SIGNALING
    SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED""",
)
# Of sbatch, for a controller that is away, or limits on the number of jobs: later, the same request succeeds.
LATER = re.compile(
    r"[Uu]nable to contact slurm controller|[Ss]ocket timed out|[Cc]onnection (refused|reset|timed out)"
    r"|Zero Bytes were transmitted|temporarily unable|[Tt]emporarily unavailable|[Tt]ransport endpoint"
    r"|No route to host|Network is unreachable|job submit limit|MaxSubmitJob|fully? job table|[Ii]nsufficient .*memory"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job as Slurm lists it: ``nodes`` run it, ``reason`` says why it waits or has ended."""

    id: str
    state: str
    name: str
    nodes: str
    comment: tuple[str, ...]
    folder: str
    reason: str

    @property
    def run_id(self) -> str:
        """The run of the fleet that has submitted the job; empty for other jobs."""
        is_ours = len(self.comment) > 1 and self.comment[0] == MARK and self.name.startswith(f"kiln-{self.comment[1]}-")
        return self.comment[1] if is_ours else ""

    @property
    def is_active(self) -> bool:
        """True while the job waits or runs."""
        return self.state in ACTIVE

    def is_attempt_of(self, run: str, config: str, attempt: int) -> bool:
        """Return whether the job is this attempt of a config."""
        return self.run_id == run and self.comment[2:4] == (config, str(attempt))


def parse_job_list(text: str) -> tuple[QueuedJob, ...]:
    """Return the jobs in the output of squeue."""
    rows = (line.split(SEPARATOR) for line in text.splitlines())
    jobs = (dict(zip(FIELDS, row, strict=True)) for row in rows if len(row) == len(FIELDS))
    return tuple(QueuedJob(comment=_parse_job_comment(job.pop("comment")), **job) for job in jobs)


def _parse_job_comment(text: str) -> tuple[str, ...]:
    """Return the parts of a job's comment: `MARK`, run, config and attempt of ours, whose config may have spaces."""
    mark, _, rest = text.partition(" ")
    run, _, rest = rest.partition(" ")
    config, _, attempt = rest.rpartition(" ")
    return (mark, run, config, attempt) if mark == MARK and config else tuple(text.split())


def program_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Slurm's programs; that of a job, in which this may run, would change new jobs."""
    return {**{name: text for name, text in environment.items() if PASSED.match(name)}, "LC_ALL": "C.UTF-8"}


class SlurmClient:
    """Calls Slurm's programs with an environment; all threads share one list of jobs, queried once in ``interval``."""

    def __init__(self, environment: Mapping[str, str], *, interval: float = 0.0) -> None:
        self._environment = program_environment(environment)
        self._interval = interval
        self._lock = threading.Lock()
        self._jobs: tuple[QueuedJob, ...] | None = None
        self._queried = float("-inf")

    def run_program(self, *words: str) -> process.ProcessResult:
        """Run a program to its end."""
        return process.capture(words, env=self._environment, timeout=SECONDS)

    def list_jobs(self, *, fresh: bool = False) -> tuple[QueuedJob, ...] | None:
        """Return the user's jobs, also those that ended a short time ago; None when Slurm does not answer."""
        with self._lock:
            if fresh or time.monotonic() >= self._queried + self._interval:
                result = self.run_program("squeue", "--me", "--noheader", "--states=all", f"--format={FORMAT}")
                self._jobs = parse_job_list(result.stdout) if result.ok else None
                self._queried = time.monotonic()
            return self._jobs

    def submit_job(self, options: Sequence[str], script: str) -> process.ProcessResult:
        """Submit a job; the output is its number. The list of jobs is queried again, which would lack this one."""
        result = self.run_program("sbatch", "--parsable", *options, script)
        with self._lock:
            self._queried = float("-inf")
        return result

    def cancel_jobs(self, ids: Iterable[str]) -> None:
        """Cancel jobs; those that have ended are ignored."""
        if words := sorted(ids):
            self.run_program("scancel", *words)

    def job_state_in_accounting(self, job: str) -> str:
        """Return the state of a job that squeue no longer lists, from the accounting; empty without one."""
        try:
            result = self.run_program("sacct", "-X", "--noheader", "--parsable2", f"--jobs={job}", "--format=State")
        except MissingTool:
            return ""
        return result.stdout.split()[0] if result.ok and result.stdout.split() else ""


@dataclass(slots=True, kw_only=True)
class SlurmSession(EventSession):
    """The state of an executor on Slurm.

    ``project`` is kiln's folder on the shared filesystem, once it is there. ``submitted`` has the number of each
    config's latest job, as soon as it is known; ``reasons`` say why configs failed without a report, ``ended`` are
    those whose end was reported. ``submitting`` is held while a job is submitted, so that the tear-down misses none.
    """

    site: SlurmSite
    client: SlurmClient
    project: Path | None = None
    submitted: dict[str, Future[str]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    submitting: threading.Lock = field(default_factory=threading.Lock)


SETTINGS = "slurm.json"  # in the run's folder on this computer
FREE = MachineType(
    provider="slurm",
    type="job",
    name="job",
    cores=0,
    memory=0,
    disk=0,
    spot_hourly=0,
    source="an existing cluster",
    date="2026-11-22",
)
OURS = re.findall(
    r"\S+",
    """account array bb begin chdir clusters comment cpus-per-task dependency error export export-file get-user-env hold
    input job-name kill-on-invalid-dep mem mem-per-cpu no-requeue nodes ntasks open-mode output parsable partition qos
    requeue test-only time wait wrap""",
)
# Further options, by sbatch's manual: which nodes and devices a job gets, its priority, and who is notified. None
# changes what sbatch itself does or prints (--version, --help, --quiet), or runs jobs as somebody else.
ACCEPTED = re.findall(
    r"\S+",
    """acctg-freq cluster-constraint constraint contiguous core-spec cores-per-socket
    cpu-freq cpus-per-gpu deadline exclude exclusive extra-node-info gpu-bind gpu-freq gpus gpus-per-node
    gpus-per-socket gpus-per-task gres gres-flags hint licenses mail-type mail-user mcs-label mem-bind mem-per-gpu
    mincpus nice nodelist oversubscribe power prefer priority profile reservation resv-ports segment
    sockets-per-node spread-job switches thread-spec threads-per-core tmp tres-bind tres-per-task use-min-nodes
    wckey""",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """The settings of a run's jobs: ``folder`` is on a filesystem that this computer and all nodes share.

    ``cores`` and ``memory`` (in bytes) are those of a job, ``time`` is its limit in minutes, ``extra`` are further
    options of sbatch. Empty ones are left to Slurm.
    """

    folder: Path
    cores: int
    memory: int
    partition: str = ""
    account: str = ""
    qos: str = ""
    time: int | None = None
    extra: tuple[str, ...] = ()

    @property
    def machine_type(self) -> MachineType:
        """A job as the plan sees a worker: nothing is charged for it."""
        return dataclasses.replace(FREE, name=f"{self.cores} cores", cores=self.cores, memory=self.memory / 1e9)

    def sbatch_options(self) -> tuple[str, ...]:
        """Return the options of sbatch that are the same for all jobs."""
        values = {"partition": self.partition, "account": self.account, "qos": self.qos}
        return (*(f"--{name}={value}" for name, value in values.items() if value), *self.extra)

    def store_in_run_folder(self, run_folder: Path) -> None:
        """Store the settings in a run's folder, for the commands that come later."""
        run_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.write_text(run_folder / SETTINGS, json.dumps(to_json(self)))

    @classmethod
    def read_from_run_folder(cls, run_folder: Path) -> SlurmSettings | None:
        """Return the settings of a run, None where they are missing."""
        try:
            return from_json_values(cls, json.loads((run_folder / SETTINGS).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError):
            return None


def check_sbatch_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return further options of sbatch.

    Raises:
        UsageError: for a word that is not a long option, one that kiln sets, or one that changes what sbatch does.
    """
    for option in options:
        name = option.removeprefix("--").partition("=")[0]
        if not option.startswith("--") or not name:
            raise UsageError(f"invalid option of sbatch {option!r}", hint="write it as --slurm-option=--NAME=VALUE")
        if any(other.startswith(name) for other in OURS):  # sbatch takes the beginning of a name, too
            raise UsageError(
                f"--{name} of sbatch is set by kiln",
                hint="kiln fleet run --help lists kiln's own options: --slurm-partition, --slurm-time, ...",
            )
        if name not in ACCEPTED:
            raise UsageError(
                f"--{name} of sbatch is not accepted",
                why="further options say which nodes a job gets and how it is queued, by their full names",
                hint=did_you_mean(name, ACCEPTED) or f"one of {', '.join(ACCEPTED)}",
            )
    return tuple(options)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSite:
    """The site of a run: ``folder`` is the run's on this computer, ``shared_folder`` is the run's on the nodes.

    ``sizes`` are those of configs that have their own.
    ``feedstock`` and ``project`` (the clone of kiln) are copied from here, ``python`` is the interpreter that makes
    kiln's environment. ``environment`` is that of Slurm's programs, ``variables`` are passed to builds, and hold no
    secret, ``secrets`` are. ``options`` are those of ``kiln build``. ``ledger`` knows the run. The
    states of jobs are read every ``poll`` seconds.
    """

    run: str
    folder: Path
    settings: SlurmSettings
    sizes: Mapping[str, JobSize] = field(default_factory=dict)
    feedstock: Path
    project: Path
    python: Path
    ledger: Path
    environment: Mapping[str, str] = field(repr=False)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: tuple[str, ...] = ()
    poll: float = 5.0

    @property
    def shared_folder(self) -> Path:
        """The run's folder on the shared filesystem."""
        return self.settings.folder / f"run-{self.run}"

    @property
    def compile_cache(self) -> Path:
        """The folder of Bazel's caches, which all runs share."""
        return self.settings.folder / "compile-cache"

    @property
    def disk_reserve_file(self) -> Path:
        """A file that reserves disk space for the tear-down."""
        return self.folder / "reserve"

    def job_size(self, config: str) -> JobSize:
        """Return the size of a config's job: its own, else that of all."""
        size, settings = self.sizes.get(config, JobSize()), self.settings
        limit = None if settings.time is None else settings.time * 60.0
        return dataclasses.replace(
            size,
            cores=size.cores or settings.cores,
            memory=size.memory or settings.memory / 1e9,
            time_limit=size.time_limit or limit,
        )
