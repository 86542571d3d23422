"""The workflow of GitHub Actions builds every config with the least rights, and is kiln's to write or left alone."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from string import Template
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import yaml
from kiln.base.errors import BudgetSpent, NotWritable, RecipeFault
from kiln.cli import main
from kiln.cli.main import run
from kiln.feedstock import pinning, rerender
from kiln.recipe.feedstock import BuildConfig, Feedstock
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path


NAME = ".github/workflows/build.yml"


def a_config(cuda: str, python: str, platform: str = "linux-64", **more: tuple[str, ...]) -> BuildConfig:
    name = f"{platform.replace('-', '_')}_cuda_compiler_version{cuda}python{python}"
    variant = {"cuda_compiler_version": (cuda,), "python": (f"{python}.* *_cpython",), **more}
    return BuildConfig(name=name, platform=platform, variant=variant, pin_run_as_build={})


CONFIGS = (a_config("None", "3.10"), a_config("12.9", "3.10"))


@pytest.fixture
def feedstock(tmp_path: Path) -> Feedstock:
    """A feedstock with the command that the workflow calls, and conda-forge's settings."""
    (tmp_path / "build-locally.py").write_text("import kiln\n")
    return Feedstock(root=tmp_path)


def settings(feedstock: Feedstock, text: str) -> None:
    (feedstock.root / "conda-forge.yml").write_text(text)


def parsed(feedstock: Feedstock, *configs: BuildConfig) -> Any:
    return yaml.load(rerender.planned_workflow(feedstock, configs or CONFIGS).texts[NAME])


def jobs(feedstock: Feedstock, *configs: BuildConfig) -> list[dict[str, Any]]:
    included: list[dict[str, Any]] = parsed(feedstock, *configs)["jobs"]["build"]["strategy"]["matrix"]["include"]
    return included


def steps(feedstock: Feedstock) -> dict[str, Any]:
    return {step["name"]: step for step in parsed(feedstock)["jobs"]["build"]["steps"]}


def test_each_config_is_a_job_named_by_what_varies(feedstock: Feedstock) -> None:
    assert jobs(feedstock) == [
        {"config": CONFIGS[0].name, "name": "no CUDA", "runner": "ubuntu-24.04"},
        {"config": CONFIGS[1].name, "name": "CUDA 12.9", "runner": "ubuntu-24.04"},
    ]
    assert parsed(feedstock)["jobs"]["build"]["strategy"]["fail-fast"] is False


def test_the_build_is_the_command_that_people_use(feedstock: Feedstock) -> None:
    assert steps(feedstock)["Build"]["run"] == 'python3 build-locally.py "$CONFIG"'
    assert steps(feedstock)["Check out"]["with"] == {"persist-credentials": False}
    assert parsed(feedstock)["jobs"]["build"]["env"]["CONFIG"] == "${{ matrix.config }}"


def test_every_action_is_named_by_a_commit_and_its_version(feedstock: Feedstock) -> None:
    text = rerender.planned_workflow(feedstock, CONFIGS).texts[NAME]
    uses = re.findall(r"uses: (.*)", text)
    assert len(uses) == 3
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action) for action in uses)


def test_logs_and_report_are_kept_whatever_becomes_of_the_build(feedstock: Feedstock) -> None:
    kept = steps(feedstock)["Keep the report and the logs"]
    assert kept["if"] == "${{ always() }}"
    assert kept["with"]["path"].split() == ["build_artifacts/logs/", "build_artifacts/reports/"]
    assert "Keep the packages" not in steps(feedstock)


def test_the_settings_of_conda_forge_yml_hold(feedstock: Feedstock) -> None:
    settings(
        feedstock,
        "github_actions: {timeout_minutes: 720, max_parallel: 4, cancel_in_progress: false, free_disk_space: [docker],"
        " artifact_retention_days: 3, store_build_artifacts: true, self_hosted: true}\n",
    )
    whole, job = parsed(feedstock), parsed(feedstock)["jobs"]["build"]
    assert job["timeout-minutes"] == 720
    assert job["strategy"]["max-parallel"] == 4
    assert whole["concurrency"]["cancel-in-progress"] is False
    assert set(whole[True]) == {"push", "workflow_dispatch"}  # YAML 1.1 reads the key `on` as true
    assert "docker system prune" in steps(feedstock)["Remove images from the disk"]["run"]
    assert steps(feedstock)["Keep the packages"]["with"]["retention-days"] == 3
    assert {job["runner"] for job in jobs(feedstock)} == {"self-hosted"}


def test_settings_for_platforms_hold_for_their_jobs(feedstock: Feedstock) -> None:
    settings(
        feedstock,
        "provider: {linux_64: github_actions, linux_aarch64: github_actions}\n"
        "workflow_settings:\n"
        "  free_disk_space: [{os: linux, value: quick}, {platform: linux_aarch64, value: max}]\n"
        "  pagefile_size: [{platform: [linux_64, win_64], value: 8}, {provider: azure, value: 4}]\n"
        "  store_build_artifacts: [{platform: linux_aarch64, value: true}]\n"
        "github_actions: {store_build_artifacts: true, free_disk_space: false}\n",
    )
    configs = [a_config("None", "3.10"), a_config("None", "3.10", "linux-aarch64")]
    native, arm = jobs(feedstock, *configs)
    assert (native["free"], native["swap"], native["keep"]) == ("quick", 8, False)
    assert (arm["free"], arm["swap"], arm["keep"]) == ("max", 0, True)
    by_name = {step["name"]: step for step in parsed(feedstock, *configs)["jobs"]["build"]["steps"]}
    assert by_name["Make room on the disk"]["if"] == "${{ matrix.free != 'skip' }}"
    assert by_name["Remove images from the disk"]["if"] == "${{ matrix.free == 'max' }}"
    assert by_name["Add swap"]["if"] == "${{ matrix.swap > 0 }}"
    assert by_name["Keep the packages"]["if"] == "${{ matrix.keep }}"


