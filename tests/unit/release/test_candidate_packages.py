"""The packages of a release are those of the configs' last runs, on every platform."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kiln import files
from kiln.model.build_results import PackageReport, TestReport, TestVerdict
from kiln.release.candidate_packages import _reports_of_package
from tests.packages import release_package
from tests.releases import candidate

if TYPE_CHECKING:
    from pathlib import Path


def report(path: Path) -> PackageReport:
    artifact = dataclasses.replace(candidate().artifact, path=path, sha256=files.sha256(path), subdir=path.parent.name)
    tests = TestReport(package="small", verdict=TestVerdict.PASSED)
    return PackageReport(artifact=artifact, build_seconds=1.0, reused=False, tests=tests)


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
