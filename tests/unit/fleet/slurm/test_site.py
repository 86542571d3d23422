"""Slurm's output, whose jobs are a run's, and how jobs end."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import FleetLimit, OutOfMemory, WorkersLost
from kiln.fleet.protocol import BuildFinished, FollowBuild
from kiln.fleet.slurm import site
from kiln.fleet.slurm.site import LATER, SEPARATOR, QueuedJob, SlurmClient, parse_job_list, program_environment

FAKE = """#!/bin/sh
# A program of Slurm: prints and ends as the folder of the test says, and notes its arguments.
here=$(dirname "$0")
echo "$(basename "$0") $*" >>"$here/calls"
cat "$here/$(basename "$0").out" 2>/dev/null
exit "$(cat "$here/$(basename "$0").code" 2>/dev/null || echo 0)"
"""


def line(*fields: str) -> str:
    return SEPARATOR.join(fields)


OURS = line("12", "PENDING", "kiln-r1-2", "", "kiln r1 linux_64_ 1", "/s/run-r1/ab/1", "Dependency")
OTHER = line("13", "RUNNING", "mine|kiln", "n1", "(null)", "/home/me", "None")


def fake(folder: Path, program: str, output: str = "", code: int = 0) -> None:
    for name, text in ((f"{program}.out", output), (f"{program}.code", f"{code}\n"), (program, FAKE)):
        path, part = folder / name, folder / f".{name}.new"
        if not path.exists() or path.read_text() != text:  # in one step: another thread may run the program meanwhile
            part.write_text(text)
            part.chmod(0o755)
            part.replace(path)


def client(folder: Path, interval: float = 0.0) -> SlurmClient:
    tools = [str(Path(path).parent) for name in ("cat", "sh") if (path := shutil.which(name))]
    return SlurmClient({"PATH": ":".join((str(folder), *tools))}, interval=interval)


def test_a_run_is_known_by_the_name_and_the_comment_of_its_jobs() -> None:
    ours, other, renamed = parse_job_list("\n".join((OURS, OTHER, OURS.replace("kiln-r1-2", "mine"))))
    assert (ours.run_id, ours.is_active, ours.folder, ours.reason) == ("r1", True, "/s/run-r1/ab/1", "Dependency")
    assert ours.is_attempt_of("r1", "linux_64_", 1)
    assert not ours.is_attempt_of("r1", "linux_64_", 2)
    assert (other.run_id, renamed.run_id) == ("", "")


def test_a_config_with_spaces_in_its_name_is_known_by_its_job() -> None:
    (job,) = parse_job_list(OURS.replace("linux_64_", "linux_64 my  config"))
    assert job.comment == ("kiln", "r1", "linux_64 my  config", "1")
    assert job.is_attempt_of("r1", "linux_64 my  config", 1)
    (other,) = parse_job_list(OURS.replace("kiln r1 linux_64_ 1", "nightly build"))
    assert (other.run_id, other.comment) == ("", ("nightly", "build"))


def test_a_line_of_another_form_is_no_job() -> None:
    assert parse_job_list("squeue: warning\n\n12|RUNNING") == ()


@pytest.mark.processes
def test_jobs_are_queried_once_in_an_interval(tmp_path: Path) -> None:
    fake(tmp_path, "squeue", OURS)
    calls = client(tmp_path, interval=100.0)
    assert calls.list_jobs() == calls.list_jobs() == parse_job_list(OURS)
    calls.list_jobs(fresh=True)
    assert (tmp_path / "calls").read_text().count("squeue --me --noheader --states=all") == 2


@pytest.mark.processes
def test_a_submitted_job_is_listed_at_once_whatever_the_interval(tmp_path: Path) -> None:
    fake(tmp_path, "squeue")
    fake(tmp_path, "sbatch", "12\n")
    calls = client(tmp_path, interval=100.0)
    assert calls.list_jobs() == ()
    fake(tmp_path, "squeue", OURS)
    assert calls.submit_job((), "job.sh").stdout == "12\n"
    assert calls.list_jobs() == parse_job_list(OURS), "a job that is not listed would be taken for one that has ended"


@pytest.mark.processes
def test_a_slurm_that_does_not_answer_has_no_list_of_jobs(tmp_path: Path) -> None:
    fake(tmp_path, "squeue", OURS, code=1)
    assert client(tmp_path).list_jobs() is None


@pytest.mark.processes
def test_the_accounting_is_optional(tmp_path: Path) -> None:
    assert client(tmp_path).job_state_in_accounting("12") == "", "sacct is missing"
    fake(tmp_path, "sacct", "Slurm accounting storage is disabled", code=1)
    assert client(tmp_path).job_state_in_accounting("12") == ""
    fake(tmp_path, "sacct", "CANCELLED by 1000\n")
    assert client(tmp_path).job_state_in_accounting("12") == "CANCELLED"


def test_slurm_gets_neither_secrets_nor_the_variables_of_a_job() -> None:
    environment = {"PATH": "/bin", "SLURM_CONF": "/c", "SBATCH_ACCOUNT": "a", "SLURM_MEM_PER_CPU": "1", "TOKEN": "t"}
    assert program_environment(environment) == {
        "PATH": "/bin",
        "SLURM_CONF": "/c",
        "SBATCH_ACCOUNT": "a",
        "LC_ALL": "C.UTF-8",
    }


@pytest.mark.parametrize(
    ("message", "later"),
    [
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", True),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", True),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", True),
        ("sbatch: error: invalid partition specified: missing", False),
        ("sbatch: error: Memory specification can not be satisfied", False),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination", False),
    ],
)
def test_a_submission_is_repeated_when_slurm_is_away_or_busy(message: str, later: bool) -> None:
    assert bool(LATER.search(message)) == later


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
