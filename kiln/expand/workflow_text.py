"""The texts of the workflows, from their templates: no value of a feedstock becomes code in them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.errors import RecipeFault
from kiln.expand import ci_limits
from kiln.expand.actions_settings import GITHUB, SKIP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import jinja2

    from kiln.expand.actions_settings import ActionsSettings
    from kiln.expand.workflow import Job


def texts(
    jobs: Sequence[Job],
    settings: ActionsSettings,
    *,
    others: Iterable[str],
    marker: str,
    actions: Mapping[str, str],
    most: int,
) -> dict[str, str]:
    """Return the texts of the workflows by their names; each has at most ``most`` configs.

    ``others`` are the configs that other services build.

    Raises:
        RecipeFault: a value contains an expression.
    """
    others = tuple(others)
    _require_no_expression(jobs, settings, others)
    common = {
        "marker": marker,
        "actions": actions,
        "settings": settings,
        "publication": settings.publication,
        "staging_option": ' --staging "$STAGING"' if settings.publication and settings.publication.staging else "",
        "others": sorted(others),
        "free": {job.free for job in jobs} - {SKIP},
        "swap": any(job.swap for job in jobs),
        "kept": [job.keep for job in jobs],
        "cache_option": f" --cache-size {settings.cache_size}GB" if settings.cache_size else "",
    }
    environment = _environment()
    parts = [jobs[start : start + most] for start in range(0, len(jobs), most)]
    written = {
        "build.yml" if number == 1 else f"build-{number}.yml": environment.get_template("build.yml.j2").render(
            **common,
            title="build" if number == 1 else f"build-{number}",
            single=[job for job in part if job.links == 1],
            chained=[job for job in part if job.links > 1],
            gpus=[job for job in part if job.gpu],
            needs=f"[{', '.join(_builds(part))}]",
            publishes=settings.publication is not None and len(parts) == 1,
            publish_needs=f"[{', '.join((*_builds(part), *(['gpu'] if any(job.gpu for job in part) else [])))}]",
        )
        for number, part in enumerate(parts, 1)
    }
    if (links := max(job.links for job in jobs)) > 1:
        written["build-chain.yml"] = environment.get_template("chain.yml.j2").render(**common, links=links)
    _require_small(written)
    return written


def _require_small(written: Mapping[str, str]) -> None:
    """Refuse a workflow that the service would not start.

    Raises:
        RecipeFault: a file is too large, which a chain of many jobs can be.
    """
    most = ci_limits.limit(GITHUB, "workflow size")
    for name, text in written.items():
        if (size := math.ceil(len(text.encode()) / 1000)) > most.value:
            raise RecipeFault(
                f"{name} would have {size} KB: kiln: build_hours needs too many jobs",
                why=f"GitHub allows {most.value} {most.unit}",
                hint="build on a faster runner, or on one's own with a longer github_actions: timeout_minutes",
            )


def _builds(jobs: Sequence[Job]) -> list[str]:
    """Return the names of the jobs that build."""
    return [name for name, links in (("build", 1), ("chain", 2)) if any(min(job.links, 2) == links for job in jobs)]


def _require_no_expression(jobs: Sequence[Job], settings: ActionsSettings, others: Sequence[str]) -> None:
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


def _environment() -> jinja2.Environment:
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
        optimized=False,  # each template is used once
    )
    environment.filters["quoted"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment
