"""The workflow of GitHub Actions that builds the cells, each in a job of its own, by the command that people use.

Which settings there are and what holds without them is conda-smithy's (conda_smithy/schema.py, GithubActionsConfig).
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import files
from kiln.errors import NotWritable, RecipeFault
from kiln.expand import forge
from kiln.variants.axes import labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kiln.model.cell import Cell
    from kiln.model.feedstock import Feedstock

    Job = tuple[str, str, str]  # the cell, its name for people, the label of its runner

NAME = ".github/workflows/build.yml"
SMITHYS = ".github/workflows/conda-build.yml"  # what conda-smithy writes for the same cells
MARKER = "# Written by `kiln rerender`, which leaves a file alone that does not begin with this line."
# Each action by the commit of its release, for a tag can be moved; read from the tags of the actions' repositories.
ACTIONS = {
    "checkout": "actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1",
    "cache": "actions/cache@27d5ce7f107fe9357f9df03efb73ab90386fccae # v5.0.5",
    "upload": "actions/upload-artifact@bbbca2ddaa5d8feaa63e36b76fdaad77386f024f # v7.0.0",
}
# https://docs.github.com/actions/reference/runners/github-hosted-runners
RUNNERS = {"linux-64": "ubuntu-24.04", "linux-aarch64": "ubuntu-24.04-arm"}
MOST_JOBS = 256  # that GitHub starts for one matrix
MINUTES, DAYS = 360, 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to lie at the workflow's place: a text, nothing (None), or what is there already (``keep``), and why."""

    text: str | None = None
    keep: bool = False
    why: str = ""


def wanted(feedstock: Feedstock, cells: Iterable[Cell]) -> Wanted:
    """Decide what a feedstock's workflow is.

    Raises:
        KilnError: conda-forge.yml is at fault.
    """
    settings = _Settings.read(feedstock.root / "conda-forge.yml")
    jobs = _jobs(feedstock, list(cells), self_hosted=settings.flag("self_hosted", default=False))
    if settings.skipped:
        return Wanted(keep=True, why=f"{NAME} is left alone: skip_render in conda-forge.yml names it")
    there = _there(feedstock)
    if there is not None and not there.startswith(MARKER):
        return Wanted(keep=True, why=f"{NAME} is left alone: kiln did not write it; name it under skip_render")
    if not jobs or not (feedstock.root / "build-locally.py").is_file():
        return Wanted()  # nothing runs there, or there is nothing to run
    if (feedstock.root / SMITHYS).exists():
        return Wanted(why=f"no {NAME}: conda-smithy's {SMITHYS} builds these cells; remove one of the two")
    if len(jobs) > MOST_JOBS:
        return Wanted(why=f"no {NAME}: GitHub starts {MOST_JOBS} jobs for one run, and there are {len(jobs)} cells")
    return Wanted(text=_text(jobs, settings))


def write(feedstock: Feedstock, cells: Iterable[Cell]) -> list[str]:
    """Have the workflow at its place, or away when kiln wrote it and it is not wanted any more; tells what was done.

    Raises:
        NotWritable: its folder lies outside the feedstock.
    """
    found, there, place = wanted(feedstock, cells), _there(feedstock), feedstock.root / NAME
    told = [found.why] if found.why else []
    if found.keep or found.text == there:
        return told
    if not place.resolve().is_relative_to(feedstock.root.resolve()):
        raise NotWritable(f"{NAME} leads out of the feedstock", why=f"it is {place.resolve()}")
    if found.text is None:
        files.remove(place)
        return [*told, f"{NAME}: removed"]
    files.write_text(place, found.text)
    return [*told, f"{NAME}: {'added' if there is None else 'changed'}"]


def drift(feedstock: Feedstock, cells: Iterable[Cell]) -> list[str]:
    """How the workflow differs from what ``write`` would make of it, line by line; nothing when it does not."""
    found, there = wanted(feedstock, cells), _there(feedstock)
    if found.keep or found.text == there:
        return []
    before, after = ((text or "").splitlines() for text in (there, found.text))
    old, new = (NAME if text is not None else "/dev/null" for text in (there, found.text))
    return list(difflib.unified_diff(before, after, old, new, n=1, lineterm=""))


