"""Which jobs of a run wait for which, by GitHub's rules: nothing is published unless all builds and tests passed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from kiln.feedstock import rerender, workflow_settings
from kiln.feedstock.workflow_settings import GITHUB
from kiln.recipe.feedstock import Feedstock
from tests.unit.feedstock.test_rerender import a_config
from tests.workflow_run import FAILURE, SKIPPED, SUCCESS, WorkflowRun

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kiln.recipe.feedstock import BuildConfig

SETTINGS = """\
kiln: {publish_to: 'prefix:mine', publish_staging: aside, trusted_publishing: true, build_hours: {cuda: 14},
       gpu_runners: {cuda: a-gpu}}
"""
ALL_IN_ONE, ONE_EACH = 256, 1


@dataclass(slots=True, kw_only=True)
class JobsWithResults(WorkflowRun):
    """A run whose jobs have results without running; ``unfinished`` are the links of chains that another continues."""

    results_of: dict[str, str] = field(default_factory=dict)
    unfinished: tuple[str, ...] = ()

    def job(self, name: str, job: dict[str, Any], values: dict[str, Any]) -> tuple[str, dict[str, str]]:
        assert job["steps"]
        assert values["github"]["ref"] == self.ref
        outputs = {"unfinished": "true"} if name.rpartition("/")[2] in self.unfinished else {"unfinished": ""}
        return self.results_of.get(name.partition("build-2/")[2] or name, SUCCESS), outputs

    @property
    def sha(self) -> str:
        return "c0ffee"


def a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, configs: Sequence[BuildConfig] = (), **changes: Any
) -> JobsWithResults:
    """Return a run of ``configs``, by default a single job and a chain with a GPU's test, in one file or in two."""
    (tmp_path / "build-locally.py").write_text("import kiln\n")
    (tmp_path / "conda-forge.yml").write_text(SETTINGS)
    limits = workflow_settings.all_limits()
    least = limits[GITHUB, "matrix jobs"]._replace(value=most)
    monkeypatch.setattr(workflow_settings, "all_limits", lambda: {**limits, (GITHUB, "matrix jobs"): least})
    configs = configs or [a_config("None", "3.10"), a_config("12.9", "3.10")]
    assert rerender.write_workflows(Feedstock(root=tmp_path), configs)
    return JobsWithResults(folder=tmp_path / "run", repository=tmp_path, variables={}, **changes)


@pytest.mark.parametrize("most", [ALL_IN_ONE, ONE_EACH])
@pytest.mark.parametrize("unfinished", [(), ("job-1",), ("job-1", "job-2")])
def test_a_chain_takes_as_many_jobs_as_it_needs_and_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, unfinished: tuple[str, ...]
) -> None:
    run = a_run(tmp_path, monkeypatch, most, unfinished=unfinished)
    assert run.run("build.yml") == SUCCESS
    jobs = [name for name, result in run.results.items() if "/job-" in name and result == SUCCESS]
    assert len(jobs) == len(unfinished) + 1
    assert {result for name, result in run.results.items() if "/job-" not in name} == {SUCCESS}
    assert "publish" in run.results


@pytest.mark.parametrize("most", [ALL_IN_ONE, ONE_EACH])
@pytest.mark.parametrize("failed", ["build/1", "chain/1/job-1", "chain/1/job-2", "gpu/1"])
def test_whatever_fails_nothing_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, failed: str
) -> None:
    run = a_run(tmp_path, monkeypatch, most, unfinished=("job-1",), results_of={failed: FAILURE})
    assert run.run("build.yml") == FAILURE
    assert run.results["publish"] == SKIPPED
    if failed.startswith("chain"):
        assert SKIPPED in {run.results.get("gpu"), run.results.get("build-2/gpu")}


@pytest.mark.parametrize("most", [ALL_IN_ONE, ONE_EACH])
@pytest.mark.parametrize(
    ("event", "ref", "result"),
    [
        ("push", "refs/heads/main", SUCCESS),
        ("workflow_dispatch", "refs/heads/main", SUCCESS),
        ("push", "refs/heads/another", SKIPPED),
        ("workflow_dispatch", "refs/tags/main", SKIPPED),
        ("pull_request", "refs/heads/main", SKIPPED),
    ],
)
def test_only_a_push_to_the_main_branch_or_a_person_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, event: str, ref: str, result: str
) -> None:
    run = a_run(tmp_path, monkeypatch, most, event=event, ref=ref)
    assert run.run("build.yml") == SUCCESS
    assert run.results["publish"] == result


@pytest.mark.parametrize("failed", ["", "chain/1/job-1", "warm/2/job-1"])
def test_configs_of_one_compile_wait_for_the_first_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: str
) -> None:
    pythons = ("3.10", "3.11", "3.12")
    configs = [a_config("None", "3.10"), *(a_config(cuda, python) for python in pythons for cuda in ("12.5", "12.9"))]
    run = a_run(tmp_path, monkeypatch, ALL_IN_ONE, configs=configs, results_of={failed: FAILURE} if failed else {})
    assert run.run("build.yml") == (FAILURE if failed else SUCCESS)
    begun = [name for name, result in run.results.items() if name.endswith("job-1") and result != SKIPPED]
    cold, warm = [f"chain/{number}/job-1" for number in (1, 2)], [f"warm/{number}/job-1" for number in (1, 2, 3, 4)]
    assert begun == (cold if failed in cold else [*cold, *warm])
    assert run.results["publish"] == (SKIPPED if failed else SUCCESS)
