"""The end of a job, from the state that it has written and from the one that Slurm lists."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from kiln.console.text import duration
from kiln.errors import FleetLimit, OutOfMemory, WorkersLost
from kiln.fleet.executor_protocol import BuildFinished, FollowBuild
from kiln.fleet.slurm.attempt_folders_and_sbatch_options import has_result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.fleet.slurm.client import QueuedJob

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
