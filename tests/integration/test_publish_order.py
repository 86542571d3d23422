"""The solutions of solvers while a release of this feedstock appears in a channel, package by package."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.conda.index import IndexEntry
from kiln.conda.solve import solve
from kiln.publish.model import sorted_by_dependencies
from tests.solving import Record, machine, rendered, stand_ins, write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled


NEW, OLD = "2.21.0", "2.20.0"
CUDA, CPU = "cuda", "cpu"


def entry(record: Record) -> IndexEntry:
    """A package as it is published."""
    file = f"{record['name']}-{record['version']}-{record['build']}.conda"
    return IndexEntry(file=file, subdir="linux-64", record=record, run_exports={})


def before(record: Record) -> Record:
    """The same package of the release before."""
    told: Record = json.loads(json.dumps(record).replace(NEW, OLD))
    return told


@pytest.fixture(scope="module")
def release() -> list[IndexEntry]:
    """All packages of a release in the order in which they are published."""
    return sorted_by_dependencies(map(entry, rendered()))


@pytest.fixture(scope="module")
def moments(release: list[IndexEntry], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The channel at each moment: the release before, then with one package more each time."""
    folder = tmp_path_factory.mktemp("moments")
    new = [dict(item.record) for item in release]
    kept = [*map(before, new), *stand_ins(new)]
    return [write(folder / f"{number}", [*kept, *new[:number]]) for number in range(len(new) + 1)]


@pytest.mark.parametrize(
    ("driver", "asked", "kind"),
    [(None, "tensorflow", CPU), ("12.9", "tensorflow", CUDA), ("12.9", "tensorflow-gpu", CUDA)],
)
def test_a_reader_in_between_gets_the_old_release_or_all_of_the_new_one(
    moments: list[Path], driver: str | None, asked: str, kind: str
) -> None:
    result = []
    for channel in moments:
        records = solve([channel.as_uri()], [asked, "python 3.12.*"], virtual_packages=machine(driver))
        ours = [item for item in records if "tensorflow" in item.name.normalized]
        assert {str(item.build).startswith(kind) for item in ours} == {True}, "never another kind of build"
        (version,) = {str(item.version) for item in ours}
        result.append(version)
    change = result.index(NEW)
    assert result == [OLD] * change + [NEW] * (len(result) - change), "there is one moment for each reader"


def test_a_package_can_be_installed_from_the_moment_that_it_appears(
    release: list[IndexEntry], moments: list[Path]
) -> None:
    for new, channel in zip(release, moments[1:], strict=True):
        asked = f"{new.record['name']} =={NEW} {new.record['build']}"
        assert solve([channel.as_uri()], [asked], virtual_packages=machine("12.9"))
