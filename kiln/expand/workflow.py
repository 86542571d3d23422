"""The GitHub Actions workflow that builds each config in a separate job, with the command that people use.

The settings and their defaults are conda-smithy's (conda_smithy/schema.py, GithubActionsConfig).
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import files
from kiln.errors import RecipeFault
from kiln.expand import conda_forge_yml
from kiln.variants.axes import labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kiln.model.build_config import BuildConfig
    from kiln.model.feedstock import Feedstock

    Job = tuple[str, str, str]  # the config, its readable name, the label of its runner

NAME = ".github/workflows/build.yml"
SMITHY_NAME = ".github/workflows/conda-build.yml"  # conda-smithy's workflow for the same configs
ENTRY = "build-locally.py"
MARKER = "# Written by `kiln rerender`, which leaves a file alone that does not begin with this line."
# Each action by the commit of its release, because a tag can be moved; from the tags of the actions' repositories.
ACTIONS = {
    "checkout": "actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1",
    "cache": "actions/cache@27d5ce7f107fe9357f9df03efb73ab90386fccae # v5.0.5",
    "upload": "actions/upload-artifact@bbbca2ddaa5d8feaa63e36b76fdaad77386f024f # v7.0.0",
}
# https://docs.github.com/actions/reference/runners/github-hosted-runners
RUNNERS = {"linux-64": "ubuntu-24.04", "linux-aarch64": "ubuntu-24.04-arm"}
MAX_JOBS = 256  # GitHub's limit for one matrix
MINUTES, DAYS = 360, 14


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowText:
    """The planned workflow: a text, no file (None), or the existing file (``keep``), and the reason."""

    text: str | None = None
    keep: bool = False
    why: str = ""


def planned(feedstock: Feedstock, configs: Iterable[BuildConfig]) -> WorkflowText:
    """Return a feedstock's planned workflow.

    Raises:
        KilnError: conda-forge.yml is invalid.
    """
    settings = _ActionsSettings(feedstock.root / "conda-forge.yml")
    jobs = _jobs(feedstock, list(configs), self_hosted=settings.flag("self_hosted", default=False))
    if settings.skipped:
        return WorkflowText(keep=True, why=f"{NAME} is left alone: skip_render in conda-forge.yml names it")
    existing = _existing(feedstock)
    if existing is not None and not existing.startswith(MARKER):
        return WorkflowText(keep=True, why=f"{NAME} is left alone: kiln did not write it; name it under skip_render")
    if not jobs:
        return WorkflowText()  # GitHub runs no config
    reason = _reason_against(feedstock, len(jobs))
    return WorkflowText(why=f"no {NAME}: {reason}") if reason else WorkflowText(text=_text(jobs, settings))


def _reason_against(feedstock: Feedstock, jobs: int) -> str:
    """Return why a feedstock can have no workflow; empty when it can."""
    if (feedstock.root / SMITHY_NAME).exists():
        return f"conda-smithy's {SMITHY_NAME} builds these configs; remove one of the two"
    if not calls_kiln(feedstock):
        return f"it runs kiln's {ENTRY}, which this feedstock lacks; kiln init adds it where there is none"
    if jobs > MAX_JOBS:
        return f"GitHub starts {MAX_JOBS} jobs for one run, and there are {jobs} configs"
    return ""


def calls_kiln(feedstock: Feedstock) -> bool:
    """Return whether a feedstock's build-locally.py is kiln's, not conda-smithy's or none."""
    path = feedstock.root / ENTRY
    return path.is_file() and re.search(r"\bkiln\b", path.read_text(encoding="utf-8", errors="replace")) is not None


def write(feedstock: Feedstock, configs: Iterable[BuildConfig]) -> list[str]:
    """Write the workflow, or remove one of kiln's that is no longer needed; return a line for each change.

    Raises:
        NotWritable: its path contains a link.
    """
    workflow, existing, path = planned(feedstock, configs), _existing(feedstock), feedstock.root / NAME
    lines = [workflow.why] if workflow.why else []
    if workflow.keep or workflow.text == existing:
        return lines
    files.inside(path, feedstock.root)
    if workflow.text is None:
        files.remove(path)
        return [*lines, f"{NAME}: removed"]
    files.write_text(path, workflow.text)
    return [*lines, f"{NAME}: {'added' if existing is None else 'changed'}"]