def test_one_value_holds_for_all_jobs(feedstock: Feedstock) -> None:
    settings(feedstock, "workflow_settings: {free_disk_space: quick, store_build_artifacts: true}\n")
    assert {job["free"] for job in jobs(feedstock)} == {"quick"}
    assert "if" not in steps(feedstock)["Keep the packages"]
    assert "Remove images from the disk" not in steps(feedstock)
    assert "Add swap" not in steps(feedstock)


def test_secrets_branch_depth_and_options_of_containers_reach_the_build(feedstock: Feedstock) -> None:
    settings(feedstock, "secrets: [MY_TOKEN]\nupload_on_branch: main\nclone_depth: 0\ndocker: {run_args: --gpus all}\n")
    whole, job = parsed(feedstock), parsed(feedstock)["jobs"]["build"]
    assert steps(feedstock)["Build"]["env"] == {"MY_TOKEN": "${{ secrets.MY_TOKEN }}"}
    assert steps(feedstock)["Check out"]["with"] == {"persist-credentials": False, "fetch-depth": 0}
    assert whole[True]["push"] == {"branches": ["main"]}
    assert whole[True]["pull_request"] is None
    assert job["env"]["UPLOAD_ON_BRANCH"] == "main"
    assert job["env"]["CONDA_FORGE_DOCKER_RUN_ARGS"] == "--gpus all"


def test_without_settings_conda_smithys_defaults_hold(feedstock: Feedstock) -> None:
    whole, job = parsed(feedstock), parsed(feedstock)["jobs"]["build"]
    assert job["timeout-minutes"] == 360
    assert "max-parallel" not in job["strategy"]
    assert whole["concurrency"]["cancel-in-progress"] is True
    assert set(whole[True]) == {"push", "pull_request", "workflow_dispatch"}
    assert "Make room on the disk" not in steps(feedstock)
    # The build stops before its job does, so that its logs are kept.
    assert steps(feedstock)["Build"]["timeout-minutes"] < job["timeout-minutes"]


def test_a_variant_may_choose_its_runner(feedstock: Feedstock) -> None:
    large = a_config("12.9", "3.10", github_actions_labels=("cirun-large",))
    hosted = a_config("None", "3.10", github_actions_labels=("hosted",))
    assert [job["runner"] for job in jobs(feedstock, large, hosted)] == ["cirun-large", "ubuntu-24.04"]


def test_only_configs_that_github_runs_are_in_it(feedstock: Feedstock) -> None:
    settings(feedstock, "provider: {linux_64: github_actions, linux_aarch64: github_actions, osx_64: azure}\n")
    platforms = ("linux-64", "linux-aarch64", "osx-64")
    result = jobs(feedstock, *(a_config("None", "3.10", platform) for platform in platforms))
    assert [job["runner"] for job in result] == ["ubuntu-24.04", "ubuntu-24.04-arm"]


@pytest.mark.parametrize("provider", ["azure", "null"])
def test_a_feedstock_that_github_does_not_build_has_no_workflow(feedstock: Feedstock, provider: str) -> None:
    settings(feedstock, f"provider: {{linux_64: {provider}}}\n")
    assert rerender.planned_workflow(feedstock, CONFIGS) == rerender.PlannedWorkflow()


def test_a_feedstock_without_the_command_has_no_workflow(feedstock: Feedstock) -> None:
    (feedstock.root / "build-locally.py").write_text("import subprocess\n")
    assert not rerender.planned_workflow(feedstock, CONFIGS).texts, "it is not kiln's"
    (feedstock.root / "build-locally.py").unlink()
    (line,) = rerender.write_workflows(feedstock, CONFIGS)
    assert line.startswith(f"no {NAME}: it runs kiln's build-locally.py, which this feedstock lacks")
    assert not (feedstock.root / ".github").exists()


def test_it_is_written_once_follows_the_matrix_and_goes_with_it(feedstock: Feedstock) -> None:
    assert rerender.workflow_drift(feedstock, CONFIGS[:1])[:2] == ["--- /dev/null", f"+++ {NAME}"]
    assert rerender.write_workflows(feedstock, CONFIGS[:1]) == [f"{NAME}: added"]
    assert rerender.workflow_drift(feedstock, CONFIGS[:1]) == rerender.write_workflows(feedstock, CONFIGS[:1]) == []
    assert f'+          - config: "{CONFIGS[1].name}"' in rerender.workflow_drift(feedstock, CONFIGS)
    assert rerender.write_workflows(feedstock, CONFIGS) == [f"{NAME}: changed"]
    assert rerender.workflow_drift(feedstock, ())[1] == "+++ /dev/null"
    assert rerender.write_workflows(feedstock, ()) == [f"{NAME}: removed"]
    assert not (feedstock.root / NAME).exists()


