"""The GitHub Actions workflow that builds each config in a separate job, with the command that people use.

The settings and their defaults are conda-smithy's (conda_smithy/schema.py, GithubActionsConfig and WorkflowSettings).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import files
from kiln.errors import RecipeFault
from kiln.expand import matrix_settings, workflow_text
from kiln.expand.actions_settings import GITHUB, ActionsSettings
from kiln.expand.ci_support_update_and_drift import unified_diff_lines
from kiln.expand.workflow_text import MARKER
from kiln.lazy_pattern import lazy_pattern
from kiln.variants.cuda_version import compile_group
from kiln.variants.varying_keys import config_labels

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from kiln.model.feedstock import Feedstock
    from kiln.model.matrix_config import BuildConfig

NAME = ".github/workflows/build.yml"
FURTHER = lazy_pattern(r"build-(?:\d+|chain)\.yml")  # the workflows after the first one
SMITHY_NAME = ".github/workflows/conda-build.yml"  # conda-smithy's workflow for the same configs
ENTRY = "build-locally.py"
# https://docs.github.com/actions/reference/runners/github-hosted-runners
RUNNERS = {"linux-64": "ubuntu-24.04", "linux-aarch64": "ubuntu-24.04-arm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowJob:
    """A job of the workflow: its config, a readable name, and the label of its runner.

    ``free`` is how much it removes from the runner's disk, ``swap`` the GiB of its swap file; ``keep`` if it keeps the
    packages as an artifact. ``group`` are the configs that share a compile, ``links`` the number of jobs that the
    config may take, ``gpu`` the label of a runner with a GPU that tests its packages.
    """

    config: str
    name: str
    runner: str
    free: str
    swap: int
    keep: bool
    group: str
    links: int = 1
    gpu: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWorkflow:
    """The planned workflow: its files' texts by their paths, or the existing files (``keep``), and the reason.

    ``skips`` are the paths that the feedstock keeps itself.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    keep: bool = False
    why: str = ""
    skips: Collection[str] = ()


def planned_workflow(feedstock: Feedstock, configs: Iterable[BuildConfig]) -> PlannedWorkflow:
    """Return a feedstock's planned workflow.

    Raises:
        KilnError: conda-forge.yml is invalid.
    """
    settings = ActionsSettings(feedstock.conda_forge_yml)
    configs = list(configs)
    jobs = workflow_jobs(feedstock, configs, settings)
    if any(Path(NAME).is_relative_to(name) for name in settings.skip_render_paths):
        return PlannedWorkflow(keep=True, why=f"{NAME} is left alone: skip_render in conda-forge.yml names it")
    existing = _existing_workflow_text(feedstock)
    if existing is not None and not existing.startswith(MARKER):
        return PlannedWorkflow(keep=True, why=f"{NAME} is left alone: kiln did not write it; name it under skip_render")
    if not jobs:
        return PlannedWorkflow(skips=settings.skip_render_paths)  # GitHub runs no config
    if reason := _no_workflow_reason(feedstock):
        return PlannedWorkflow(why=f"no {NAME}: {reason}", skips=settings.skip_render_paths)
    others = {config.name for config in configs} - {job.config for job in jobs}
    folder = Path(NAME).parent
    files_by_name = workflow_text.workflow_texts(jobs, settings, others=others)
    texts = {(folder / name).as_posix(): text for name, text in files_by_name.items()}
    for name in texts.keys() - {NAME, *settings.skip_render_paths}:
        if not (_existing_workflow_text(feedstock, name) or MARKER).startswith(MARKER):
            raise RecipeFault(
                f"{name} is not kiln's, and {NAME} needs a workflow of that name",
                hint="rename it; or name it under skip_render, if it is to take the place of kiln's",
            )
    return PlannedWorkflow(texts=texts, skips=settings.skip_render_paths)


def _no_workflow_reason(feedstock: Feedstock) -> str:
    """Return why a feedstock can have no workflow; empty when it can."""
    if (feedstock.root / SMITHY_NAME).exists():
        return f"conda-smithy's {SMITHY_NAME} builds these configs; remove one of the two"
    if not has_kiln_build_script(feedstock):
        return f"it runs kiln's {ENTRY}, which this feedstock lacks; kiln init adds it where there is none"
    return ""


