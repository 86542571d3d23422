"""Packages of CI jobs are accepted with the hashes of their reports alone, and recorded as a run of each config."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import files
from kiln.base.errors import BrokenPackage, HashMismatch, ReleaseRefused, UnknownConfig, UsageError
from kiln.conda.rattler import client
from kiln.publish import rebuild, release
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import ConfigState
from tests import builders
from tests.packages import release_package

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock

META = "package:\n  name: {{ name_of_config }}\n  version: '1'\nbuild:\n  string: h_0\n"
VARIANT = "target_platform:\n- linux-64\nname_of_config:\n- {}\n"


@pytest.fixture
def feedstock(tmp_path: Path) -> Feedstock:
    """A feedstock with two configs."""
    feedstock = builders.feedstock(tmp_path / "feedstock", META, "name_of_config:\n- small\n- other\n")
    feedstock.config_folder.mkdir(exist_ok=True)
    for name, package in (("linux_64_a", "small"), ("linux_64_b", "other")):
        (feedstock.config_folder / f"{name}.yaml").write_text(VARIANT.format(package))
    return feedstock


def job(folder: Path, config: str = "linux_64_a", package: str = "small", **changes: Any) -> Path:
    """Write the folder that a job has saved."""
    path = release_package(folder / "linux-64", package, build="h_0", payload=changes.pop("payload", None))
    artifact = {
        "path": f"/home/runner/work/build_artifacts/linux-64/{path.name}",
        "sha256": files.sha256(path),
        "size": path.stat().st_size,
        "config": config,
        "name": package,
        "version": "1",
        "build_string": "h_0",
        "subdir": "linux-64",
    }
    tests = {
        "package": package,
        "verdict": "passed",
        "commands": 1,
        "install_seconds": 1.0,
        "seconds": 1.0,
        "notes": [],
    }
    made = {"artifact": artifact, "build_seconds": 1.0, "reused": False, "tests": tests}
    entry = {"config": config, "state": changes.pop("state", "done"), "group": "cpu", "packages": [made], "steps": []}
    report = {
        "run": 1,
        "command": "python build-locally.py",
        "started": 10.0,
        "finished": 20.0,
        "machine": "runner",
        "cores": 4,
        "jobs": 1,
        "engine": "rattler-build",
        "container": "docker",
        "commit": "c0ffee",
        "configs": [{**entry, "error": None}],
        **changes,
    }
    (folder / rebuild.REPORT).write_text(json.dumps(report))
    return folder


@pytest.mark.processes
def test_jobs_become_one_matrix(feedstock: Feedstock, tmp_path: Path) -> None:
    job(tmp_path / "jobs" / "a")
    job(tmp_path / "jobs" / "b", "linux_64_b", "other")
    collected = rebuild.import_ci_job_results(feedstock, [tmp_path / "jobs"])
    assert collected == (("linux_64_a", 1), ("linux_64_b", 1))
    runs = release.last_run_of_each_config(release.runs_in_ledger(feedstock))
    assert {name: run.state for name, (_, run) in runs.items()} == {
        "linux_64_a": ConfigState.DONE,
        "linux_64_b": ConfigState.DONE,
    }
    report, run = runs["linux_64_b"]
    assert (report.commit, report.machine) == ("c0ffee", "runner")
    assert run.packages[0].artifact.path == feedstock.artifacts / "linux-64" / "other-1-h_0.conda"
    assert run.packages[0].artifact.path.is_file()
    with Ledger(feedstock.artifacts / "ledger.sqlite") as ledger:
        assert ledger.stored_artifact("linux-64/small-1-h_0.conda") is not None


@pytest.mark.processes
def test_the_channel_is_indexed_once_for_all_jobs(
    feedstock: Feedstock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    call = client.run_operation

    def counted(function: str, **arguments: Any) -> Any:
        calls.append(function)
        return call(function, **arguments)

    monkeypatch.setattr(client, "run_operation", counted)
    for config, package in (("linux_64_a", "small"), ("linux_64_b", "other")):
        job(tmp_path / "jobs" / config, config, package)
    rebuild.import_ci_job_results(feedstock, [tmp_path / "jobs"])
    assert calls == ["index"]
    index = json.loads((feedstock.artifacts / "linux-64" / "repodata.json").read_bytes())
    assert sorted(index["packages.conda"]) == ["other-1-h_0.conda", "small-1-h_0.conda"]


@pytest.mark.processes
def test_what_was_collected_before_a_refused_job_is_indexed(feedstock: Feedstock, tmp_path: Path) -> None:
    job(tmp_path / "jobs" / "a")
    folder = job(tmp_path / "jobs" / "b", "linux_64_b", "other")
    (folder / "linux-64" / "other-1-h_0.conda").write_bytes(b"another")
    with pytest.raises(HashMismatch):
        rebuild.import_ci_job_results(feedstock, [tmp_path / "jobs"])
    index = json.loads((feedstock.artifacts / "linux-64" / "repodata.json").read_bytes())
    assert list(index["packages.conda"]) == ["small-1-h_0.conda"]


@pytest.mark.processes
def test_a_package_of_two_configs_stays_as_the_first_has_made_it(feedstock: Feedstock, tmp_path: Path) -> None:
    (feedstock.config_folder / "linux_64_b.yaml").write_text(VARIANT.format("small"))
    first = job(tmp_path / "jobs" / "a") / "linux-64" / "small-1-h_0.conda"
    job(tmp_path / "jobs" / "b", "linux_64_b", "small", payload={"share/other": b"x"})
    expected = first.read_bytes()
    rebuild.import_ci_job_results(feedstock, [tmp_path / "jobs"])
    assert (feedstock.artifacts / "linux-64" / "small-1-h_0.conda").read_bytes() == expected


def test_a_package_that_another_config_renders_is_refused(feedstock: Feedstock, tmp_path: Path) -> None:
    with pytest.raises(BrokenPackage, match=r"with linux-64/other-1-h_0\.conda, which it does not render"):
        rebuild.import_ci_job_results(feedstock, [job(tmp_path / "a", package="other")])
    assert release.runs_in_ledger(feedstock) == ()


def test_a_package_that_is_not_the_one_of_the_report_is_refused(feedstock: Feedstock, tmp_path: Path) -> None:
    folder = job(tmp_path / "a")
    (folder / "linux-64" / "small-1-h_0.conda").write_bytes(b"another")
    with pytest.raises(HashMismatch, match="corrupt"):
        rebuild.import_ci_job_results(feedstock, [folder])
    assert release.runs_in_ledger(feedstock) == ()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"configs": []}', '{"configs": [{}]}', "[" * 100_000])
def test_an_invalid_report_is_refused(feedstock: Feedstock, tmp_path: Path, text: str) -> None:
    folder = job(tmp_path / "a")
    (folder / rebuild.REPORT).write_text(text)
    with pytest.raises(BrokenPackage, match="is not the report of one config"):
        rebuild.import_ci_job_results(feedstock, [folder])


@pytest.mark.parametrize("changes", [{"state": "failed"}, {"state": "interrupted"}, {"rehearsal": True}])
def test_what_is_not_finished_is_refused(feedstock: Feedstock, tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ReleaseRefused):
        rebuild.import_ci_job_results(feedstock, [job(tmp_path / "a", **changes)])


def test_jobs_of_different_commits_are_refused(feedstock: Feedstock, tmp_path: Path) -> None:
    folders = [job(tmp_path / "a"), job(tmp_path / "b", "linux_64_b", "other", commit="another")]
    with pytest.raises(ReleaseRefused, match="different commits"):
        rebuild.import_ci_job_results(feedstock, folders)


def test_a_config_that_the_feedstock_lacks_is_refused(feedstock: Feedstock, tmp_path: Path) -> None:
    with pytest.raises(UnknownConfig):
        rebuild.import_ci_job_results(feedstock, [job(tmp_path / "a", "linux_64_c")])


def test_a_folder_without_a_job_is_refused(feedstock: Feedstock, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no report\.json"):
        rebuild.import_ci_job_results(feedstock, [tmp_path])