@pytest.mark.parametrize("text", ["name: mine\n", "", f"\n{rerender.MARKER}\n"])
def test_a_file_that_kiln_did_not_write_is_left_alone(feedstock: Feedstock, text: str) -> None:
    (feedstock.root / NAME).parent.mkdir(parents=True)
    (feedstock.root / NAME).write_text(text)
    assert "left alone: kiln did not write it" in rerender.write_workflows(feedstock, CONFIGS)[0]
    assert (feedstock.root / NAME).read_text() == text
    assert rerender.workflow_drift(feedstock, CONFIGS) == []


@pytest.mark.parametrize("named", [NAME, ".github/workflows", ".github"])
def test_a_feedstock_can_keep_its_own(feedstock: Feedstock, named: str) -> None:
    rerender.write_workflows(feedstock, CONFIGS)
    settings(feedstock, f"skip_render:\n- {named}\n")
    changed = (*CONFIGS, a_config("13.0", "3.10"))
    assert "skip_render" in rerender.write_workflows(feedstock, changed)[0]
    assert rerender.workflow_drift(feedstock, changed) == []


def test_configs_are_not_built_twice_next_to_conda_smithys_workflow(feedstock: Feedstock) -> None:
    smithys = feedstock.root / ".github/workflows/conda-build.yml"
    smithys.parent.mkdir(parents=True)
    smithys.touch()
    assert "remove one of the two" in rerender.write_workflows(feedstock, CONFIGS)[0]
    assert not (feedstock.root / NAME).exists()


def many(number: int) -> list[BuildConfig]:
    return [replace(CONFIGS[1], name=f"linux_64_{index:03}") for index in range(number)]


def files_of(feedstock: Feedstock, *configs: BuildConfig) -> dict[str, Any]:
    """Return all planned workflows by the names of their files."""
    texts = rerender.planned_workflow(feedstock, configs).texts
    assert NAME in texts
    return {path.rpartition("/")[2]: yaml.load(text) for path, text in texts.items()}


def test_more_configs_than_one_matrix_may_have_are_built_by_several_files(feedstock: Feedstock) -> None:
    lines = rerender.write_workflows(feedstock, many(600))
    folder = feedstock.root / ".github/workflows"
    assert lines == [f".github/workflows/{name}: added" for name in ("build.yml", "build-2.yml", "build-3.yml")]
    texts = list(files_of(feedstock, *many(600)).values())
    included = [text["jobs"]["build"]["strategy"]["matrix"]["include"] for text in texts]
    assert [len(configs) for configs in included] == [256, 256, 88]
    assert len({job["config"] for configs in included for job in configs}) == 600
    assert rerender.workflow_drift(feedstock, many(600)) == []
    assert f"+++ {NAME.replace('build.yml', 'build-2.yml')}" in "\n".join(rerender.workflow_drift(feedstock, many(300)))
    (folder / "build-9.yml").write_text("name: another\n")
    assert rerender.write_workflows(feedstock, many(2)) == [
        f"{NAME}: changed",
        *(f".github/workflows/{name}: removed" for name in sorted(("build-2.yml", "build-3.yml"))),
    ]
    assert sorted(path.name for path in folder.iterdir()) == ["build-9.yml", "build.yml"]


