"""The end of a job, from the state that it has written and from the one that Slurm lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.console.text import duration
from kiln.errors import FleetLimit, OutOfMemory, WorkersLost

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a build: ``exit_code`` is kiln's, None when the config is to be built again.

    ``overdue`` marks a build whose job reached its time limit.
    """

    exit_code: int | None
    reason: str = ""
    at: float | None = None
    overdue: bool = False


def outcome(
    state: Mapping[str, Any],
    job: QueuedJob | None,
    *,
    past: str = "",
    last_words: str = "",
    time_limit: float | None = None,
) -> Outcome | None:
    """Return how a job ended; None while it waits or runs.

    ``job`` is None when Slurm no longer lists it: ``past`` is then its state in the accounting, if there is one.
    A config that reaches a ``time_limit`` of its own, in seconds, is not built again.
    """
    is_ended = state.get("state") == "ended"
    if is_ended and state.get("exit_code") is not None:
        code = int(state["exit_code"])
        return Outcome(exit_code=code, reason="" if code == 0 else str(state.get("result")), at=state.get("ended"))
    if job is not None and job.is_active:
        return None
    name = past if job is None else job.state
    number = f"Slurm's job {state.get('id') or ('' if job is None else job.id)}".strip()
    if job is not None and job.reason == NEVER:
        return Outcome(exit_code=None, reason=f"{number} was not started: the build whose compile it reuses failed")
    if name in FAILURES:
        return _failure(name, number, time_limit)
    if is_ended:
        return Outcome(exit_code=None, reason=f"{number}: {state.get('result')}")
    return Outcome(exit_code=None, reason=_unknown(number, name, state, last_words))


def _failure(name: str, number: str, time_limit: float | None) -> Outcome:
    """Return the outcome of a job whose state in Slurm says why it has no result."""
    code, what = FAILURES[name]
    is_overdue = name == TIMEOUT
    if is_overdue and time_limit is not None:
        code = FleetLimit.exit_code
        what = f"was ended at its time limit of {duration(time_limit)}, which fleet-sizes.yml or the recipe sets"
    return Outcome(exit_code=code, reason=f"{number} {what}", overdue=is_overdue)


def _unknown(number: str, name: str, state: Mapping[str, Any], last_words: str) -> str:
    """Return the reason of an end of which neither Slurm nor the job has given one."""
    what = f"is gone without a result ({name or 'no longer listed'})"
    if name and state.get("state") == "submitted":
        where = "" if last_words else ": does its node see the shared folder?"
        what = f"ended as {name} before it began to build{where}"
    return f"{number} {what}{f': {last_words}' if last_words else ''}"
