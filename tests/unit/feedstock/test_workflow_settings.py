"""The rules for every workflow that kiln writes, whatever the settings."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import files, yaml
from kiln.feedstock import workflow_settings
from kiln.feedstock.workflow_settings import GITHUB, MINUTES
from tests.workflow_variants import SETTINGS, written

if TYPE_CHECKING:
    from collections.abc import Iterator


TRUSTED = ("trusted: build.yml", "other systems: build.yml")
Jobs = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def workflows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """All workflows, by their settings and names."""
    folders = written(tmp_path_factory.mktemp("feedstocks"))
    return {
        f"{name}: {path.name}": yaml.load(path.read_text())
        for name, folder in folders.items()
        for path in folder.glob("*.yml")
    }


def steps(jobs: Jobs) -> Iterator[dict[str, Any]]:
    for job in jobs.values():
        yield from job.get("steps", ())


def test_all_kinds_are_there(workflows: dict[str, Any]) -> None:
    jobs = {f"{name}/{job}" for name, whole in workflows.items() for job in whole["jobs"]}
    assert {name.partition(":")[0] for name in workflows} == set(SETTINGS)
    assert {"several: build-2.yml/gpu", "everything: build-chain.yml/job-3", "trusted: build.yml/publish"} <= jobs
    assert {"several: build.yml/build-2", "several: build.yml/publish"} <= jobs
    assert [name for name in jobs if name.endswith("/publish") and "build.yml" not in name] == []


def test_no_value_is_code_in_a_script(workflows: dict[str, Any]) -> None:
    scripts = [step["run"] for whole in workflows.values() for step in steps(whole["jobs"]) if "run" in step]
    assert len(scripts) > 100
    assert [script for script in scripts if "${{" in script] == []


def test_one_job_alone_has_more_than_a_readers_permissions(workflows: dict[str, Any]) -> None:
    for name, whole in workflows.items():
        assert whole["permissions"] == {"contents": "read"}, name
        more = {job: value["permissions"] for job, value in whole["jobs"].items() if "permissions" in value}
        expected = {"publish": {"contents": "read", "id-token": "write"}} if name in TRUSTED else {}
        assert more == expected, name


def test_artifacts_are_those_of_the_same_run(workflows: dict[str, Any]) -> None:
    downloads = [
        step["with"]
        for whole in workflows.values()
        for step in steps(whole["jobs"])
        if "/download-artifact@" in step.get("uses", "")
    ]
    assert len(downloads) > 10
    # With run-id, repository or github-token they could be another repository's.
    assert {name for inputs in downloads for name in inputs} == {"name", "pattern", "path"}


def test_only_packages_and_reports_reach_the_publishing_job(workflows: dict[str, Any]) -> None:
    kept = [
        step["with"]["path"].split()
        for whole in workflows.values()
        for step in steps(whole["jobs"])
        if step["name"] == "Keep the packages"
    ]
    assert kept
    for patterns in kept:
        folder = "build_artifacts/linux-64/"
        assert any(fnmatch(f"{folder}a-1-0.conda", pattern) for pattern in patterns)
        others = (f"{folder}a-1-0.conda.sigs.00", f"{folder}a-1-0.conda.attestation", "build_artifacts/work/a/a.sh")
        assert not [name for name in others for pattern in patterns if fnmatch(name, pattern)]


def test_pull_requests_never_reach_the_publishing_job(workflows: dict[str, Any]) -> None:
    for name in ("everything: build.yml", "trusted: build.yml", "bucket: build.yml", "several: build.yml"):
        condition = workflows[name]["jobs"]["publish"]["if"]
        events, branch = condition.removesuffix(" }}").split(" && ")[-2:]
        assert events.removeprefix("${{ ") == (
            """contains(fromJSON('["push", "workflow_dispatch"]'), github.event_name)"""
        )
        assert branch == "github.ref == 'refs/heads/main'"
        assert "||" not in condition
    events = {event for whole in workflows.values() for event in whole[True]}
    assert events == {"push", "pull_request", "merge_group", "workflow_dispatch", "workflow_call"}


def test_the_workflows_variables_are_reserved(workflows: dict[str, Any]) -> None:
    secrets = {"MY_TOKEN", "PREFIX_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    names = {
        name
        for whole in workflows.values()
        for holder in (*whole["jobs"].values(), *steps(whole["jobs"]))
        for name in holder.get("env", ())
    }
    assert names - secrets == workflow_settings.WORKFLOW


def test_each_limit_has_a_source() -> None:
    rows = files.csv_rows(workflow_settings.TABLE)
    assert rows
    assert all(int(row["value"]) > 0 and row["unit"] and row["source"].startswith("https://") for row in rows)


def test_a_job_lasts_as_long_as_the_service_allows() -> None:
    assert workflow_settings.limit_of_service(GITHUB, "job minutes").value == MINUTES
