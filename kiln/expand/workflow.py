"""The GitHub Actions workflow that builds each config in a separate job, with the command that people use.

The settings and their defaults are conda-smithy's (conda_smithy/schema.py, GithubActionsConfig and WorkflowSettings).
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import files
from kiln.conda_forge_yml import TypedSettings, conditional_values
from kiln.errors import RecipeFault
from kiln.expand import build_settings, forge_settings
from kiln.variants.axes import labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from kiln.model.build_config import BuildConfig
    from kiln.model.feedstock import Feedstock

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
GITHUB = "github_actions"  # the CI service in conda-forge.yml
SKIP = "skip"  # of free_disk_space: nothing is removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of the workflow: its config, a readable name, and the label of its runner.

    ``free`` is how much it removes from the runner's disk, ``swap`` the GiB of its swap file; ``keep`` if it keeps the
    packages as an artifact.
    """

    config: str
    name: str
    runner: str
    free: str
    swap: int
    keep: bool


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
    settings = _ActionsSettings(feedstock.settings)
    jobs = _jobs(feedstock, list(configs), settings)
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


def _jobs(feedstock: Feedstock, configs: Sequence[BuildConfig], settings: _ActionsSettings) -> list[Job]:
    """Return the configs that GitHub runs, each with a readable name and the label of its runner."""
    runners = {
        f"{job.system}-{job.arch}": RUNNERS[job.build_platform]
        for job in forge_settings.read(feedstock.settings).jobs
        if job.provider == GITHUB and job.build_platform in RUNNERS
    }
    hosted_configs = [config for config in configs if config.platform in runners]
    names = labels(
        [config.name for config in hosted_configs], {config.name: config.variant for config in hosted_configs}
    )
    default_label = "self-hosted" if settings.self_hosted else "hosted"
    return [
        Job(
            config=config.name,
            name=names[config.name],
            runner=_runner(config, runners[config.platform], default_label),
            free=settings.free_disk_space(config.platform),
            swap=settings.swap(config.platform),
            keep=settings.keeps_packages(config.platform),
        )
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

    if any("${{" in value for job in jobs for value in (job.config, job.name, job.runner)):
        raise RecipeFault("a value of the matrix is an expression of GitHub Actions", why="it contains ${{")
    for name, value in (("upload_on_branch", settings.branch), ("docker.run_args", settings.run_arguments)):
        if "${{" in value:
            raise RecipeFault(f"{name} is an expression of GitHub Actions", why="it contains ${{")
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
        settings=settings,
        free={job.free for job in jobs} - {SKIP},
        swap=any(job.swap for job in jobs),
        kept=[job.keep for job in jobs],
    )


class _ActionsSettings:
    """The settings of GitHub Actions in conda-forge.yml; the defaults without the file."""

    def __init__(self, path: Path) -> None:
        self.whole = TypedSettings.read(path)
        self._github = self.whole.nested(GITHUB)
        self.timeout = self._github.number("timeout_minutes", MINUTES)
        self.max_parallel = self._github.number("max_parallel", 0)
        self.retention = self._github.number("artifact_retention_days", DAYS)
        self.cancel = self._github.flag("cancel_in_progress", default=True)
        self.self_hosted = self._github.flag("self_hosted", default=False)
        self.clone_depth = self.whole.text("clone_depth", "")
        self.branch = self.whole.text("upload_on_branch", "")
        self.secrets = build_settings.secret_names(self.whole)
        self.run_arguments = self.whole.nested("docker").text("run_args", "")

    @property
    def skipped(self) -> bool:
        """True when the feedstock has its own workflow."""
        names = self.whole.items("skip_render", [])
        return any(Path(NAME).is_relative_to(name) for name in names if name.strip("./"))

    @property
    def triggers(self) -> list[str]:
        """The events that start a run."""
        triggers = [trigger for trigger in self._github.items("triggers", []) if trigger != "workflow_dispatch"]
        if invalid := [trigger for trigger in triggers if not re.fullmatch("[a-z_]+", trigger)]:
            raise RecipeFault(f"github_actions: triggers: {invalid[0]!r} is not an event of GitHub Actions")
        return triggers or (["push"] if self.self_hosted else ["push", "pull_request"])

    def free_disk_space(self, platform: str) -> str:
        """Return how much to remove from the runner's disk before the build: ``skip``, ``quick`` or ``max``.

        Source: ``_load_forge_config`` of conda-smithy, also for the former setting.
        """
        if self._is_set("free_disk_space"):
            return str(self._for_platform("free_disk_space", platform) or SKIP)
        value = self._github.get("free_disk_space")
        if isinstance(value, list):
            return "max" if "docker" in value else "quick" if value else SKIP
        return "quick" if value else SKIP

    def keeps_packages(self, platform: str) -> bool:
        """Return whether a job keeps its packages as an artifact."""
        if self._is_set("store_build_artifacts"):
            return bool(self._for_platform("store_build_artifacts", platform))
        return self._github.flag("store_build_artifacts", default=False)

    def swap(self, platform: str) -> int:
        """Return the size of a job's swap file in GiB; 0 for none."""
        return int(self._for_platform("pagefile_size", platform) or 0)

    def _is_set(self, name: str) -> bool:
        return self.whole.mapping(conditional_values.SECTION).get(name) is not None

    def _for_platform(self, name: str, platform: str) -> Any:
        return conditional_values.workflow_setting(self.whole, name, provider=GITHUB, platform=platform)
