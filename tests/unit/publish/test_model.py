"""The order in which packages appear where they cannot appear at once."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from kiln.base.errors import BrokenIndex
from kiln.conda.index import IndexEntry
from kiln.publish.model import Journal, PublicationPhase, sorted_and_split_by_subdir, sorted_by_dependencies


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


def test_packages_that_need_each_other_come_together() -> None:
    ring = [entry("a", "b"), entry("b", "a"), entry("c", "a")]
    assert {item.record["name"] for item in sorted_by_dependencies(ring)} == {"a", "b", "c"}


def test_a_release_is_parted_where_the_subdir_changes() -> None:
    result = sorted_and_split_by_subdir(
        [entry("top", "middle", subdir="noarch"), entry("middle", "base"), entry("base", subdir="noarch")]
    )
    assert [[item.record["name"] for item in part] for part in result] == [["base"], ["middle"], ["top"]]


JOURNAL = Journal(id="x", packages={"noarch/a-1-0.conda": "ab"}, fresh=("noarch/a-1-0.conda",), aside="trial")


def test_uploads_are_recorded_once_and_in_order() -> None:
    brought = JOURNAL.with_uploads("trial", ["noarch/a-1-0.conda"]).with_uploads("release", ["noarch/a-1-0.conda"])
    again = Journal.parse(brought.with_uploads("trial", ["noarch/a-1-0.conda"]).with_promoting_phase().to_json_bytes())
    assert again.brought == (("trial", "noarch/a-1-0.conda"), ("release", "noarch/a-1-0.conda"))
    assert again.uploaded_paths("release") == ("noarch/a-1-0.conda",)
    assert (again.phase, again.aside) == (PublicationPhase.PROMOTING, "trial")


@pytest.mark.parametrize("path", ["../a-1-0.conda", "noarch/../../a", "a-1-0.conda", ".kiln/journal.json"])
def test_a_journal_names_no_places_but_those_of_packages(path: str) -> None:
    for field in ({"fresh": [path]}, {"brought": [["release", path]]}):
        told = {**json.loads(JOURNAL.to_json_bytes()), **field}
        with pytest.raises(BrokenIndex):
            Journal.parse(json.dumps(told).encode())


def test_a_journal_of_a_folder_or_bucket_names_no_server() -> None:
    told = json.loads(JOURNAL.to_json_bytes())
    del told["aside"], told["brought"]
    assert Journal.parse(json.dumps(told).encode()).brought == ()
