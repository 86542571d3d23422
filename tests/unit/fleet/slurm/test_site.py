"""Slurm's output is parsed, and only jobs of runs are taken for such."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kiln.fleet.slurm.site import LATER, SEPARATOR, SlurmClient, parse_job_list, program_environment

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
