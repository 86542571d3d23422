"""The order in which packages appear where they cannot appear at once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kiln.conda.index import IndexEntry
from kiln.publish.model import sorted_and_split_by_subdir, sorted_by_dependencies


def entry(name: str, *depends: str, build: str = "0", subdir: str = "linux-64", **more: object) -> IndexEntry:
    """A package of an index."""
    record = {"name": name, "depends": depends, "build_number": 0, **more}
    return IndexEntry(file=f"{name}-1-{build}.conda", subdir=subdir, record=record, run_exports={})


CUDA: dict[str, Any] = {"build_number": 200}
CPU: dict[str, Any] = {"track_features": "tensorflow-cpu"}
RELEASE = [
    entry("libtensorflow", build="cuda", **CUDA),
    entry("libtensorflow", build="cpu", **CPU),
    entry("tensorflow-cuda-libs", "libtensorflow >=1", build="cuda", **CUDA),
    entry("tensorflow", "tensorflow-cuda-libs", "python 3.11.*", build="cuda", **CUDA),
    entry("tensorflow", "libtensorflow 1.*", "python 3.11.*", build="cpu", **CPU),
    entry("tensorflow-gpu", "tensorflow 1 cuda*", subdir="noarch"),
]


@pytest.mark.parametrize("seed", range(5))
def test_requirements_come_first_and_wrappers_last(seed: int) -> None:
    shuffled = random.Random(seed).sample(RELEASE, len(RELEASE))
    assert [item.file for item in sorted_by_dependencies(shuffled)] == [item.file for item in RELEASE]


def test_builds_that_a_solver_prefers_come_before_others_of_the_name_even_if_they_need_more() -> None:
    result = [item.file for item in sorted_by_dependencies(RELEASE) if item.record["name"] == "tensorflow"]
    assert result == ["tensorflow-1-cuda.conda", "tensorflow-1-cpu.conda"]


def test_packages_that_need_each_other_come_together() -> None:
    ring = [entry("a", "b"), entry("b", "a"), entry("c", "a")]
    assert {item.record["name"] for item in sorted_by_dependencies(ring)} == {"a", "b", "c"}


def test_a_release_is_parted_where_the_subdir_changes() -> None:
    result = sorted_and_split_by_subdir(
        [entry("top", "middle", subdir="noarch"), entry("middle", "base"), entry("base", subdir="noarch")]
    )
    assert [[item.record["name"] for item in part] for part in result] == [["base"], ["middle"], ["top"]]
