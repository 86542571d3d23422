"""Builds that run out of memory or of disk space."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import DiskFull, OutOfMemory
from kiln.container.engine import choose_engine
from kiln.state.results import ConfigState
from tests.integration.matrix.helpers import CPU_311, kiln, replace, report, states
from tests.small_disks import mounted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.sampled


def test_a_config_that_runs_out_of_memory_is_reported_as_such(small: Path, docker: str) -> None:
    engine = choose_engine(docker, env=os.environ).engine
    assert engine is not None
    if engine.lacks:
        pytest.skip(engine.lacks[0])
    replace(small, "build.sh", "mkdir", "/usr/bin/python3 -c 'x = bytearray(2_000_000_000)' || exit 1\nmkdir")
    ended = kiln(small, CPU_311, "--container", docker, "--memory", "600MB")
    assert ended.returncode == OutOfMemory.exit_code, ended.stderr
    (config,) = report(small).configs
    assert (config.state, config.peak_memory) == (ConfigState.OUT_OF_MEMORY, 600_000_000)
    refused = kiln(small, CPU_311, "--container", docker, "--memory", "500MB")
    assert refused.returncode == OutOfMemory.exit_code
    assert "used 600 MB of memory when it was last built" in refused.stderr


def test_memory_is_bounded_on_the_host_too(small: Path) -> None:
    hog = "import time; x = bytearray(900_000_000); time.sleep(600)"
    replace(small, "build.sh", "mkdir", f"/usr/bin/python3 -c '{hog}' || exit 1\nmkdir")
    ended = kiln(small, CPU_311, "--container", "none", "--memory", "600MB")
    assert ended.returncode == OutOfMemory.exit_code, ended.stderr
    assert states(small) == {CPU_311: ConfigState.OUT_OF_MEMORY}
    assert "needed more memory than 600 MB" in ended.stderr


@pytest.fixture
def small_disk(small: Path) -> Iterator[Path]:
    """The small feedstock with its build_artifacts on a file system of its own, of 550 MB."""
    with mounted(small / "build_artifacts", "550m"):
        yield small


def test_a_full_disk_is_reported_and_the_config_continues_afterwards(small_disk: Path) -> None:
    fill = 'test -e "$RECIPE_DIR/../room" || head -c 600M /dev/zero >big\n'
    replace(small_disk, "install-app.sh", "mkdir", f"{fill}mkdir")
    ended = kiln(small_disk, CPU_311, "--container", "none")
    assert ended.returncode == DiskFull.exit_code, ended.stderr
    assert states(small_disk) == {CPU_311: ConfigState.DISK_FULL}
    (small_disk / "room").touch()
    for big in small_disk.rglob("big"):
        big.unlink()
    assert kiln(small_disk, "--failed", "--container", "none").returncode == 0
    (config,) = report(small_disk).configs
    assert [step.reused for step in config.steps if step.title in {"compile", "build libsmall"}] == [True, True]


def test_a_disk_without_space_is_reported_before_anything_is_built(small: Path) -> None:
    with mounted(small / "build_artifacts", "30m"):
        ended = kiln(small, "--all", "-j", "2", "--container", "none")
        assert ended.returncode == DiskFull.exit_code
        assert "building 2 at a time needs 40 MB" in ended.stderr
