"""Runs of the fleet on a worker that exists."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import FleetLimit, ProvisionRefused, UnsupportedPython, UsageError
from kiln.fleet.model import JobState
from kiln.fleet.records import PENDING
from kiln.state.results import ConfigState
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
    hold_only,
    install_gpu,
    ledgered,
    let_go,
    report,
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


def static_words(root: Path, host: dict[str, Any], action: str, *more: str) -> tuple[str, ...]:
    return words_of_hosts(root, [host], action, *more)


def words_of_hosts(root: Path, hosts: list[dict[str, Any]], action: str, *more: str) -> tuple[str, ...]:
    told = root.parent / "hosts.json"
    entries = [{key: host[key] for key in host if key != "name"} for host in hosts]
    told.write_text(json.dumps({"kiln_static_hosts": entries}))
    common = ("--all", "--workers", str(len(hosts)))
    options = {"run": (*common, "--container", "none", "--poll", "1s"), "plan": common}.get(action, ())
    return words(root, action, "--provider", "static", "--vars", str(told), *options, *more)


def ran(root: Path, hosts: list[dict[str, Any]], action: str, *, code: int) -> str:
    """Run a command to its end, with an exit code; return its output."""
    call = words_of_hosts(root, hosts, action)
    ended = subprocess.run(call, cwd=ROOT, text=True, capture_output=True, check=False)
    assert ended.returncode == code, ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.trial
def test_a_machine_that_exists_builds_for_one_run_at_a_time_and_keeps_off_the_others(
    small: Path, existing: dict[str, str], tmp_path: Path
) -> None:
    """The stranger builds the same configs of another recipe, and must not take what it finds on the worker.

    It builds there once the first run has given the machine back.
    """
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
    assert ran(stranger, [existing], "run", code=0), "the machine is free, and is prepared from nothing"
    assert_whole(stranger, CONFIGS)


# By the recipe, the configs with CUDA, which share a compile, need a GPU, and the last one two cores.
SIZED_EXTRA = """  worker:
    memory: 1
    gpus: {{ 1 if cuda_compiler_version != "None" else 0 }}
    cores: {{ 2 if interpreter == "3.12" else 1 }}
"""
SIZES = """
- match: {cuda_compiler_version: "None", interpreter: "3.11"}
  memory: %d
  time_limit: 4s
"""


@pytest.mark.trial
def test_configs_are_built_on_the_machines_that_hold_them(small: Path, tmp_path: Path) -> None:
    """One machine has more memory, one more cores, one a GPU; a build that takes too long is ended, others go on."""
    (*cuda, slow, large), sizes = CONFIGS, small / "fleet-sizes.yml"
    recipe = small / "recipe" / "meta.yaml"
    recipe.write_text(f"{recipe.read_text().rstrip()}\n{SIZED_EXTRA}")
    hold_only(small, slow)
    offers = ({"cores": 1, "memory": 4}, {"cores": 2, "memory": 2}, {"cores": 2, "memory": 2, "gpus": 1})
    with existing_machines(tmp_path, 3) as machines:
        hosts: list[dict[str, Any]] = [{**host, **offer} for host, offer in zip(machines, offers, strict=True)]
        names = [host["name"] for host in hosts]
        docker("update", "--cpuset-cpus=0", names[0])
        install_gpu(names[2])
        sizes.write_text(SIZES % 64)
        refused = ran(small, hosts, "run", code=UsageError.exit_code)
        assert f"no machine type is large enough for {slow}" in refused
        assert "it needs 1 core, 64 GB of memory, and static-1cores-4memory has 1 core, 4 GB of memory" in refused
        assert ledgered(small) == ()
        sizes.write_text(SIZES % 3)
        failed = ran(small, hosts, "run", code=FleetLimit.exit_code)
        assert "stopped at its time limit of 4.0 s, which fleet-sizes.yml or the recipe sets" in failed
        assert not [name for name in names if "sleep 600" in docker("exec", name, "ps", "ax")]
    (run,) = ledgered(small)
    workers = {worker.name: worker for worker in run.workers}
    places = {job.config: (workers[job.worker].type, workers[job.worker].id, job.state) for job in run.jobs}
    first, second, third = (host["address"] for host in hosts)
    assert places == {
        slow: ("static-1cores-4memory", first, JobState.FAILED),
        large: ("static-2cores-2memory", second, JobState.COLLECTED),
        **dict.fromkeys(cuda, ("static-2cores-2memory-1gpus", third, JobState.COLLECTED)),
    }
    assert {job.attempt for job in run.jobs} == {1}
    assert_whole(small, [*cuda, large])
    assert_given_back(small)


@pytest.mark.trial
def test_what_a_run_has_built_is_tested_on_a_host_with_a_gpu(small: Path, tmp_path: Path) -> None:
    """A program stands in for the driver's: without it the host is refused, with it the recipe's tests run there."""
    config, other = (config for config in CONFIGS if "12.9" in config)
    cpu = next(name for name in CONFIGS if name not in {config, other})
    with existing_machines(tmp_path, 2) as (builder, tester):
        name = tester.pop("name")
        hosts = [{key: builder[key] for key in builder if key != "name"}, {**tester, "gpus": 1}]
        (tmp_path / "hosts.json").write_text(json.dumps({"kiln_static_hosts": hosts}))

        def called(action: str, *more: str) -> subprocess.CompletedProcess[str]:
            call = words(small, action, "--provider", "static", "--vars", str(tmp_path / "hosts.json"), *more)
            return subprocess.run(call, cwd=ROOT, text=True, capture_output=True, check=False)

        run = ("run", "--type", "static", "--container", "none", "--poll", "1s", "--gpu-tests", config)
        refused = called(*run)
        assert refused.returncode == ProvisionRefused.exit_code, refused.stderr
        assert "is too small: it has 0 of 1 GPUs" in refused.stderr
        (entry,) = report(small).configs
        assert (entry.state, entry.reason, len(entry.packages)) == (ConfigState.WAITING, PENDING, 2)
        install_gpu(name)
        unbuilt = called("test", "--gpu", config, other)
        assert unbuilt.returncode == UsageError.exit_code
        assert f"the packages of {other} are not built" in unbuilt.stderr
        done = called("test", "--gpu", "--json", config, cpu)
        assert done.returncode == 0, done.stderr
        data = json.loads(done.stdout)
        assert (data["cost"]["spent"], data["cost"]["currency"]) == (0.0, "USD")
        (result,) = data["configs"]  # the other needs no GPU
        assert (result["config"], [item["verdict"] for item in result["reports"]]) == (config, ["passed", "passed"])
        assert {gpu for item in result["reports"] for gpu in item["gpus"]} == {"Tesla T4 (7.5), driver 550.54.15"}
        again = called(*run)
        assert (again.returncode, "all selected configs are up to date" in again.stderr) == (0, True), (
            "nor tested again"
        )
        (entry,) = report(small).configs
        assert entry.state is ConfigState.CACHED
        assert_given_back(small)
        left = docker("exec", name, "sh", "-c", "ls -d /etc/kiln-owner /var/lib/kiln 2>/dev/null || true")
        assert left == ""
