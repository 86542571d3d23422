"""A package is built again from what its record says, and only from the recipe that it was built from."""

from __future__ import annotations

import dataclasses
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import files
from kiln.base.errors import BrokenPackage, HashMismatch, ProvenanceBroken, ReleaseRefused, UnknownConfig, UsageError
from kiln.conda.rattler import client
from kiln.publish import provenance, rebuild, release
from kiln.publish.rebuild import (
    described_content_difference,
    described_differences,
    feedstock_folder_in_placeholders,
    recorded_build_variables,
    recorded_image_name,
    require_same_recipe,
)
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import ConfigState
from kiln.state.store import cache
from tests import builders
from tests.packages import conda_package, release_package

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock


@pytest.fixture
def feedstock(tmp_path: Path) -> Feedstock:
    return builders.feedstock(tmp_path, "package:\n  name: a\n  version: 1\n")


def record(feedstock: Feedstock, **changes: Any) -> dict[str, Any]:
    """Return the record of a package of a feedstock."""
    texts = {name: name for name in ("config", "container", "engine", "file", "sha256")}
    return {**texts, "image": None, "recipe": cache.recipe_digest(feedstock), **changes}


def test_the_variables_of_a_build_are_those_of_its_record_and_absent_ones_stay_unset() -> None:
    values = {"commit": "c0ffee", "remote": "https://a.org/f", "extra": {"flow_run_id": "7"}, "epoch": 1700000000}
    assert recorded_build_variables(values) == {
        "sha": "c0ffee",
        "remote_url": "https://a.org/f",
        "flow_run_id": "7",
        "SOURCE_DATE_EPOCH": "1700000000",
    }
    assert recorded_build_variables({"commit": None}) == {}


@pytest.mark.parametrize(
    ("image", "name"),
    [(None, None), ("", None), (f"quay.io/a:1@sha256:{'5' * 64}", "quay.io/a:1"), ("a:1@x, b:1@y", None)],
)
def test_the_image_of_a_record_is_used_where_the_run_had_one(image: str | None, name: str | None) -> None:
    assert recorded_image_name({"image": image}) == name


def test_the_recipe_of_the_record_is_accepted(feedstock: Feedstock) -> None:
    require_same_recipe(feedstock, record(feedstock))
    require_same_recipe(feedstock, record(feedstock, extra={}, commit=None))


@pytest.mark.parametrize(
    ("commit", "hint"),
    [("c0ffee", "git checkout c0ffee"), (None, "restore the recipe as it was; its commit was not recorded")],
)
def test_another_recipe_is_refused_with_the_commit_to_check_out(
    feedstock: Feedstock, commit: str | None, hint: str
) -> None:
    former = record(feedstock, commit=commit, file="a-1-0.conda")
    feedstock.meta.write_text("package:\n  name: a\n  version: 2\n")
    with pytest.raises(ProvenanceBroken, match=r"is not the one that a-1-0\.conda was built from") as caught:
        require_same_recipe(feedstock, former)
    assert caught.value.why
    assert caught.value.hint == hint


def test_a_record_that_lacks_fields_is_refused_with_their_names(feedstock: Feedstock) -> None:
    fields = record(feedstock)
    del fields["engine"], fields["container"]
    with pytest.raises(ProvenanceBroken, match="the record lacks container, engine"):
        require_same_recipe(feedstock, fields)


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"engine": None}, "engine"), ({"image": 7}, "image"), ({"commit": ["c"]}, "commit"), ({"extra": "x"}, "extra")],
)
def test_a_record_with_invalid_values_is_refused(feedstock: Feedstock, changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ProvenanceBroken, match=f"the record is invalid: {name} has an invalid value"):
        require_same_recipe(feedstock, record(feedstock, **changes))


META = "package:\n  name: {{ name_of_config }}\n  version: '1'\nbuild:\n  string: h_0\n"
VARIANT = "target_platform:\n- linux-64\nname_of_config:\n- {}\n"