@pytest.mark.parametrize("number", [256, 257, 1000])
def test_all_files_are_one_run_of_which_one_job_publishes(feedstock: Feedstock, number: int) -> None:
    settings(feedstock, f"{PUBLISH}secrets: [MY_TOKEN]\n")
    texts = files_of(feedstock, *many(number))
    first, *others = texts.values()
    calls = [f"build-{index}" for index in range(2, -(-number // 256) + 1)]
    assert list(texts) == ["build.yml", *(f"{name}.yml" for name in calls)]
    assert list(first["jobs"]) == ["build", "gpu", *calls, "publish"]
    assert first["jobs"]["publish"]["needs"] == ["build", "gpu", *calls]
    for name, other in zip(calls, others, strict=True):
        call = first["jobs"][name]
        assert call["uses"] == f"./.github/workflows/{name}.yml"
        assert call["secrets"] == {"MY_TOKEN": "${{ secrets.MY_TOKEN }}"}
        assert other[True] == {"workflow_call": {"secrets": {"MY_TOKEN": {"required": False}}}}
        assert "concurrency" not in other  # it would cancel the run that calls
        assert list(other["jobs"]) == ["build", "gpu"]
    tested = [job["config"] for text in texts.values() for job in text["jobs"]["gpu"]["strategy"]["matrix"]["include"]]
    assert sorted(tested) == sorted(config.name for config in many(number))
    for text in texts.values():
        for job in ("build", "gpu"):
            assert len(text["jobs"][job]["strategy"]["matrix"]["include"]) <= 256
    (download,) = (step for step in first["jobs"]["publish"]["steps"] if "download-artifact" in step.get("uses", ""))
    assert download["with"] == {"pattern": "packages-*", "path": "collected"}
    listed = download.get("env", {}).get("ACTIONS_ARTIFACT_MAX_ARTIFACT_COUNT", 1000)
    assert listed >= 2 * 2 * number  # logs and packages of each config, and of the run's second attempt


def test_chains_of_several_files_are_called_by_each_and_awaited_by_the_publishing_job(feedstock: Feedstock) -> None:
    settings(feedstock, "kiln: {build_hours: 14, publish_to: 'prefix:mine', publish_staging: b, publish_token: A}\n")
    texts = files_of(feedstock, *many(400))
    assert list(texts) == ["build.yml", "build-2.yml", "build-chain.yml"]
    assert [list(texts[name]["jobs"]) for name in ("build.yml", "build-2.yml")] == [
        ["chain", "warm", "build-2", "publish"],
        ["chain", "warm"],
    ]
    for name in ("build.yml", "build-2.yml"):
        for job in ("chain", "warm"):
            assert texts[name]["jobs"][job]["uses"] == "./.github/workflows/build-chain.yml"
    assert texts["build.yml"]["jobs"]["publish"]["needs"] == ["chain", "warm", "build-2"]


def test_a_job_after_a_chain_waits_for_its_success_and_not_for_its_skipped_jobs(feedstock: Feedstock) -> None:
    settings(feedstock, f"{CHAIN}".replace("kiln: {", f"kiln: {{{PUBLISH.partition('{')[2].partition(', gpu')[0]}, "))
    jobs = parsed(feedstock)["jobs"]
    common = "!cancelled() && !contains(needs.*.result, 'failure') && !contains(needs.*.result, 'cancelled')"
    assert jobs["gpu"]["if"] == f"${{{{ {common} && needs.build.result == 'success' }}}}"
    builds = f"{common} && needs.build.result == 'success' && needs.gpu.result == 'success' && contains("
    assert jobs["publish"]["if"].startswith(f"${{{{ {builds}")


def test_all_matrices_together_run_no_more_jobs_at_a_time_than_the_setting(feedstock: Feedstock) -> None:
    settings(feedstock, "github_actions: {max_parallel: 10}\n")
    matrices = [text["jobs"]["build"]["strategy"] for text in files_of(feedstock, *many(600)).values()]
    assert [matrix["max-parallel"] for matrix in matrices] == [3, 3, 3]
    settings(feedstock, "github_actions: {max_parallel: 2}\n")
    matrices = [text["jobs"]["build"]["strategy"] for text in files_of(feedstock, *many(600)).values()]
    assert [matrix["max-parallel"] for matrix in matrices] == [1, 1, 1]


def test_more_files_than_github_calls_are_refused(feedstock: Feedstock) -> None:
    with pytest.raises(RecipeFault, match=r"need 51 workflows in addition to build\.yml"):
        rerender.planned_workflow(feedstock, many(51 * 256 + 1))
    settings(feedstock, "kiln: {build_hours: 330}\n")
    with pytest.raises(RecipeFault, match="need 50041 jobs"):
        rerender.planned_workflow(feedstock, many(834))


def test_a_file_in_the_place_of_a_called_one_is_refused_unless_the_feedstock_keeps_it(feedstock: Feedstock) -> None:
    path = feedstock.root / ".github/workflows/build-2.yml"
    path.parent.mkdir(parents=True)
    path.write_text("name: another\n")
    with pytest.raises(RecipeFault, match=r"build-2\.yml is not kiln's"):
        rerender.write_workflows(feedstock, many(300))
    assert [file.name for file in path.parent.iterdir()] == ["build-2.yml"]
    settings(feedstock, "skip_render: [.github/workflows/build-2.yml]\n")
    assert rerender.write_workflows(feedstock, many(300)) == [f"{NAME}: added"]
    path.write_text(f"{rerender.MARKER}\n")
    assert rerender.workflow_drift(feedstock, many(300)) == []
    assert rerender.write_workflows(feedstock, many(2)) == [f"{NAME}: changed"]
    assert path.exists()


CHAIN = "kiln: {build_hours: {cuda: 14, cpu: 5}, compile_cache_size: 5, gpu_runners: {cuda12.9: gpu-t4}}\n"


def chain_of(feedstock: Feedstock) -> Any:
    texts = rerender.planned_workflow(feedstock, CONFIGS).texts
    assert list(texts) == [NAME, ".github/workflows/build-chain.yml"]
    return yaml.load(texts[".github/workflows/build-chain.yml"])


def test_a_config_that_takes_longer_than_a_job_may_is_built_by_a_chain_of_jobs(feedstock: Feedstock) -> None:
    settings(feedstock, CHAIN)
    whole = parsed(feedstock)["jobs"]
    assert [job["config"] for job in whole["build"]["strategy"]["matrix"]["include"]] == [CONFIGS[0].name]
    assert [(job["config"], job["jobs"]) for job in whole["chain"]["strategy"]["matrix"]["include"]] == [
        (CONFIGS[1].name, 3)  # 14 hours, of which each job has five and a half
    ]
    assert whole["chain"]["uses"] == "./.github/workflows/build-chain.yml"
    jobs = chain_of(feedstock)["jobs"]
    assert list(jobs) == ["job-1", "job-2", "job-3"]
    assert jobs["job-2"]["needs"] == "job-1"
    assert jobs["job-2"]["if"] == "${{ needs.job-1.outputs.unfinished == 'true' }}"
    by_name = [{step["name"]: step for step in job["steps"]} for job in jobs.values()]
    handed_on = [steps.get("Hand on what was made", {}).get("with", {}).get("name") for steps in by_name]
    taken_over = [steps.get("What the job before has made", {}).get("with", {}).get("name") for steps in by_name]
    assert handed_on == ["handover-${{ inputs.config }}-1", "handover-${{ inputs.config }}-2", None]
    assert taken_over == [None, *handed_on[:-1]]
    for number, steps in enumerate(by_name, 1):
        assert "--budget" in steps["Build"]["run"]
        assert f"code == {BudgetSpent.exit_code} && JOBS > {number}" in steps["Build"]["run"]
        assert "${{" not in steps["Build"]["run"]


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ('- {match: {cuda_compiler_version: "12.9"}, hours: 10}', 2),
        ('- {match: {cuda_compiler_version: "12.9"}, hours: 3, cores: 32}', 5),  # 24 hours on the four of the runner
        ("- {cores: 32}", 3),  # those of the group, as without a size
    ],
)
def test_a_chain_is_as_long_as_the_sizes_of_the_fleet_say(feedstock: Feedstock, sizes: str, count: int) -> None:
    settings(feedstock, CHAIN)
    (feedstock.root / "fleet-sizes.yml").write_text(f"{sizes}\n")
    assert parsed(feedstock)["jobs"]["chain"]["strategy"]["matrix"]["include"][0]["jobs"] == count


def test_hours_of_a_size_that_github_does_not_allow_are_refused_by_their_name(feedstock: Feedstock) -> None:
    (feedstock.root / "fleet-sizes.yml").write_text("- {hours: 200, cores: 32}\n")
    with pytest.raises(RecipeFault, match=r"hours in fleet-sizes.yml or the recipe: 1600 is more than 840"):
        rerender.planned_workflow(feedstock, CONFIGS)


def test_a_chain_has_the_permissions_of_a_reader_and_named_secrets_alone(feedstock: Feedstock) -> None:
    settings(feedstock, f"{CHAIN}secrets: [MY_TOKEN]\n")
    assert chain_of(feedstock)["permissions"] == {"contents": "read"}
    assert parsed(feedstock)["jobs"]["chain"]["secrets"] == {"MY_TOKEN": "${{ secrets.MY_TOKEN }}"}
    build = [step for step in chain_of(feedstock)["jobs"]["job-1"]["steps"] if step["name"] == "Build"]
    assert build[0]["env"] == {"JOBS": "${{ inputs.jobs }}", "MY_TOKEN": "${{ secrets.MY_TOKEN }}"}


def test_the_chain_goes_when_no_config_needs_it(feedstock: Feedstock) -> None:
    settings(feedstock, CHAIN)
    rerender.write_workflows(feedstock, CONFIGS)
    assert rerender.workflow_drift(feedstock, CONFIGS) == []
    settings(feedstock, "")
    assert rerender.write_workflows(feedstock, CONFIGS) == [
        f"{NAME}: changed",
        ".github/workflows/build-chain.yml: removed",
    ]


def test_compiled_actions_are_kept_between_runs_by_what_they_depend_on(feedstock: Feedstock) -> None:
    settings(feedstock, CHAIN)
    kept = steps(feedstock)["Compiled actions of earlier runs"]["with"]
    assert kept["path"] == "build_artifacts/compile-cache"
    assert kept["key"].startswith("compile-${{ matrix.group }}-${{ hashFiles(")
    assert steps(feedstock)["Build"]["run"] == 'python3 build-locally.py "$CONFIG" --cache-size 5GB'
    assert jobs(feedstock)[0]["group"] == "cpu"


def test_a_job_with_a_gpu_tests_what_another_has_built(feedstock: Feedstock) -> None:
    settings(feedstock, CHAIN)
    gpu = parsed(feedstock)["jobs"]["gpu"]
    assert gpu["needs"] == ["build", "chain"]
    assert [(job["config"], job["runner"]) for job in gpu["strategy"]["matrix"]["include"]] == [
        (CONFIGS[1].name, "gpu-t4")
    ]
    assert parsed(feedstock)["jobs"]["chain"]["strategy"]["matrix"]["include"][0]["keep"] is True
    assert gpu["steps"][-1]["run"] == ".venv/bin/python -m kiln test packages/*/*.conda"


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("cuda: x86", ["x86"]),
        ("cuda: x86, cuda-linux-aarch64: arm", ["x86", "arm"]),
        ("cuda12.9: twelve, cuda: x86, cuda12.9-linux-aarch64: arm, cuda-linux-aarch64: another", ["twelve", "arm"]),
        ("cuda-linux-aarch64: arm", ["arm"]),
        ("cuda13.0: x86", []),
    ],
)
def test_packages_are_tested_on_a_gpu_of_their_platform(feedstock: Feedstock, labels: str, expected: list[str]) -> None:
    provider = "provider: {linux_64: github_actions, linux_aarch64: github_actions}\n"
    settings(feedstock, f"{provider}kiln: {{gpu_runners: {{{labels}}}}}\n")
    configs = [a_config("12.9", "3.10"), a_config("12.9", "3.10", "linux-aarch64")]
    gpu = parsed(feedstock, *configs)["jobs"].get("gpu", {"strategy": {"matrix": {"include": []}}})
    assert [job["runner"] for job in gpu["strategy"]["matrix"]["include"]] == expected


