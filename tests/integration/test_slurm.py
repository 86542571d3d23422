"""Runs on a Slurm cluster of two nodes on this computer; what happens to jobs, nodes, Slurm and the controller."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import WorkersLost
from kiln.fleet.model import WorkerState
from kiln.fleet.slurm.attempts import config_folder_name
from kiln.state.results import ConfigState
from tests.integration.fleet.helpers import (
    CONFIGS,
    HELD,
    PLANTED,
    ROOT,
    SMALL,
    assert_whole,
    hold,
    ledgered,
    report,
    words,
)
from tests.slurm_cluster import SlurmCluster
from tests.waiting import CEILING, until

if TYPE_CHECKING:
    from collections.abc import Iterator

CUDA_311, CUDA_312, CPU_311, CPU_312 = CONFIGS
pytestmark = [
    pytest.mark.slow("a cluster is started"),
    pytest.mark.sampled,
    pytest.mark.needs("slurmctld", "slurmd", "munged", "sbatch"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the daemons of several nodes run as root"),
    pytest.mark.xdist_group("slurm"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all nodes see, and in which kiln's environment is made once."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SMALL, tmp_path / "small-feedstock"))


def run_words(root: Path, shared: Path, *more: str) -> tuple[str, ...]:
    sizes = ("--slurm-cores", "1", "--slurm-memory", "1500MB")
    common = ("--provider", "slurm", "--slurm-folder", str(shared), "--container", "none", "--poll", "0.3s", *sizes)
    return words(root, "run", *common, *more)


class Processes:
    """The controllers that a test starts."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, root: Path, shared: Path, *more: str) -> subprocess.Popen[bytes]:
        environment = {**self._cluster.environment, "PLANTED_TOKEN": PLANTED, "ANACONDA_API_TOKEN": PLANTED}
        words = run_words(root, shared, *more)
        with (root / "controller.log").open("ab") as log:
            process = subprocess.Popen(
                words, env=environment, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self._all.append(process)
        return process

    def end(self) -> None:
        for process in self._all:
            process.kill()
            process.wait()


@pytest.fixture
def processes(cluster: SlurmCluster) -> Iterator[Processes]:
    processes = Processes(cluster)
    yield processes
    processes.end()


def wait(root: Path, process: subprocess.Popen[bytes]) -> int:
    code = process.wait(timeout=CEILING)
    sys.stdout.write((root / "controller.log").read_text())
    return code


def release(shared: Path, config: str = "") -> None:
    name = config_folder_name(config) if config else "*"
    for file in shared.glob(f"run-*/{name}/*/feedstock/{HELD}"):
        file.unlink()


def holding(shared: Path, config: str, attempt: int = 1) -> bool:
    """Return whether a config's compile runs, and waits."""
    logs = shared.glob(f"run-*/*/{attempt}/feedstock/build_artifacts/logs/*/{config}.log")
    return any("=== compile" in log.read_text() for log in logs)


def assert_nothing_left(cluster: SlurmCluster, root: Path, shared: Path) -> None:
    assert not set(cluster.jobs().values()) - {"COMPLETED", "FAILED", "CANCELLED"}
    assert not list(shared.glob("run-*"))
    for run in ledgered(root):
        assert run.finished is not None
        assert {worker.state for worker in run.workers} <= {WorkerState.TERMINATED, WorkerState.REFUSED}


def planted_in(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and PLANTED.encode() in path.read_bytes()
    ]


def test_jobs_outlive_slurm_the_controller_and_a_drained_node(
    cluster: SlurmCluster, small: Path, shared: Path, processes: Processes
) -> None:
    hold(small)
    process = processes.start(small, shared, "--all")
    until(lambda: holding(shared, CUDA_311) and holding(shared, CPU_311), "two builds compile", process)
    assert set(cluster.job_ids("PENDING")) == {CUDA_312, CPU_312}, "warm builds wait for their cold ones"
    assert set(cluster.call("squeue", "--noheader", "--states=PENDING", "--format=%r").split()) == {"Dependency"}
    assert planted_in(shared) == planted_in(cluster.folder) == []
    node = cluster.call("squeue", "--noheader", "--states=RUNNING", "--format=%N").split()[0]
    cluster.call("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")

    cluster.stop_controller()
    release(shared, CPU_311)
    collected = "no CUDA · interpreter 3.11: done"
    log = small / "controller.log"
    until(lambda: collected in log.read_text(), "a build is collected without Slurm", process)
    process.kill()
    process.wait()
    cluster.start_controller()
    cluster.call("scancel", cluster.job_ids("RUNNING")[CUDA_311])
    until(lambda: holding(shared, CPU_312), "a warm build begins without a controller")
    release(shared)
    assert [run.lives for run in ledgered(small)] == [False]

    process = processes.start(small, shared, "--all")
    until(lambda: holding(shared, CUDA_312, 2), "the other build is submitted again", process)
    release(shared)
    assert wait(small, process) == WorkersLost.exit_code
    cluster.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
    states = {config.config: (config.state, config.cold) for config in report(small).configs}
    assert states == {
        CUDA_311: (ConfigState.FAILED, True),
        CUDA_312: (ConfigState.DONE, True),
        CPU_311: (ConfigState.CACHED, False),
        CPU_312: (ConfigState.DONE, False),
    }
    reason = next(config.reason for config in report(small).configs if config.config == CUDA_311)
    assert "was cancelled, but not by this run" in reason
    assert_whole(small, [CUDA_312, CPU_311, CPU_312])
    assert list((shared / "compile-cache").glob("*.json")), "jobs share Bazel's caches"
    assert_nothing_left(cluster, small, shared)
    assert planted_in(small) == []