@pytest.fixture
def matrix(tmp_path: Path) -> Feedstock:
    """A matrix with two configs."""
    configs = {"linux_64_a": VARIANT.format("small"), "linux_64_b": VARIANT.format("other")}
    return builders.feedstock(tmp_path / "feedstock", META, "name_of_config:\n- small\n- other\n", configs=configs)


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
    made |= changes.pop("package_fields", {})
    entry = {"config": config, "state": changes.pop("state", "done"), "group": "cpu", "packages": [made], "steps": []}
    entry |= {"started": 11.0, "finished": 19.0}
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
        "phases": {"script": 1.0},
        "configs": [{**entry, "error": None}],
        **changes,
    }
    (folder / rebuild.REPORT).write_text(json.dumps(report))
    return folder


@pytest.mark.processes
def test_jobs_become_one_matrix_that_is_indexed_once(
    matrix: Feedstock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    call = client.run_operation

    def counted(function: str, **arguments: Any) -> Any:
        calls.append(function)
        return call(function, **arguments)

    monkeypatch.setattr(client, "run_operation", counted)
    job(tmp_path / "jobs" / "a")
    job(tmp_path / "jobs" / "b", "linux_64_b", "other")
    collected = rebuild.import_ci_job_results(matrix, [tmp_path / "jobs"])
    assert collected == (("linux_64_a", 1, False), ("linux_64_b", 1, False))
    assert calls == ["index"]
    index = json.loads((matrix.artifacts / "linux-64" / "repodata.json").read_bytes())
    assert sorted(index["packages.conda"]) == ["other-1-h_0.conda", "small-1-h_0.conda"]
    runs = release.last_run_of_each_config(release.runs_in_ledger(matrix))
    assert {name: run.state for name, (_, run) in runs.items()} == {
        "linux_64_a": ConfigState.DONE,
        "linux_64_b": ConfigState.DONE,
    }
    report, run = runs["linux_64_b"]
    assert (report.commit, report.machine) == ("c0ffee", "runner")
    assert (report.started, report.finished) == (10.0, 20.0), "the job's times"
    assert run.packages[0].artifact.path == matrix.artifacts / "linux-64" / "other-1-h_0.conda"
    assert run.packages[0].artifact.path.is_file()
    with Ledger(matrix.artifacts / "ledger.sqlite") as ledger:
        assert ledger.stored_artifact("linux-64/small-1-h_0.conda") is not None


@pytest.mark.processes
def test_a_jobs_log_comes_with_its_packages(matrix: Feedstock, tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    for number, text in ((1, "stopped"), (2, "done")):
        log = folder / "logs" / f"{number:04}" / "linux_64_a.log"
        log.parent.mkdir(parents=True)
        log.write_text(text)
    assert rebuild.import_ci_job_results(matrix, [folder]) == (("linux_64_a", 1, True),)
    shutil.rmtree(folder)
    _, run = release.last_run_of_each_config(release.runs_in_ledger(matrix))["linux_64_a"]
    assert run.log is not None
    assert run.log.read_text() == "done"


@pytest.mark.processes
def test_what_was_collected_before_a_refused_job_is_indexed(matrix: Feedstock, tmp_path: Path) -> None:
    job(tmp_path / "jobs" / "a")
    folder = job(tmp_path / "jobs" / "b", "linux_64_b", "other")
    package = folder / "linux-64" / "other-1-h_0.conda"
    package.write_bytes(b"another")
    with pytest.raises(HashMismatch):
        rebuild.import_ci_job_results(matrix, [tmp_path / "jobs"])
    assert package.exists(), "the folder is the caller's"
    index = json.loads((matrix.artifacts / "linux-64" / "repodata.json").read_bytes())
    assert list(index["packages.conda"]) == ["small-1-h_0.conda"]


@pytest.mark.processes
def test_a_package_of_two_configs_stays_as_the_first_has_made_it(matrix: Feedstock, tmp_path: Path) -> None:
    (matrix.config_folder / "linux_64_b.yaml").write_text(VARIANT.format("small"))
    first = job(tmp_path / "jobs" / "a") / "linux-64" / "small-1-h_0.conda"
    job(tmp_path / "jobs" / "b", "linux_64_b", "small", payload={"share/other": b"x"})
    expected = first.read_bytes()
    rebuild.import_ci_job_results(matrix, [tmp_path / "jobs"])
    package = matrix.artifacts / "linux-64" / "small-1-h_0.conda"
    assert package.read_bytes() == expected
    assert built_by(matrix, package) == ("runner", "linux_64_a", False)


def built_by(matrix: Feedstock, package: Path, *, lost: str = "") -> tuple[str, str, bool]:
    """Return the machine and the config in the record of a package, and whether its times are unknown.

    ``lost`` is a machine whose runs the ledger has no more.
    """
    (matrix.root / "outputs.txt").write_text("*\n")
    runs = release.ConfigsAndRuns.from_feedstock(matrix)
    (candidate,) = runs.assemble_release([package], published={}).candidates
    runs = dataclasses.replace(runs, history=tuple(run for run in runs.history if run.machine != lost))
    report, config, made = provenance.recorded_build_of_candidate(runs, candidate)
    assert made.artifact.sha256 == files.sha256(package)
    return report.machine, config.config, config.started is None


@pytest.mark.processes
def test_a_record_is_of_the_build_that_made_the_file(matrix: Feedstock, tmp_path: Path) -> None:
    (matrix.config_folder / "linux_64_b.yaml").write_text(VARIANT.format("small"))
    second = job(tmp_path / "b", "linux_64_b", "small", payload={"share/other": b"x"}, machine="another runner")
    rebuild.import_ci_job_results(matrix, [second])
    rebuild.import_ci_job_results(matrix, [job(tmp_path / "a")])
    package = matrix.artifacts / "linux-64" / "small-1-h_0.conda"
    assert built_by(matrix, package) == ("another runner", "linux_64_b", False)
    (_, run) = release.last_run_of_each_config(release.runs_in_ledger(matrix))["linux_64_a"]
    assert run.packages[0].tests.notes == ("made and tested by linux_64_b",)
    assert built_by(matrix, package, lost="another runner") == ("runner", "linux_64_b", True)


@pytest.mark.processes
def test_a_file_of_a_config_that_has_left_the_matrix_is_made_again(matrix: Feedstock, tmp_path: Path) -> None:
    (matrix.config_folder / "linux_64_b.yaml").write_text(VARIANT.format("small"))
    digest = {"feedstock": cache.recipe_and_config_digest(matrix, "linux_64_b")}
    second = job(tmp_path / "b", "linux_64_b", payload={"share/other": b"x"}, package_fields=digest)
    rebuild.import_ci_job_results(matrix, [job(tmp_path / "a"), second])
    (matrix.config_folder / "linux_64_a.yaml").unlink()
    package = matrix.artifacts / "linux-64" / "small-1-h_0.conda"

    def is_current() -> bool:
        runs = release.ConfigsAndRuns.from_feedstock(matrix)
        return runs.assemble_release([package], published={}).candidates[0].is_current

    (matrix.root / "outputs.txt").write_text("*\n")
    assert not is_current()
    rebuild.import_ci_job_results(matrix, [second])
    assert is_current()
    assert built_by(matrix, package)[1] == "linux_64_b"


def test_a_package_that_another_config_renders_is_refused(matrix: Feedstock, tmp_path: Path) -> None:
    with pytest.raises(BrokenPackage, match=r"with linux-64/other-1-h_0\.conda, which it does not render"):
        rebuild.import_ci_job_results(matrix, [job(tmp_path / "a", package="other")])
    assert release.runs_in_ledger(matrix) == ()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"configs": []}', '{"configs": [{}]}', "[" * 100_000])
def test_an_invalid_report_is_refused(matrix: Feedstock, tmp_path: Path, text: str) -> None:
    folder = job(tmp_path / "a")
    (folder / rebuild.REPORT).write_text(text)
    with pytest.raises(BrokenPackage, match="is not the report of one config"):
        rebuild.import_ci_job_results(matrix, [folder])


def test_a_report_of_several_configs_is_refused_with_their_number(matrix: Feedstock, tmp_path: Path) -> None:
    file = job(tmp_path / "a") / rebuild.REPORT
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "configs": told["configs"] * 4}))
    with pytest.raises(BrokenPackage, match="is not the report of one config") as caught:
        rebuild.import_ci_job_results(matrix, [tmp_path / "a"])
    assert caught.value.why == "it has 4"


