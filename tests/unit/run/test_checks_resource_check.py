"""A run that the machine cannot carry is refused with the reason, before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import OutOfMemory, UsageError
from kiln.base.system.machine import MachineResources
from kiln.feedstock import matrix
from kiln.recipe import render
from kiln.run.checks import (
    COPIES,
    LEAST_DISK,
    SMALL_DISK,
    divide_resources_among_jobs,
    estimated_disk_use,
    least_disk_of_config,
    require_memory_of_earlier_builds,
)
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

GB = 10**9
MACHINE = MachineResources(cores=8, memory=20 * GB)


def test_jobs_share_cores_and_memory_and_the_system_keeps_some() -> None:
    assert divide_resources_among_jobs(MACHINE, jobs=2, cores=None, memory=None) == MachineResources(
        cores=4, memory=9 * GB
    )
    assert divide_resources_among_jobs(MACHINE, jobs=3, cores=2, memory=GB) == MachineResources(cores=2, memory=GB)


def test_more_jobs_than_cores_are_refused() -> None:
    with pytest.raises(UsageError, match="9 jobs of 1 core each: 9 needed, this machine has 8") as caught:
        divide_resources_among_jobs(MACHINE, jobs=9, cores=None, memory=None)
    assert caught.value.hint == "-j 8"
    with pytest.raises(UsageError, match="10 needed"):
        divide_resources_among_jobs(MACHINE, jobs=2, cores=5, memory=None)
    with pytest.raises(UsageError, match="invalid number of jobs: -j 0"):
        divide_resources_among_jobs(MACHINE, jobs=0, cores=None, memory=None)
    with pytest.raises(UsageError, match="invalid number of cores: --cores 0"):
        divide_resources_among_jobs(MACHINE, jobs=2, cores=0, memory=None)
    with pytest.raises(UsageError, match="invalid amount of memory: --memory 0"):
        divide_resources_among_jobs(MACHINE, jobs=2, cores=None, memory=0)


def test_more_memory_than_there_is_is_refused() -> None:
    with pytest.raises(OutOfMemory, match=r"3 jobs of 8\.0 GB each: 24 GB needed") as caught:
        divide_resources_among_jobs(MACHINE, jobs=3, cores=None, memory=8 * GB)
    assert (caught.value.why, caught.value.hint) == ("this machine has 20 GB", "-j 2")


def test_a_config_that_used_more_memory_before_is_refused() -> None:
    item = MachineResources(cores=1, memory=4 * GB)
    require_memory_of_earlier_builds({"a": 4 * GB}, item, jobs=2)
    require_memory_of_earlier_builds({}, item, jobs=2)
    with pytest.raises(OutOfMemory, match=r"b used 5\.0 GB of memory"):
        require_memory_of_earlier_builds({"a": GB, "b": 5 * GB}, item, jobs=2)


def test_the_disk_of_a_run_is_that_of_its_largest_configs_at_once() -> None:
    used = {"a": 4 * GB, "b": 8 * GB, "c": 2 * GB}
    assert estimated_disk_use(used, ("a", "b", "c"), jobs=2) == 15 * GB
    assert estimated_disk_use({}, ("a", "b", "c"), jobs=2) == 2 * LEAST_DISK
    assert estimated_disk_use(used, ("c",), jobs=2) == int(2.5 * GB)
    assert estimated_disk_use({"a": 3000}, ("a",), jobs=2) == SMALL_DISK


@pytest.mark.parametrize(
    ("recipe", "needed"),
    [
        ("", SMALL_DISK),
        ("source:\n  path: src\n", SMALL_DISK + COPIES * 8192),
        ("source:\n  url: https://host/a.tar.gz\n  sha256: abc\n", LEAST_DISK),
        ("requirements:\n  host:\n    - zlib\n", LEAST_DISK),
    ],
)
def test_the_disk_of_a_first_build_follows_from_what_it_fetches_and_its_sources(
    recipe: str, needed: int, tmp_path: Path
) -> None:
    files = {"recipe/src/a.c": "x" * 8192}
    feedstock = builders.feedstock(tmp_path, f"package:\n  name: a\n  version: '1'\n{recipe}", files=files)
    rendered = render.render(feedstock, *matrix.configs(feedstock))
    assert least_disk_of_config(feedstock, rendered) == needed


def test_this_machine_has_something() -> None:
    here = MachineResources.of_this_machine()
    assert here.cores >= 1
    assert here.memory > 10**8
