"""Packages and environments of a run are compared with those of earlier runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kiln.conda.package_writer import PackageMetadata, write_package
from kiln.conda.provenance.records import ResolvedPackage
from kiln.run.report import contents
from kiln.state.results import ConfigRun, ConfigState
from tests import builders, runs

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.state.results import MatrixReport, PackageReport


def package(folder: Path, build: str, files: dict[str, int], **versions: str) -> PackageReport:
    """A package with files of sizes, tested beside packages of versions."""
    with write_package(folder, PackageMetadata(name="a", version="1", build=build)) as archive:
        for name, size in files.items():
            archive.add_bytes(name, b"x" * size)
    path = folder / f"a-1-{build}.conda"
    report = builders.package_report("a", build_string=build, path=path, size=path.stat().st_size, sha256=build)
    names = (ResolvedPackage(scope="run", name=name, version=version, build="0") for name, version in versions.items())
    return replace(report, tests=replace(report.tests, run_packages=tuple(names)))


def run_with(number: int, *packages: PackageReport, rehearsal: bool = False) -> tuple[MatrixReport, ConfigRun]:
    config = ConfigRun(config="a", state=ConfigState.DONE, group="", packages=packages)
    return replace(runs.worked_through({}), run=number, configs=(config,), rehearsal=rehearsal), config


def test_files_that_were_added_removed_and_resized_are_found(tmp_path: Path) -> None:
    before, _ = run_with(6, package(tmp_path, "0", {"lib/a": 5, "lib/b": 9, "lib/c": 1}))
    run, config = run_with(7, package(tmp_path, "1", {"lib/a": 5, "lib/b": 19, "lib/d": 2}))
    (history,) = contents.package_histories(run, config, [before])
    assert history.files is not None
    assert str(history.files) == "1 added, 1 removed, 1 of another size"
    assert (history.files.added, history.files.removed) == ((("lib/d", 2),), (("lib/c", 1),))
    assert history.files.resized == (("lib/b", 9, 19),)
    assert (history.number, history.runs) == (3, (6, 7))
    assert history.growth == history.sizes[1] - history.sizes[0]


def test_a_package_that_was_replaced_has_no_files_to_compare(tmp_path: Path) -> None:
    old = package(tmp_path, "0", {"lib/a": 5})
    before, _ = run_with(6, replace(old, artifact=replace(old.artifact, size=1)))
    run, config = run_with(7, package(tmp_path, "1", {"lib/a": 5}))
    (history,) = contents.package_histories(run, config, [before])
    assert history.files is None
    assert history.before == 1
    assert contents.package_files(replace(old.artifact, path=tmp_path / "gone.conda")) is None


def test_builds_are_not_compared_with_rehearsals_nor_with_later_runs(tmp_path: Path) -> None:
    made = package(tmp_path, "0", {"lib/a": 5}, numpy="1")
    others = [run_with(5, made, rehearsal=True)[0], run_with(8, made)[0]]
    run, config = run_with(7, made)
    (history,) = contents.package_histories(run, config, others)
    assert (history.runs, history.before, history.growth) == ((7,), None, 0)
    assert contents.environment_changes(run, others) == []


def test_changes_of_the_tests_environments_are_named(tmp_path: Path) -> None:
    before, _ = run_with(6, package(tmp_path, "0", {}, numpy="1", six="1", pip="1"))
    run, config = run_with(7, package(tmp_path, "1", {}, numpy="2", six="1", rich="1"))
    entries = {entry.package.name: entry.change for entry in contents.environment_entries(run, config, [before])}
    assert entries == {"numpy": "was 1", "six": "", "rich": "new"}
    assert contents.removed_from_environment(run, config, [before]) == ["pip 1"]
    changes = [("numpy 1 → 2", 1), ("pip 1 → gone", 1), ("rich new: → 1", 1)]
    assert sorted(contents.environment_changes(run, [before])) == changes