def _there(feedstock: Feedstock) -> str | None:
    place = feedstock.root / NAME
    return place.read_text(encoding="utf-8", errors="replace") if place.is_file() else None


def _jobs(feedstock: Feedstock, cells: Sequence[Cell], *, self_hosted: bool) -> list[Job]:
    """The cells that GitHub runs, each with a name for people and the label of its runner."""
    found = forge.read(feedstock.root / "conda-forge.yml")
    machines = {
        f"{job.system}-{job.arch}": RUNNERS[job.build_platform]
        for job in found.jobs
        if job.provider == "github_actions" and job.build_platform in RUNNERS
    }
    ours = [cell for cell in cells if cell.platform in machines]
    names = labels([cell.name for cell in ours], {cell.name: cell.variant for cell in ours})
    usual = "self-hosted" if self_hosted else "hosted"
    return [(cell.name, names[cell.name], _runner(cell, machines[cell.platform], usual)) for cell in ours]


def _runner(cell: Cell, hosted: str, usual: str) -> str:
    """The label of a cell's runner: the variant's, or the usual one, where ``hosted`` stands for GitHub's own."""
    label = cell.variant.get("github_actions_labels", (usual,))[0]
    return hosted if label == "hosted" else label


def _text(jobs: Sequence[Job], settings: _Settings) -> str:
    """The workflow.

    Raises:
        RecipeFault: a name of a cell would be code.
    """
    import jinja2

    if any("${{" in value for job in jobs for value in job):
        raise RecipeFault("a value of the matrix is an expression of GitHub Actions", why="it holds ${{")
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


class _Settings:
    """What conda-forge.yml says of GitHub Actions."""

    def __init__(self, github: dict[str, Any], skip_render: list[str]) -> None:
        self._github = github
        self._skip_render = skip_render

    @classmethod
    def read(cls, path: Path) -> _Settings:
        """Read the settings; without the file, those that hold by default."""
        document = forge.parsed(path)
        values = document.value
        github = values.get("github_actions")
        if github is not None and not isinstance(github, dict):
            raise RecipeFault("the setting 'github_actions' is no mapping", at=document.place("github_actions"))
        return cls(github or {}, _texts(values.get("skip_render")))

    @property
    def skipped(self) -> bool:
        """Whether the feedstock keeps a workflow of its own."""
        return any(Path(NAME).is_relative_to(name) for name in self._skip_render if name.strip("./"))

    @property
    def triggers(self) -> list[str]:
        """The events that start a run."""
        given = [each for each in _texts(self._github.get("triggers")) if each != "workflow_dispatch"]
        if odd := [each for each in given if not re.fullmatch("[a-z_]+", each)]:
            raise RecipeFault(f"github_actions: triggers: {odd[0]!r} is no event of GitHub")
        return given or (["push"] if self.flag("self_hosted", default=False) else ["push", "pull_request"])

    @property
    def free_disk_space(self) -> list[str]:
        """What is removed from the runner's disk before the build."""
        value = self._github.get("free_disk_space")
        if isinstance(value, list):
            return _texts(value)
        return ["apt", "cache"] if self.flag("free_disk_space", default=False) else []

    def flag(self, key: str, *, default: bool) -> bool:
        """A setting that is on or off."""
        value = self._github.get(key)
        return default if value is None else str(value).lower() == "true"

    def number(self, key: str, default: int) -> int:
        """A setting that is a whole number."""
        value = self._github.get(key)
        if value is None:
            return default
        if not str(value).isdecimal():
            raise RecipeFault(f"github_actions: {key} is {value!r}, but a whole number is expected")
        return int(str(value))


def _texts(value: Any) -> list[str]:
    return [] if value is None else [str(item) for item in value] if isinstance(value, list) else [str(value)]
