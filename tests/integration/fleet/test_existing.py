"""Runs of the fleet on a worker that exists."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.errors import (
    ProvisionRefused,
    UnsupportedPython,
    UsageError,
)
from kiln.model.fleet import JobState
from tests.integration.fleet.helpers import (
    CONFIGS,
    HELD,
    ROOT,
    SMALL,
    assert_given_back,
    assert_whole,
    building,
    busy,
    docker,
    existing_machines,
    hold,
    ledgered,
    let_go,
    words,
)
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = [
    pytest.mark.needs("docker", "ssh", "ssh-keygen", "rsync", "nginx"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason=f"{UnsupportedPython.__name__}: Ansible needs Python 3.11"),
]


@pytest.fixture
def existing(tmp_path: Path, workers: None) -> Iterator[dict[str, str]]:
    """A machine that exists already, as a host of the static provider's."""
    with existing_machines(tmp_path, 1) as (host,):
        yield host


def static_words(root: Path, host: dict[str, str], action: str, *more: str) -> tuple[str, ...]:
    told = root.parent / "hosts.json"
    told.write_text(json.dumps({"kiln_static_hosts": [{key: host[key] for key in host if key != "name"}]}))
    options = ("--all", "--workers", "1", "--container", "none", "--poll", "1s") if action == "run" else ()
    return words(root, action, "--provider", "static", "--vars", str(told), *options, *more)


def test_a_machine_that_exists_builds_for_one_run_at_a_time_and_keeps_off_the_others(
    small: Path, existing: dict[str, str], tmp_path: Path
) -> None:
    """The stranger builds the same configs of another recipe, and must not take what it finds on the worker."""
    stranger = Path(shutil.copytree(SMALL, tmp_path / "stranger" / "small-feedstock"))
    hold(small)
    call = static_words(small, existing, "run")
    with subprocess.Popen(call, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: len(building(small)) == 1, "a build runs", process)
            (first,) = ledgered(small)
            refused = subprocess.run(
                static_words(stranger, existing, "run"), cwd=ROOT, text=True, capture_output=True, check=False
            )
            assert refused.returncode == ProvisionRefused.exit_code, refused.stderr
            assert f"belongs to the run {first.id} of " in refused.stderr
            assert "sudo rm /etc/kiln-owner" in refused.stderr
            other = ledgered(stranger)[0].id
            down = static_words(stranger, existing, "down", other)
            subprocess.run(down, cwd=ROOT, capture_output=True, check=True)
            asked = words(stranger, "status", "--ask", "static", "--vars", str(stranger.parent / "hosts.json"))
            listed = subprocess.run(asked, cwd=ROOT, text=True, capture_output=True, check=True).stdout
            assert [item["run"] for item in json.loads(listed)] == [first.id]
            swept = subprocess.run(
                static_words(stranger, existing, "sweep"), cwd=ROOT, text=True, capture_output=True, check=False
            )
            assert swept.returncode == 0, swept.stderr
            assert busy(existing["name"]), "what it builds goes on"
            (small / HELD).unlink()
            let_go(existing["name"])
            assert process.wait(900) == 0
        finally:
            process.kill()
    assert {(job.attempt, job.state) for job in ledgered(small)[0].jobs} == {(1, JobState.COLLECTED)}
    assert_whole(small, CONFIGS)
    assert_given_back(small)
    left = docker("exec", existing["name"], "sh", "-c", "ls -d /etc/kiln-owner /var/lib/kiln 2>/dev/null || true")
    assert left == ""


SMI = """#!/bin/sh
case $1 in
-L) echo 'GPU 0: Tesla T4 (UUID: GPU-1)' ;;
*) echo '550.54.15, Tesla T4, 7.5, 15360' ;;
esac
"""


def test_packages_of_another_run_are_tested_on_a_host_with_a_gpu(small: Path, existing: dict[str, str]) -> None:
    """A program stands in for the driver's: without it the host is refused, with it the recipe's tests run there."""
    config, other = (config for config in CONFIGS if "12.9" in config)
    cpu = next(name for name in CONFIGS if name not in {config, other})

    def tested(*configs: str) -> subprocess.CompletedProcess[str]:
        call = static_words(small, existing, "test", "--gpu", "--json", *configs)
        return subprocess.run(call, cwd=ROOT, text=True, capture_output=True, check=False)

    build = (sys.executable, "-m", "kiln", "-C", str(small), "build", config, "--container", "none")
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    unbuilt = tested(config, other)
    assert unbuilt.returncode == UsageError.exit_code
    assert f"the packages of {other} are not built" in unbuilt.stderr
    refused = tested(config)
    assert refused.returncode == ProvisionRefused.exit_code, refused.stderr
    assert "is too small: it has 0 of 1 GPUs" in refused.stderr
    place = "/usr/local/bin/nvidia-smi"
    docker("exec", existing["name"], "sh", "-c", f"printf %s {shlex.quote(SMI)} >{place}; chmod 755 {place}")
    done = tested(config, cpu)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["cost"]["spent"], data["cost"]["currency"]) == (0.0, "USD")
    (result,) = data["configs"]  # the other needs no GPU
    assert (result["config"], [report["verdict"] for report in result["reports"]]) == (config, ["passed", "passed"])
    assert {gpu for report in result["reports"] for gpu in report["gpus"]} == {"Tesla T4 (7.5), driver 550.54.15"}
    assert_given_back(small)
    left = docker("exec", existing["name"], "sh", "-c", "ls -d /etc/kiln-owner /var/lib/kiln 2>/dev/null || true")
    assert left == ""
