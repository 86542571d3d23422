"""A chain of jobs whose folder is in a bucket, by the script of the page about CI, with Amazon's client."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import boto3
import pytest

from kiln.base import files
from kiln.base.errors import BudgetSpent
from tests.integration.publish_servers.test_workflow_run import CPU, contents, programs, set_up

pytestmark = [pytest.mark.trial, pytest.mark.needs("aws"), pytest.mark.usefixtures("bucket")]

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "build-in-ci.md"
BUCKET = "my-bucket"  # of the page
# A compile with one action in the cache, after which a budget of one action lets no further step begin.
COMPILE = """\
echo compiled >>"LIST"
mkdir -p "${BAZEL_DISK_CACHE:?}/ac/ab"
echo 1 >"$BAZEL_DISK_CACHE/ac/ab/ab$(printf '0%.0s' {1..62})"
sleep 2
"""


def job(folder: Path, budget: str) -> tuple[int, str]:
    """Run the page's script on a new machine, in a checkout at the same path; return its exit code and its output."""
    shutil.rmtree(folder, ignore_errors=True)
    (script,) = re.findall(r"```sh\n(bucket=.*?)```", PAGE.read_text(), re.DOTALL)
    assert "5h30m" in script
    for name, text in contents(folder.parent).items():
        files.write_text(folder / name, text)
    files.write_text(folder / "recipe" / "build.sh", COMPILE.replace("LIST", str(folder.parent / "list")))
    set_up(folder)
    path = f"{programs(folder.parent / 'bin')}:{os.environ['PATH']}"
    ended = subprocess.run(
        ("bash", "-c", script.replace("5h30m", budget)),
        cwd=folder,
        env={**os.environ, "PATH": path, "CONFIG": CPU},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return ended.returncode, ended.stdout


def in_bucket() -> list[str]:
    """Return the files of the chain in the bucket."""
    answer = boto3.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=f"chains/{CPU}/")
    return sorted(entry["Key"].rpartition("/")[2] for entry in answer.get("Contents", ()))


def test_a_job_continues_from_the_bucket_what_another_has_left_there(tmp_path: Path) -> None:
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    code, output = job(tmp_path / "checkout", "'1 actions'")
    assert code == BudgetSpent.exit_code, output
    left = in_bucket()
    assert left[0] == "handover.json"
    assert re.fullmatch(r"made-[0-9a-f]{16}\.tar\.zst", left[1])

    code, output = job(tmp_path / "checkout", "5h30m")
    assert code == 0, output
    assert in_bucket() == ["handover.json"]
    assert len(list((tmp_path / "checkout").glob("build_artifacts/linux-64/*.conda"))) == 2

    code, output = job(tmp_path / "checkout", "5h30m")
    assert code == 0, output
    assert "is already finished: 2 packages after 2 jobs" in output
    assert (tmp_path / "list").read_text().split() == ["compiled", "None"], "each script ran once"
    assert in_bucket() == ["handover.json"]