@pytest.mark.parametrize("key", ["cuda", "cuda12.9", "cuda-linux-aarch64", "cuda12.9-linux-aarch64"])
def test_hours_hold_for_a_platform_or_for_all(feedstock: Feedstock, key: str) -> None:
    settings(feedstock, f"provider: {{linux_aarch64: github_actions}}\nkiln: {{build_hours: {{{key}: 14, cpu: 1}}}}\n")
    config = a_config("12.9", "3.10", "linux-aarch64")
    assert parsed(feedstock, config)["jobs"]["chain"]["strategy"]["matrix"]["include"][0]["jobs"] == 3


def test_a_value_cannot_become_an_expression(feedstock: Feedstock) -> None:
    with pytest.raises(RecipeFault, match="expression of GitHub Actions"):
        rerender.planned_workflow(feedstock, (a_config("${{ secrets.TOKEN }}", "3.10"),))


def test_nothing_is_written_outside_the_feedstock(
    feedstock: Feedstock, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (feedstock.root / ".github").symlink_to(outside)
    with pytest.raises(NotWritable):
        rerender.write_workflows(feedstock, CONFIGS)
    assert list(outside.iterdir()) == []


PUBLISH = (
    "kiln: {publish_to: 'prefix:mine', publish_staging: aside, publish_token: PREFIX_API_KEY, "
    "gpu_runners: {cuda: gpu-t4}}\n"
)


def test_the_main_branch_publishes_after_all_builds_and_tests_with_a_token_of_one_job(feedstock: Feedstock) -> None:
    settings(feedstock, f"{PUBLISH}upload_on_branch: release\n")
    whole = parsed(feedstock)
    publish = whole["jobs"]["publish"]
    assert publish["needs"] == ["build", "gpu"]
    events, _, branch = publish["if"].removeprefix("${{ ").removesuffix(" }}").partition(" && ")
    assert events == """contains(fromJSON('["push", "workflow_dispatch"]'), github.event_name)"""
    assert branch == "github.ref == 'refs/heads/release'"
    assert "permissions" not in publish
    assert publish["environment"] == "release"
    by_name = {step["name"]: step for step in publish["steps"]}
    assert by_name["Collect"]["run"] == ".venv/bin/python -m kiln collect collected"
    assert by_name["Publish"]["env"] == {
        "CHANNEL": "prefix:mine",
        "STAGING": "aside",
        "PREFIX_API_KEY": "${{ secrets.PREFIX_API_KEY }}",
    }
    assert whole["concurrency"]["cancel-in-progress"] == "${{ github.ref != 'refs/heads/release' }}"
    text = rerender.planned_workflow(feedstock, CONFIGS).texts[NAME]
    assert text.count("secrets.") == 1
    kept = steps(feedstock)["Keep the packages"]
    assert "if" not in kept
    assert "build_artifacts/report.json" in kept["with"]["path"].split()
    assert "report --json >build_artifacts/report.json" in steps(feedstock)["Report"]["run"]


def publishing_step(whole: Any) -> Any:
    (step,) = (step for step in whole["jobs"]["publish"]["steps"] if step["name"] == "Publish")
    return step


@pytest.mark.processes
def test_configs_that_other_services_build_are_not_missing_from_the_publication(feedstock: Feedstock) -> None:
    settings(
        feedstock,
        "provider: {linux_64: github_actions, osx_64: azure}\n"
        "kiln: {publish_to: 'prefix:mine', publish_staging: aside, trusted_publishing: true}\n",
    )
    others = [a_config("None", python, "osx-64") for python in ("3.11", "3.10")]
    step = publishing_step(parsed(feedstock, *CONFIGS, *others))
    script = step["run"].replace(".venv/bin/python -m kiln publish", "printf '%s\\n'")
    words = subprocess.run(
        ("bash", "-euc", script), env={**os.environ, **step["env"]}, text=True, capture_output=True, check=True
    ).stdout.splitlines()
    options = main.command_parser_and_module("publish")[0].parse_args(words)
    assert options.partial == sorted(config.name for config in others)
    assert (options.to, options.staging) == ("prefix:mine", "aside")


def test_the_publishing_job_of_a_trusting_server_has_an_identity_and_no_secret(feedstock: Feedstock) -> None:
    settings(feedstock, "kiln: {publish_to: 'prefix:mine', publish_staging: aside, trusted_publishing: true}\n")
    whole = parsed(feedstock)
    publish = whole["jobs"]["publish"]
    assert publish["permissions"] == {"contents": "read", "id-token": "write"}
    assert publish["environment"] == "release"
    assert whole["permissions"] == {"contents": "read"}
    assert "permissions" not in whole["jobs"]["build"]
    assert publishing_step(whole)["env"] == {"CHANNEL": "prefix:mine", "STAGING": "aside"}
    assert publish["steps"][-1]["with"]["path"] == "build_artifacts/publications/"
    text = rerender.planned_workflow(feedstock, CONFIGS).texts[NAME]
    assert text.count("id-token") == 1
    assert "secrets." not in text


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ("publish_to: 'prefix:mine', publish_staging: aside, publish_token: A", ["prefix:mine", "aside"]),
        ("publish_to: 'anaconda:me', publish_staging: a-label, publish_token: A", ["anaconda:me", "a-label"]),
        ("publish_to: 's3://bucket/x', publish_token: [AWS_ACCESS_KEY_ID, A]", ["s3://bucket/x", None]),
    ],
)
def test_the_publishing_jobs_command_has_all_that_its_channel_needs(
    feedstock: Feedstock, own: str, words: list[str | None]
) -> None:
    settings(feedstock, f"kiln: {{{own}}}\n")
    step = publishing_step(parsed(feedstock))
    expanded = Template(step["run"].replace('"', "")).substitute(step["env"]).split()
    assert expanded[:4] == [".venv/bin/python", "-m", "kiln", "publish"]
    options = main.command_parser_and_module("publish")[0].parse_args(expanded[4:])
    assert [options.to, options.staging] == words
    secrets = [name for name, value in step["env"].items() if value == f"${{{{ secrets.{name} }}}}"]
    assert ", ".join(secrets) in own
    assert len(secrets) == len(step["env"]) - len([word for word in words if word])