def drift(feedstock: Feedstock, configs: Iterable[BuildConfig]) -> list[str]:
    """Return the difference of the workflow from what ``write`` would write, as a unified diff; empty without one."""
    workflow, existing = planned(feedstock, configs), _existing(feedstock)
    if workflow.keep or workflow.text == existing:
        return []
    before, after = ((text or "").splitlines() for text in (existing, workflow.text))
    old, new = (NAME if text is not None else "/dev/null" for text in (existing, workflow.text))
    return list(difflib.unified_diff(before, after, old, new, n=1, lineterm=""))


def _existing(feedstock: Feedstock) -> str | None:
    place = feedstock.root / NAME
    return place.read_text(encoding="utf-8", errors="replace") if place.is_file() else None


def _jobs(feedstock: Feedstock, configs: Sequence[BuildConfig], *, self_hosted: bool) -> list[Job]:
    """Return the configs that GitHub runs, each with a readable name and the label of its runner."""
    forge_settings = conda_forge_yml.read(feedstock.root / "conda-forge.yml")
    runners = {
        f"{job.system}-{job.arch}": RUNNERS[job.build_platform]
        for job in forge_settings.jobs
        if job.provider == "github_actions" and job.build_platform in RUNNERS
    }
    hosted_configs = [config for config in configs if config.platform in runners]
    names = labels(
        [config.name for config in hosted_configs], {config.name: config.variant for config in hosted_configs}
    )
    default_label = "self-hosted" if self_hosted else "hosted"
    return [
        (config.name, names[config.name], _runner(config, runners[config.platform], default_label))
        for config in hosted_configs
    ]


def _runner(config: BuildConfig, hosted: str, default_label: str) -> str:
    """Return the label of a config's runner: the variant's, else the default; ``hosted`` is GitHub's own runner."""
    label = config.variant.get("github_actions_labels", (default_label,))[0]
    return hosted if label == "hosted" else label


def _text(jobs: Sequence[Job], settings: _ActionsSettings) -> str:
    """Return the text of the workflow.

    Raises:
        RecipeFault: the name of a config contains an expression.
    """
    import jinja2

    if any("${{" in value for job in jobs for value in job):
        raise RecipeFault("a value of the matrix is an expression of GitHub Actions", why="it contains ${{")
    environment = jinja2.Environment(  # noqa: S701 - YAML; every value is quoted
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        block_start_string="[%",
        block_end_string="%]",
        variable_start_string="[[",
        variable_end_string="]]",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quoted"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.get_template("build.yml.j2").render(
        marker=MARKER,
        actions=ACTIONS,
        jobs=jobs,
        triggers=settings.triggers,
        cancel=settings.flag("cancel_in_progress", default=True),
        timeout=settings.number("timeout_minutes", MINUTES),
        max_parallel=settings.number("max_parallel", 0),
        retention=settings.number("artifact_retention_days", DAYS),
        keep_packages=settings.flag("store_build_artifacts", default=False),
        free=settings.free_disk_space,
    )


class _ActionsSettings:
    """The settings of GitHub Actions in conda-forge.yml; the defaults without the file."""

    def __init__(self, path: Path) -> None:
        document = conda_forge_yml.parsed(path)
        settings = conda_forge_yml.TypedSettings(document, document.value)
        self._github = conda_forge_yml.TypedSettings(document, settings.mapping("github_actions"))
        self._skip_render = settings.items("skip_render", [])

    @property
    def skipped(self) -> bool:
        """True when the feedstock has its own workflow."""
        return any(Path(NAME).is_relative_to(name) for name in self._skip_render if name.strip("./"))

    @property
    def triggers(self) -> list[str]:
        """The events that start a run."""
        triggers = [trigger for trigger in self._github.items("triggers", []) if trigger != "workflow_dispatch"]
        if invalid := [trigger for trigger in triggers if not re.fullmatch("[a-z_]+", trigger)]:
            raise RecipeFault(f"github_actions: triggers: {invalid[0]!r} is not an event of GitHub Actions")
        return triggers or (["push"] if self.flag("self_hosted", default=False) else ["push", "pull_request"])

    @property
    def free_disk_space(self) -> list[str]:
        """The kinds of files to remove from the runner's disk before the build."""
        if isinstance(self._github.get("free_disk_space"), list):
            return self._github.items("free_disk_space", [])
        return ["apt", "cache"] if self.flag("free_disk_space", default=False) else []

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean setting."""
        value = self._github.get(key)
        return default if value is None else str(value).lower() == "true"

    def number(self, key: str, default: int) -> int:
        """Return a setting that is a whole number."""
        value = self._github.get(key)
        if value is None:
            return default
        if not str(value).isdecimal():
            raise RecipeFault(f"github_actions: {key} is {value!r}, but a whole number is expected")
        return int(str(value))
