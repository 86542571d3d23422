"""Slurm's programs: sbatch, squeue, scancel and, where there is accounting, sacct.

Their text formats are older than their JSON, which differs between versions and is missing in some.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import process_runner
from kiln.errors import MissingTool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
        self._environment = environment
        self._interval = interval
        self._lock = threading.Lock()
        self._jobs: tuple[QueuedJob, ...] | None = None
        self._queried = float("-inf")

    def run_program(self, *words: str) -> process_runner.ProcessResult:
        """Run a program to its end."""
        return process_runner.capture(words, env=self._environment, timeout=SECONDS)

    def list_jobs(self, *, fresh: bool = False) -> tuple[QueuedJob, ...] | None:
        """Return the user's jobs, also those that ended a short time ago; None when Slurm does not answer."""
        with self._lock:
            if fresh or time.monotonic() >= self._queried + self._interval:
                result = self.run_program("squeue", "--me", "--noheader", "--states=all", f"--format={FORMAT}")
                self._jobs = parse_job_list(result.stdout) if result.ok else None
                self._queried = time.monotonic()
            return self._jobs

    def submit_job(self, options: Sequence[str], script: str) -> process_runner.ProcessResult:
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