REFUSED = [
    ("kiln: {compile_cache_size: 11}", "compile_cache_size: 11 is not between 0 and 10"),
    ("kiln: {build_hours: 9}\ngithub_actions: {timeout_minutes: 40}", "a chain needs jobs of more than 60"),
    ("kiln: {build_hours: {cuda: 841}}", "build_hours: 841 is more than 840"),
    ("kiln: {build_hours: {cuda: 1000000000}}", "build_hours: 1000000000 is more than 840"),
    ("kiln: {gpu_runners: {cuda: '${{ x }}'}}", "is an expression of GitHub Actions"),
    ("upload_on_branch: '${{ secrets.TOKEN }}'", "is an expression of GitHub Actions"),
    ("docker: {run_args: '${{ secrets.TOKEN }}'}", "is an expression of GitHub Actions"),
    ("kiln: {build_hour: 9}", "unknown setting 'kiln.build_hour'"),
    ("github_actions: 5", "github_actions"),
    ("github_actions: {timeout_minutes: soon}", "github_actions"),
    ('github_actions: {triggers: ["push:\\n    x"]}', "github_actions"),
    (
        "github_actions: {triggers: [push, pull_request_target]}",
        "secrets of the repository to the pull requests of others",
    ),
    ("github_actions: {triggers: [push, workflow_run]}", "names a workflow"),
    ("github_actions: {triggers: [push, schedule]}", "needs the times"),
    ("github_actions: {triggers: [push, pul_request]}", "no such event"),
    ("kiln: {publish_to: 'prefix:mine', publish_staging: b}", "publish_token is missing"),
    ("kiln: {publish_to: 'anaconda:..', publish_staging: b, publish_token: A}", "is not a channel of a server"),
    ("kiln: {publish_to: 'prefix:--help', publish_staging: b, publish_token: A}", "is not a channel of a server"),
    ("kiln: {publish_to: 'quetz:https://a.example/../x', publish_staging: b, publish_token: A}", "is not a channel"),
    ("kiln: {publish_to: 's3://b/..', publish_token: A}", "is not a channel of a server"),
    ("kiln: {publish_to: 'prefix:mine', publish_staging: --help, publish_token: A}", "is not another channel"),
    ("kiln: {publish_to: 'prefix:mine', publish_token: A}", "publish_staging is missing"),
    ("kiln: {publish_to: 'prefix:mine', publish_staging: mine, publish_token: A}", "is not another channel"),
    ("kiln: {publish_to: 'prefix:mine', publish_staging: 'a b', publish_token: A}", "is not another channel"),
    ("kiln: {publish_to: 's3://b/c', publish_staging: b, publish_token: A}", "has a folder for staging itself"),
    ("kiln: {publish_to: /folder, publish_token: A}", "is not a channel of a server"),
    ("kiln: {publish_to: 'prefix:a b', publish_token: A}", "is not a channel of a server"),
    ("kiln: {publish_to: 'prefix:mine', publish_staging: b, publish_token: 'A}} x'}", "is not the name of a variable"),
    (
        "kiln: {publish_to: 'prefix:mine', publish_staging: b, publish_token: [A, CHANNEL]}",
        "CHANNEL is a variable of the",
    ),
    ("kiln: {publish_to: 'prefix:mine', publish_staging: b, publish_token: GITHUB_TOKEN}", "is a variable of GitHub"),
    (
        "kiln: {publish_to: 'prefix:mine', publish_staging: b, publish_token: A, publish_environment: '${{ x }}'}",
        "is an expression",
    ),
    (
        "kiln: {publish_to: 'prefix:mine', publish_staging: b, publish_token: A, trusted_publishing: true}",
        "takes the place of publish_token",
    ),
    (
        "kiln: {publish_to: 'anaconda:me', publish_staging: b, trusted_publishing: true}",
        "has no server that trusts CI jobs",
    ),
    (f"{PUBLISH}upload_on_branch: \"x' || true || '\"", "is not a branch"),
]


