"""The packages that earlier runs have built, found for their tests."""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING

from kiln.base import files
from kiln.publish import release
from kiln.recipe import feedstock as recipe_feedstock
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import Artifact, ConfigRun, ConfigState, MatrixReport, PackageReport, TestReport, TestVerdict
from tests.unit.fleet.plan.test_limits import SMALL

if TYPE_CHECKING:
    from pathlib import Path


def package(path: Path, content: str) -> PackageReport:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    artifact = Artifact(
        path=path,
        sha256=files.sha256(path),
        size=len(content),
        config="c",
        name="a",
        version="1",
        build_string="0",
        subdir=path.parent.name,
    )
    tests = TestReport(package="a", verdict=TestVerdict.NONE)
    return PackageReport(artifact=artifact, build_seconds=1.0, tests=tests, reused=False)


def run_of(*configs: ConfigRun) -> MatrixReport:
    return MatrixReport(
        run=0,
        command="kiln fleet run",
        started=1.0,
        finished=2.0,
        machine="m",
        cores=1,
        jobs=1,
        engine="rattler-build",
        container="",
        kiln_version="1",
        configs=configs,
    )


def test_the_latest_run_that_built_a_config_counts_if_its_packages_are_unchanged(tmp_path: Path) -> None:
    root = tmp_path / "small"
    shutil.copytree(SMALL, root)
    feedstock = recipe_feedstock.load(root)
    channel = root / "build_artifacts" / "linux-64"
    one, two = package(channel / "one-1-0.conda", "1"), package(channel / "two-1-0.conda", "2")
    done = ConfigRun(config="x", group="g", state=ConfigState.DONE, packages=(one,))
    failed = dataclasses.replace(done, state=ConfigState.FAILED, packages=())
    with Ledger(root / "build_artifacts" / "ledger.sqlite") as ledger:
        for configs in ((done,), (failed, ConfigRun(config="y", group="g", state=ConfigState.CACHED, packages=(two,)))):
            ledger.end_run(ledger.begin_run(run_of(*configs)))
    names = ("x", "y", "z")
    expected = {"x": (one.artifact.path,), "y": (two.artifact.path,)}
    assert release.latest_packages_of_configs(feedstock, names) == expected, "a failure later on took no packages away"
    assert release.latest_packages_of_configs(feedstock, ("y",)) == {"y": (two.artifact.path,)}
    two.artifact.path.write_text("changed")
    assert set(release.latest_packages_of_configs(feedstock, names)) == {"x"}
    one.artifact.path.unlink()
    assert release.latest_packages_of_configs(feedstock, names) == {}