def has_kiln_build_script(feedstock: Feedstock) -> bool:
    """Return whether a feedstock's build-locally.py is kiln's, not conda-smithy's or none."""
    path = feedstock.root / ENTRY
    return path.is_file() and re.search(r"\bkiln\b", path.read_text(encoding="utf-8", errors="replace")) is not None


def write_workflows(feedstock: Feedstock, configs: Iterable[BuildConfig]) -> list[str]:
    """Write the workflows, or remove those of kiln's that are no longer needed; return a line for each change.

    Raises:
        NotWritable: a path contains a link.
    """
    workflow = planned_workflow(feedstock, configs)
    lines = [workflow.why] if workflow.why else []
    for name, (existing, text) in _changed_workflows(feedstock, workflow).items():
        path = feedstock.root / name
        files.safe_path_inside(path, feedstock.root)
        if text is None:
            files.remove(path)
            lines.append(f"{name}: removed")
        else:
            files.write_text(path, text)
            lines.append(f"{name}: {'added' if existing is None else 'changed'}")
    return lines


def workflow_drift(feedstock: Feedstock, configs: Iterable[BuildConfig]) -> list[str]:
    """Return unified diffs of the workflows from what ``write_workflows`` writes; empty without a difference."""
    changes = _changed_workflows(feedstock, planned_workflow(feedstock, configs))
    return [line for name, texts in changes.items() for line in unified_diff_lines(name, *texts)]


def _changed_workflows(feedstock: Feedstock, workflow: PlannedWorkflow) -> dict[str, tuple[str | None, str | None]]:
    """Return the texts before and after of the workflows that change, by their paths; other files stay."""
    if workflow.keep:
        return {}
    folder = (feedstock.root / NAME).parent
    names = [
        f"{Path(NAME).parent.as_posix()}/{path.name}" for path in folder.glob("*.yml") if FURTHER.fullmatch(path.name)
    ]
    texts = {
        name: (_existing_workflow_text(feedstock, name), workflow.texts.get(name))
        for name in (NAME, *workflow.texts, *names)
    }
    return {
        name: (existing, text)
        for name, (existing, text) in texts.items()
        if existing != text and (existing is None or existing.startswith(MARKER)) and name not in workflow.skips
    }


def _existing_workflow_text(feedstock: Feedstock, name: str = NAME) -> str | None:
    place = feedstock.root / name
    return place.read_text(encoding="utf-8", errors="replace") if place.is_file() else None


def workflow_jobs(feedstock: Feedstock, configs: Sequence[BuildConfig], settings: ActionsSettings) -> list[WorkflowJob]:
    """Return the configs that GitHub runs, each with a readable name and the label of its runner."""
    runners = {
        f"{job.system}-{job.arch}": RUNNERS[job.build_platform]
        for job in matrix_settings.read_matrix_settings(feedstock.conda_forge_yml).jobs
        if job.provider == GITHUB and job.build_platform in RUNNERS
    }
    hosted_configs = [config for config in configs if config.platform in runners]
    names = config_labels(
        [config.name for config in hosted_configs], {config.name: config.variant for config in hosted_configs}
    )
    default_label = "self-hosted" if settings.self_hosted else "hosted"
    return [
        WorkflowJob(
            config=config.name,
            name=names[config.name],
            runner=_runner_label(config, runners[config.platform], default_label),
            free=settings.free_disk_space_mode(config.platform),
            swap=settings.swap_size(config.platform),
            keep=settings.stores_packages_as_artifact(config.platform)
            or bool(settings.gpu_runner_label(compile_group(config)) or settings.publication),
            group=compile_group(config),
            links=settings.chain_job_count(compile_group(config)),
            gpu=settings.gpu_runner_label(compile_group(config)),
        )
        for config in hosted_configs
    ]


def _runner_label(config: BuildConfig, hosted: str, default_label: str) -> str:
    """Return the label of a config's runner: the variant's, else the default; ``hosted`` is GitHub's own runner."""
    label = config.variant.get("github_actions_labels", (default_label,))[0]
    return hosted if label == "hosted" else label
