"""The packages that earlier runs have built, found for their tests."""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING

import pytest

from kiln.base import files
from kiln.base.errors import UsageError
from kiln.publish.release import (
    ConfigsAndRuns,
    _reports_of_package,
    allowed_package_names,
    damage_notes,
    last_run_of_each_config,
    latest_packages_of_configs,
    packages_new_in_channel,
)
from kiln.recipe import feedstock as recipe_feedstock
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import ConfigRun, ConfigState, PackageReport
from tests import builders
from tests.packages import release_package
from tests.releases import candidate, release
from tests.runs import worked_through
from tests.unit.feedstock.test_sizes import SMALL

if TYPE_CHECKING:
    from pathlib import Path


def report(path: Path) -> PackageReport:
    artifact = dataclasses.replace(candidate().artifact, path=path, sha256=files.sha256(path), subdir=path.parent.name)
    return dataclasses.replace(builders.package_report("small"), artifact=artifact)


def test_the_latest_run_that_built_a_config_counts_if_its_packages_are_unchanged(tmp_path: Path) -> None:
    root = tmp_path / "small"
    shutil.copytree(SMALL, root)
    feedstock = recipe_feedstock.load(root)
    channel = root / "build_artifacts" / "linux-64"
    one, two = (report(release_package(channel, name)) for name in ("one", "two"))
    done = ConfigRun(config="x", group="g", state=ConfigState.DONE, packages=(one,))
    failed = dataclasses.replace(done, state=ConfigState.FAILED, packages=())
    with Ledger(root / "build_artifacts" / "ledger.sqlite") as ledger:
        for configs in ((done,), (failed, ConfigRun(config="y", group="g", state=ConfigState.CACHED, packages=(two,)))):
            ledger.end_run(ledger.begin_run(dataclasses.replace(worked_through([]), configs=configs)))
    names = ("x", "y", "z")
    expected = {"x": (one.artifact.path,), "y": (two.artifact.path,)}
    assert latest_packages_of_configs(feedstock, names) == expected, "a failure later on took no packages away"
    assert latest_packages_of_configs(feedstock, ("y",)) == {"y": (two.artifact.path,)}
    two.artifact.path.write_text("changed")
    assert set(latest_packages_of_configs(feedstock, names)) == {"x"}
    one.artifact.path.unlink()
    assert latest_packages_of_configs(feedstock, names) == {}


def test_a_package_file_belongs_to_the_platform_that_made_it(tmp_path: Path) -> None:
    here, there = (
        release_package(tmp_path / subdir, "small", subdir=subdir) for subdir in ("linux-64", "linux-aarch64")
    )
    made = {path: ((path.parent.name, report(path)),) for path in (here, there)}
    elsewhere = tmp_path / "downloads" / there.name
    files.link_or_copy(there, elsewhere)
    assert [name for name, _ in _reports_of_package(elsewhere, made)] == ["linux-aarch64"]
    assert [name for name, _ in _reports_of_package(here, made)] == ["linux-64"]
    assert _reports_of_package(tmp_path / "other-1-0.conda", made) == ()


def test_configs_that_may_be_missing_are_named_one_by_one_or_by_a_pattern(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, "package:\n  name: a\n  version: 1\n", files={"outputs.txt": "a\n"})
    names = ("linux_64_", "osx_64_", "osx_arm64_")
    rendered = dict.fromkeys(names, builders.rendered_config(builders.output()))
    matrix = ConfigsAndRuns(feedstock=feedstock, rendered=rendered, runs={}, history=())
    made = matrix.assemble_release([], partial=("osx_*", "linux_46_"), published={})
    assert made.partial == {"osx_64_", "osx_arm64_", "linux_46_"}, "what fits nothing is kept, to be refused"


def test_the_names_that_may_be_published_are_read_by_line(tmp_path: Path) -> None:
    feedstock = builders.feedstock(
        tmp_path, "package:\n  name: a\n  version: 1\n", files={"outputs.txt": "# all\n\na  # b\nlib*\n"}
    )
    assert allowed_package_names(feedstock) == ("a", "lib*")
    (tmp_path / "outputs.txt").unlink()
    with pytest.raises(UsageError, match=r"outputs\.txt is missing"):
        allowed_package_names(feedstock)


def test_the_latest_run_of_each_config_counts() -> None:
    latest, former = worked_through(["a"]), worked_through(["a", "b"])
    runs = last_run_of_each_config([latest, former])
    assert {name: run for name, (run, _) in runs.items()} == {"a": latest, "b": former}
    assert runs["b"][1] == former.configs[1]


def test_a_run_in_which_a_config_only_waited_does_not_count_but_one_that_waits_for_tests_does() -> None:
    former = worked_through(["a"])
    (built,) = former.configs
    idle = dataclasses.replace(built, state=ConfigState.WAITING, started=None, finished=None, packages=(), steps=())
    waiting = dataclasses.replace(former, configs=(idle,))
    untested = dataclasses.replace(former, configs=(dataclasses.replace(idle, is_built=True),))
    assert last_run_of_each_config([waiting, former]) == {"a": (former, built)}
    assert last_run_of_each_config([untested, former]) == {"a": (untested, untested.configs[0])}
    assert last_run_of_each_config([waiting]) == {}


def test_packages_that_the_channel_has_are_not_new() -> None:
    packages = (candidate("small"), candidate("other"))
    held = {"linux-64/small-1-0.conda": "aa", "noarch/other-1-0.conda": "aa"}
    assert packages_new_in_channel(release(*packages, held=held)) == (packages[1],)


def test_packages_without_their_files_in_the_channel_are_new_and_noted() -> None:
    packages, held = (candidate("small"), candidate("other")), {"linux-64/small-1-0.conda": "aa"}
    damaged = release(*packages, held=held, damaged=frozenset(held))
    assert packages_new_in_channel(damaged) == packages
    (note,) = damage_notes(damaged)
    assert note.startswith("linux-64/small-1-0.conda: its file in the channel is missing")
