"""The result that a job has stored counts; without one, Slurm's state says what happens to the config."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from kiln.base.errors import FleetLimit, OutOfMemory, WorkersLost
from kiln.fleet.protocol import BuildFinished, FollowBuild
from kiln.fleet.slurm import site
from kiln.fleet.slurm.site import QueuedJob

Outcome = functools.partial(BuildFinished, worker="w", config="c")
outcome = functools.partial(site.job_outcome, FollowBuild(worker="w", config="c"))
RUNNING: dict[str, Any] = {"state": "running", "id": "12", "exit_code": None}
TERMINATED: dict[str, Any] = {"state": "ended", "id": "12", "result": "terminated", "exit_code": None, "ended": 5.0}


def job(state: str, reason: str = "None") -> QueuedJob:
    return QueuedJob(id="12", state=state, name="", nodes="n1", comment=(), folder="", reason=reason)


@pytest.mark.parametrize("listed", [None, job("RUNNING"), job("COMPLETING"), job("CANCELLED"), job("NODE_FAIL")])
def test_a_stored_result_counts_whatever_slurm_lists(listed: QueuedJob | None) -> None:
    done = {"state": "ended", "exit_code": 0, "result": "success", "ended": 7.0}
    assert outcome(done, listed) == Outcome(exit_code=0, at=7.0)
    failed = {**done, "exit_code": 17, "result": "exit-code"}
    assert outcome(failed, listed) == Outcome(exit_code=17, reason="exit-code", at=7.0)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED", "REQUEUE_HOLD"])
def test_a_job_that_waits_or_runs_has_no_outcome(state: str) -> None:
    assert outcome(RUNNING, job(state)) is None
    assert outcome(TERMINATED, job(state)) is None, "Slurm may start it again on another node"


@pytest.mark.parametrize(
    ("state", "code", "reason"),
    [
        ("DEADLINE", FleetLimit.exit_code, "Slurm's job 12 reached its deadline (--slurm-option=--deadline)"),
        ("NODE_FAIL", None, "Slurm's job 12 was on a node that failed"),
        ("PREEMPTED", None, "Slurm's job 12 was preempted"),
        ("CANCELLED", WorkersLost.exit_code, "Slurm's job 12 was cancelled, but not by this run"),
        ("OUT_OF_MEMORY", OutOfMemory.exit_code, "Slurm's job 12 used more memory than it had asked for"),
    ],
)
def test_slurms_state_says_whether_a_config_is_built_again(state: str, code: int | None, reason: str) -> None:
    expected = Outcome(exit_code=code, reason=reason)
    assert outcome(RUNNING, job(state)) == outcome(TERMINATED, job(state)) == expected
    assert outcome(RUNNING, None, past=state) == expected, "the accounting knows it"


def test_a_time_limit_of_all_jobs_lets_a_config_continue_and_one_of_its_own_does_not() -> None:
    end = outcome(TERMINATED, job("TIMEOUT"))
    assert end == outcome(RUNNING, None, past="TIMEOUT")
    reason = "Slurm's job 12 reached its time limit (--slurm-time, or the partition's)"
    assert end == Outcome(exit_code=None, reason=reason, overdue=True)
    end = outcome(TERMINATED, job("TIMEOUT"), time_limit=7200.0)
    assert end is not None
    assert (end.exit_code, end.overdue) == (FleetLimit.exit_code, True)
    assert "its time limit of 2 h 00 min, which fleet-sizes.yml or the recipe sets" in end.reason
    late = {"state": "ended", "exit_code": 17, "result": "exit-code", "ended": 7.0}
    assert outcome(late, job("TIMEOUT"), time_limit=60.0) == Outcome(exit_code=17, reason="exit-code", at=7.0)


def test_a_job_whose_dependency_failed_is_submitted_again() -> None:
    end = outcome({"state": "submitted"}, job("CANCELLED", "DependencyNeverSatisfied"))
    assert end is not None
    assert (end.exit_code, "the build whose compile it reuses failed" in end.reason) == (None, True)


def test_a_job_that_never_saw_its_folder_says_so() -> None:
    end = outcome({"state": "submitted"}, job("FAILED"))
    assert end is not None
    assert end.reason == "Slurm's job 12 ended as FAILED before it began to build: does its node see the shared folder?"


def test_a_job_without_any_trace_is_gone() -> None:
    end = outcome(RUNNING, None, last_words="slurmstepd: error")
    assert end == Outcome(
        exit_code=None, reason="Slurm's job 12 is gone without a result (no longer listed): slurmstepd: error"
    )
