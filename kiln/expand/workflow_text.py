"""The texts of the workflows, from their templates: no value of a feedstock becomes code in them."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.errors import RecipeFault
from kiln.expand import ci_limits
from kiln.expand.actions_settings import GITHUB, SKIP, ActionsSettings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import jinja2

    from kiln.expand.github_workflow_writer import WorkflowJob

MARKER = "# Written by `kiln rerender`, which leaves a file alone that does not begin with this line."
# Each action by the commit of its release, because a tag can be moved; from the tags of the actions' repositories.
ACTIONS = {
    "checkout": "actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1",
    "cache": "actions/cache@27d5ce7f107fe9357f9df03efb73ab90386fccae # v5.0.5",
    "restore": "actions/cache/restore@27d5ce7f107fe9357f9df03efb73ab90386fccae # v5.0.5",
    "save": "actions/cache/save@27d5ce7f107fe9357f9df03efb73ab90386fccae # v5.0.5",
    "upload": "actions/upload-artifact@bbbca2ddaa5d8feaa63e36b76fdaad77386f024f # v7.0.0",
    "download": "actions/download-artifact@3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c # v8.0.1",
}
CHAIN = "chain"  # the job that calls the workflow with a chain of jobs
FEW, MANY = 2, 10  # attempts of a run whose artifacts are listed by default, and by a setting


def workflow_texts(jobs: Sequence[WorkflowJob], settings: ActionsSettings, *, others: Iterable[str]) -> dict[str, str]:
    """Return the texts of the workflows by their names; each has at most as many configs as a matrix may have.

    The first one calls the others, so that all are one run, in which one job can wait for all builds. ``others`` are
    the configs that other services build.

    Raises:
        RecipeFault: a value contains an expression, or a workflow exceeds a limit of the service.
    """
    others = tuple(others)
    _require_no_expression(jobs, settings, others)
    common = {
        "marker": MARKER,
        "actions": ACTIONS,
        "settings": settings,
        "publication": settings.publication,
        "staging_option": ' --staging "$STAGING"' if settings.publication and settings.publication.staging else "",
        "others": sorted(others),
        "free": {job.free for job in jobs} - {SKIP},
        "swap": any(job.swap for job in jobs),
        "kept": [job.keep for job in jobs],
        "cache_option": f" --cache-size {settings.cache_size}GB" if settings.cache_size else "",
    }
    environment = _template_environment()
    most = ci_limits.limit_of_service(GITHUB, "matrix jobs").value
    parts = [jobs[start : start + most] for start in range(0, len(jobs), most)]
    called = [f"build-{number}" for number in range(2, len(parts) + 1)]
    links = max(job.links for job in jobs)
    _require_within_limit("called workflows", len(called) + (links > 1), "workflows in addition to build.yml")
    _require_within_limit("check runs", sum(_check_run_count(job, links) for job in jobs) + 1, "jobs")
    needs = [*_build_job_names(parts[0]), *_gpu_job_names(parts[0]), *called]
    written = {
        f"{title}.yml": environment.get_template("build.yml.j2" if number == 0 else "part.yml.j2").render(
            **common,
            **_job_template_values(parts[number]),
            title=title,
            called=called,
            max_parallel=_max_parallel_jobs(settings.max_parallel, parts),
            publish_needs=_yaml_list(needs),
            publish_condition=_needs_succeeded_condition(needs, chained_parts=_called_workflows_with_chains(parts)),
            listed_artifacts=_max_listed_artifacts(jobs),
        )
        for number, title in enumerate(("build", *called))
    }
    if links > 1:
        written["build-chain.yml"] = environment.get_template("chain.yml.j2").render(**common, links=links)
    _require_allowed_workflow_sizes(written)
    return written


def _job_template_values(jobs: Sequence[WorkflowJob]) -> dict[str, object]:
    """Return the values of the jobs of one file."""
    builds = _build_job_names(jobs)
    return {
        "single": [job for job in jobs if job.links == 1],
        "chained": [job for job in jobs if job.links > 1],
        "gpus": [job for job in jobs if job.gpu],
        "gpu_needs": _yaml_list(builds),
        "gpu_condition": _needs_succeeded_condition(builds, chained_parts=()),
    }


def _max_parallel_jobs(most: int, parts: Sequence[Sequence[WorkflowJob]]) -> int:
    """Return how many jobs of each matrix may run at a time, so that all matrices together keep to the setting."""
    return most and max(1, most // sum(len(_build_job_names(part)) for part in parts))


def _needs_succeeded_condition(needs: Sequence[str], *, chained_parts: Collection[str]) -> str:
    """Return the condition of a job that all of its ``needs`` have succeeded; empty where GitHub's own one says that.

    GitHub skips a job if any job that it depends on was skipped, however far away, as the last jobs of a chain are
    that was faster than expected. A status function in the condition turns that off. A chain may count as skipped, for
    nothing but that skips jobs of it.

    Source: "Using jobs in a workflow" of GitHub's documentation, and actions/runner's issues 491 and 2205.
    """
    certain = [name for name in needs if name != CHAIN and name not in chained_parts]
    if len(certain) == len(needs):
        return ""
    terms = [f"!contains(needs.*.result, '{result}')" for result in ("failure", "cancelled")]
    return " && ".join(("!cancelled()", *terms, *(f"needs.{name}.result == 'success'" for name in certain)))


def _called_workflows_with_chains(parts: Sequence[Sequence[WorkflowJob]]) -> list[str]:
    return [f"build-{number}" for number, part in enumerate(parts[1:], 2) if CHAIN in _build_job_names(part)]


def _max_listed_artifacts(jobs: Sequence[WorkflowJob]) -> int:
    """Return how many artifacts the publishing job must list, with those of further attempts; 0 for the default."""
    count = sum(2 * job.links + 1 for job in jobs)  # each job's logs and what it hands on, and the packages
    return MANY * count if FEW * count > ci_limits.limit_of_service(GITHUB, "listed artifacts").value else 0


def _check_run_count(job: WorkflowJob, links: int) -> int:
    """Return the number of a config's jobs: each chain has those of the longest, of which GitHub skips the rest."""
    return (links if job.links > 1 else 1) + bool(job.gpu)