@pytest.mark.parametrize(("text", "what"), REFUSED)
def test_an_invalid_setting_is_refused(feedstock: Feedstock, text: str, what: str) -> None:
    settings(feedstock, f"{text}\n")
    with pytest.raises(RecipeFault, match=re.escape(what)):
        rerender.planned_workflow(feedstock, CONFIGS)


def test_a_chain_of_which_github_would_start_no_run_is_refused(feedstock: Feedstock) -> None:
    settings(feedstock, "kiln: {build_hours: 600, compile_cache_size: 5}\n")
    assert len(rerender.planned_workflow(feedstock, CONFIGS).texts[".github/workflows/build-chain.yml"]) < 500_000
    settings(feedstock, "kiln: {build_hours: 840, compile_cache_size: 5}\n")
    with pytest.raises(RecipeFault, match=r"build-chain.yml would have \d+ KB: kiln: build_hours needs too many jobs"):
        rerender.planned_workflow(feedstock, CONFIGS)


RESERVED = """
    JOBS CONFIG config CHANNEL GIB sha PATH GITHUB_TOKEN RUNNER_TEMP LD_PRELOAD SHELLOPTS BASHOPTS PS4 PROMPT_COMMAND
    CDPATH PERL5LIB PERL5OPT RUBYOPT NODE_OPTIONS GCONV_PATH GLIBC_TUNABLES OPENSSL_CONF SSL_CERT_FILE TAR_OPTIONS
    DOCKER_CONTEXT GOFLAGS GIT_TEMPLATE_DIR GIT_PROXY_COMMAND MAKEFLAGS CMAKE_TOOLCHAIN_FILE CARGO_HOME
    JAVA_TOOL_OPTIONS _JAVA_OPTIONS XDG_CONFIG_HOME CURL_HOME EDITOR GREP_OPTIONS LESSOPEN NPM_CONFIG_REGISTRY
"""
FREE = """
    MY_TOKEN AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID NETRC GIT_TOKEN CHANNEL_KEY JOBS2 GOOGLE_APPLICATION_CREDENTIALS
    DOCKER_PASSWORD NODE_AUTH_TOKEN CARGO_REGISTRY_TOKEN RESULT
"""


def test_a_secret_cannot_take_the_place_of_a_variable(feedstock: Feedstock) -> None:
    for name in RESERVED.split():
        settings(feedstock, f"secrets: [MY_TOKEN, {name}]\n")
        with pytest.raises(RecipeFault, match=f"secrets: {name} is a variable of") as refused:
            rerender.planned_workflow(feedstock, CONFIGS)
        assert str(refused.value.at) == "conda-forge.yml:1:1"
    settings(feedstock, f"secrets: [{', '.join(FREE.split())}]\n")
    assert steps(feedstock)["Build"]["env"] == {name: f"${{{{ secrets.{name} }}}}" for name in FREE.split()}


@pytest.mark.parametrize(
    ("channel", "setting", "what"),
    [
        ("prefix:mine", "github_actions: {upload_packages: false}", "github_actions.upload_packages is false"),
        ("anaconda:me", "private_upload: true", "private_upload is true"),
    ],
)
def test_a_job_whose_uploads_other_settings_forbid_is_refused(
    feedstock: Feedstock, channel: str, setting: str, what: str
) -> None:
    own = f"kiln: {{publish_to: '{channel}', publish_staging: aside, publish_token: A}}\n"
    settings(feedstock, own)
    assert "publish" in parsed(feedstock)["jobs"]
    settings(feedstock, f"{own}{setting}\n")
    with pytest.raises(RecipeFault, match=what):
        rerender.planned_workflow(feedstock, CONFIGS)


RECIPE = "package:\n  name: small\n  version: 1\nbuild:\n  number: 0\n"
META = "package:\n  name: a\n  version: '1'\nrequirements:\n  host:\n    - zlib\n"


@pytest.mark.parametrize("name", [".ci_support", ".github", ".github/workflows"])
@pytest.mark.parametrize("inner", [False, True])
def test_rerender_writes_and_removes_nothing_through_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, inner: bool
) -> None:
    root = builders.feedstock(tmp_path / "feedstock", RECIPE).root
    (root / "build-locally.py").write_text("import kiln\n")
    elsewhere = root / "docs" if inner else tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious.yaml").write_text("kept\n")
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).symlink_to(elsewhere)
    assert main.run(["-C", str(root), "rerender"]) == NotWritable.exit_code
    said = capsys.readouterr().err
    assert f"{root / name} is a link" in said
    assert str(elsewhere) in said
    assert [path.name for path in elsewhere.iterdir()] == ["precious.yaml"]
    assert name == ".ci_support" or not (root / ".ci_support").exists()


@pytest.mark.parametrize("own_pinning", [False, True])
def test_changes_since_the_last_rerender_are_counted(tmp_path: Path, *, own_pinning: bool) -> None:
    feedstock = builders.feedstock(tmp_path, META, variants="zlib:\n  - '1'\n")
    if own_pinning:
        settings, file = feedstock.root / "conda-forge.yml", feedstock.recipe / "conda_build_config.yaml"
        settings.write_text(f"{settings.read_text()}exclusive_config_file: recipe/own.yaml\n")
        file.rename(feedstock.recipe / "own.yaml")
    assert run(["-C", str(feedstock.root), "rerender"]) == 0
    assert rerender.matrix_difference(feedstock) == ""
    (feedstock.recipe / ("own.yaml" if own_pinning else "conda_build_config.yaml")).write_text("zlib:\n  - '2'\n")
    assert rerender.matrix_difference(feedstock) == "1 changed"
    feedstock.meta.write_text(META.replace("zlib", "zlib {{"))
    assert rerender.matrix_difference(feedstock) == "", "which the build reports"


def test_a_feedstock_that_needs_a_pinning_is_not_compared(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, META, variants="", configs={"linux_64_": "zlib:\n- '1'\n"})
    assert rerender.matrix_difference(feedstock) == ""


def test_own_values_are_compared_where_a_pinning_is_needed(tmp_path: Path) -> None:
    meta = META.replace("zlib", "zlib\n    - python\n    - other")
    feedstock = builders.feedstock(
        tmp_path, meta, variants="zlib:\n  - '1'\n  - '2'\nother:\n  - True\nabsent:\n  - a\n"
    )
    (feedstock.config_folder / "migrations").mkdir(parents=True)
    values = "zlib:\n- '{}'\nother:\n- true\npython:\n- 3.12.* *_cpython\nchannel_targets:\n- conda-forge main\n"
    for number in (1, 2):
        (feedstock.config_folder / f"linux_64_zlib{number}.yaml").write_text(values.format(number))
    assert pinning.keys_without_value(feedstock)
    assert rerender.matrix_difference(feedstock) == ""
    (feedstock.recipe / "conda_build_config.yaml").write_text("zlib:\n  - '1'\n  - '3'\nother:\n  - true\n")
    assert rerender.matrix_difference(feedstock) == "zlib in 1 of 2 configs"
    migration = "migrator_ts: 1\nzlib:\n  - '2'\n"  # it may have changed the value
    (feedstock.config_folder / "migrations" / "zlib2.yaml").write_text(migration)
    assert rerender.matrix_difference(feedstock) == ""