@pytest.mark.parametrize("changes", [{"state": "failed"}, {"state": "interrupted"}, {"rehearsal": True}])
def test_what_is_not_finished_is_refused(matrix: Feedstock, tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ReleaseRefused):
        rebuild.import_ci_job_results(matrix, [job(tmp_path / "a", **changes)])


def test_jobs_of_different_commits_are_refused(matrix: Feedstock, tmp_path: Path) -> None:
    folders = [job(tmp_path / "a"), job(tmp_path / "b", "linux_64_b", "other", commit="another")]
    with pytest.raises(ReleaseRefused, match="different commits"):
        rebuild.import_ci_job_results(matrix, folders)


def test_a_config_that_the_feedstock_lacks_is_refused(matrix: Feedstock, tmp_path: Path) -> None:
    with pytest.raises(UnknownConfig):
        rebuild.import_ci_job_results(matrix, [job(tmp_path / "a", "linux_64_c")])


def test_a_folder_without_a_job_is_refused(matrix: Feedstock, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no report\.json"):
        rebuild.import_ci_job_results(matrix, [tmp_path])


def test_each_file_is_named_with_the_place_where_it_begins_to_differ(tmp_path: Path) -> None:
    common = {"share/same": b"same"}
    one = {"share/text": b"a\nb c\n", "share/binary": b"\xff\x00\x01", "share/mine": b"1", **common}
    two = {"share/text": b"a\nb d\n", "share/binary": b"\xff\x00\x02\x03", "share/yours": b"1", **common}
    first = release_package(tmp_path / "one", "a", payload=one)
    second = release_package(tmp_path / "two", "a", payload=two)
    lines = described_differences(first, second)
    assert "share/text: content (line 2: 'b c' and 'b d')" in lines
    assert "share/binary: content (from byte 2; 3 and 4 bytes)" in lines
    assert "share/mine: only in the first" in lines
    assert "share/yours: only in the second" in lines
    assert not any("same" in line for line in lines)
    assert described_differences(first, first) == ["only the compression: all files are identical"]


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (b"a\n", b"a\nb\n", " (line 2: '' and 'b')"),
        (b"a", b"a\nb", " (1 and 2 lines)"),
        (b"x" * 500 + b"1", b"x" * 500 + b"2", f" (line 1: '...{'x' * 30}1' and '...{'x' * 30}2')"),
        (b"\x1b[31m", b"\x1b[32m", r" (line 1: '\x1b[31m' and '\x1b[32m')"),
        (None, b"a", ""),
    ],
)
def test_the_first_difference_is_shown_without_hidden_characters(
    one: bytes | None, other: bytes | None, words: str
) -> None:
    assert described_content_difference(one, other) == words


def test_the_folder_of_a_build_is_in_the_placeholders_of_a_package(tmp_path: Path) -> None:
    paths = {"paths": [{"_path": "a"}, {"_path": "b", "prefix_placeholder": "/f/s/build_artifacts/work/c/host_env_pl"}]}
    assert feedstock_folder_in_placeholders(conda_package(tmp_path / "a-1-0.conda", {"paths.json": paths})) == "/f/s"
    assert feedstock_folder_in_placeholders(conda_package(tmp_path / "b-1-0.conda", {"paths.json": {"paths": 7}})) == ""
    assert feedstock_folder_in_placeholders(release_package(tmp_path, "c")) == ""