def _require_within_limit(name: str, count: int, what: str) -> None:
    """Refuse more of something than a limit of the service.

    Raises:
        RecipeFault: there are too many.
    """
    most = ci_limits.limit_of_service(GITHUB, name)
    if count > most.value:
        raise RecipeFault(
            f"the configs need {count} {what}",
            why=f"GitHub allows {most.value} {most.unit}",
            hint="reduce the variants, or build some platforms with another service (provider)",
        )


def _require_allowed_workflow_sizes(written: Mapping[str, str]) -> None:
    """Refuse a workflow that the service would not start.

    Raises:
        RecipeFault: a file is too large, which a chain of many jobs can be.
    """
    most = ci_limits.limit_of_service(GITHUB, "workflow size")
    for name, text in written.items():
        if (size := math.ceil(len(text.encode()) / 1000)) > most.value:
            chain = name == "build-chain.yml"
            raise RecipeFault(
                f"{name} would have {size} KB: "
                + ("kiln: build_hours needs too many jobs" if chain else "the names of the configs are too long"),
                why=f"GitHub allows {most.value} {most.unit}",
                hint="build on a faster runner, or on one's own with a longer github_actions: timeout_minutes"
                if chain
                else "reduce the keys that the recipe uses with several values",
            )


def _build_job_names(jobs: Sequence[WorkflowJob]) -> list[str]:
    return [name for name, links in (("build", 1), (CHAIN, 2)) if any(min(job.links, 2) == links for job in jobs)]


def _gpu_job_names(jobs: Sequence[WorkflowJob]) -> list[str]:
    """Return the name of the job that tests on a GPU, if there is one."""
    return ["gpu"] if any(job.gpu for job in jobs) else []


def _yaml_list(names: Iterable[str]) -> str:
    return f"[{', '.join(names)}]"


def _require_no_expression(jobs: Sequence[WorkflowJob], settings: ActionsSettings, others: Sequence[str]) -> None:
    values = (value for job in jobs for value in (job.config, job.name, job.runner, job.gpu, job.group))
    if any("${{" in value for value in (*values, *others)):
        raise RecipeFault("a value of the matrix is an expression of GitHub Actions", why="it contains ${{")
    for name, value in (
        ("upload_on_branch", settings.branch),
        ("docker.run_args", settings.run_arguments),
        ("kiln: publish_environment", settings.publication.environment if settings.publication else ""),
    ):
        if "${{" in value:
            raise RecipeFault(f"{name} is an expression of GitHub Actions", why="it contains ${{")


@functools.cache
def _template_environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(  # noqa: S701 - YAML; every value is quoted
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        block_start_string="[%",
        block_end_string="%]",
        variable_start_string="[[",
        variable_end_string="]]",
        comment_start_string="[#",
        comment_end_string="#]",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        optimized=False,  # each template is used once in a process, but for tests
    )
    environment.filters["quoted"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment
