"""The folder .ci_support and the workflow that builds each config: written, and compared with the recipe."""

from __future__ import annotations

import functools
import json
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import files as base_files
from kiln.base import limits
from kiln.base.errors import KilnError, RecipeFault
from kiln.base.limits import errors
from kiln.base.patterns import lazy_pattern
from kiln.base.text import count_text
from kiln.feedstock import config_file, job_settings, matrix, pinning, workflow_settings
from kiln.feedstock.config_file import config_file_text
from kiln.feedstock.sizes import config_sizes
from kiln.feedstock.workflow_settings import GITHUB, SKIP, ActionsSettings
from kiln.recipe.variants.files import as_list, compile_group, load_variant_file
from kiln.recipe.variants.space import config_labels

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import jinja2

    from kiln.recipe.feedstock import BuildConfig, Feedstock


# Keys whose values conda-smithy computes from several files, or that are not values.
_COMPUTED = frozenset(
    [
        "docker_image", "zip_keys", "pin_run_as_build", "extend_keys", "MACOSX_DEPLOYMENT_TARGET",
        "MACOSX_SDK_VERSION", "c_stdlib_version", "target_platform", "cdt_name",
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The differences of .ci_support from the matrix: names of files to add, change and remove, and a unified diff."""

    missing: tuple[str, ...]
    changed: tuple[str, ...]
    stale: tuple[str, ...]
    lines: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.changed or self.stale)

    @property
    def summary(self) -> str:
        """The differences in one line: ``2 added, 1 changed, 3 removed``."""
        counts = (("added", self.missing), ("changed", self.changed), ("removed", self.stale))
        return ", ".join(f"{len(names)} {word}" for word, names in counts if names)


def ci_support_drift(feedstock: Feedstock, configs: Iterable[BuildConfig]) -> Drift:
    """Return the differences of the files in .ci_support from those of the configs."""
    existing, generated = _texts_in_ci_support(feedstock), _generated_texts(configs)
    names = sorted(generated.keys() | existing.keys())
    pairs = ((f".ci_support/{name}", existing.get(name), generated.get(name)) for name in names)
    lines = tuple(line for pair in pairs for line in unified_diff_lines(*pair))
    return replace(_drift_of_texts(existing, generated), lines=lines)


def _drift_of_texts(existing: Mapping[str, str], generated: Mapping[str, str]) -> Drift:
    common = sorted(generated.keys() & existing.keys())
    return Drift(
        missing=tuple(sorted(generated.keys() - existing.keys())),
        changed=tuple(name for name in common if existing[name] != generated[name]),
        stale=tuple(sorted(existing.keys() - generated.keys())),
    )


def write_ci_support(feedstock: Feedstock, configs: Iterable[BuildConfig]) -> Drift:
    """Write exactly the configs' files to .ci_support, each atomically; return the changes."""
    for folder in (feedstock.config_folder, feedstock.root / ".github" / "workflows"):
        base_files.safe_path_inside(folder, feedstock.root)  # before anything is written
    recipe = feedstock.meta if feedstock.meta.is_file() else feedstock.recipe_v1
    errors.record_place(f"{recipe.parent.name}/{recipe.name}")  # its matrix is at fault if the time ends meanwhile
    with base_files.held_folder_lock(feedstock.root):
        generated = _generated_texts(configs)
        changes = _drift_of_texts(_texts_in_ci_support(feedstock), generated)
        for name in (*changes.missing, *changes.changed):
            base_files.write_text(feedstock.config_folder / name, generated[name])
        for name in changes.stale:
            base_files.remove(feedstock.config_folder / name)
    return changes


def _generated_texts(configs: Iterable[BuildConfig]) -> dict[str, str]:
    return {f"{config.name}.yaml": config_file_text(config) for config in configs}


def _texts_in_ci_support(feedstock: Feedstock) -> dict[str, str]:
    files = [path for path in feedstock.config_folder.glob("*.yaml") if path.is_file()]
    return {path.name: path.read_text(encoding="utf-8", errors="replace") for path in files}


def unified_diff_lines(name: str, before: str | None, after: str | None) -> Iterator[str]:
    """Yield the unified diff of a file's texts before and after; None is no file."""
    if before == after:
        return
    import difflib

    old, new = (name if text is not None else "/dev/null" for text in (before, after))
    first, second = ((text or "").splitlines() for text in (before, after))
    yield from difflib.unified_diff(first, second, old, new, n=1, lineterm="")


def matrix_difference(feedstock: Feedstock) -> str:
    """Return by how much .ci_support differs from the feedstock's matrix, empty when it is up to date.

    Of a feedstock that needs a pinning, whose newest version always differs, only the values of its own variant file
    are compared. It is also empty where the files are invalid, which the build reports, and when the time or the memory
    of the process that compares them is used up.
    """

    def difference() -> str:
        own_pinning = job_settings.exclusive_config_file(feedstock)
        if own_pinning is None and pinning.keys_without_value(feedstock):
            return _keys_with_changed_values(feedstock)
        return ci_support_drift(feedstock, matrix.configs(feedstock, own_pinning)).summary

    try:
        return limits.run_bounded(difference)
    except (KilnError, MemoryError, errors.OutOfTime):
        return ""


def _keys_with_changed_values(feedstock: Feedstock) -> str:
    """Return the keys whose values in .ci_support are not among those of the feedstock's own variant file."""
    migrations = (feedstock.config_folder / "migrations").glob("*.yaml")
    skipped = _COMPUTED.union(*(load_variant_file(path, feedstock.name_of(path)).keys for path in migrations))
    names = feedstock.config_names
    configs = config_file.read_configs(feedstock, names)
    values_of_variant_files = matrix.variant_file_values_getter(feedstock)
    changed: dict[str, int] = {}
    for config in configs:
        for key, values in values_of_variant_files(config.platform).items():
            existing = {value.lower() for value in config.variant.get(key, ())}  # truths have two spellings
            if key not in skipped and not existing <= {str(value).lower() for value in as_list(values)}:
                changed[key] = changed.get(key, 0) + 1
    return ", ".join(
        f"{key} in {count} of {count_text(len(configs), 'config')}" for key, count in sorted(changed.items())
    )


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
CHAIN, WARM = "chain", "warm"  # the jobs that call the workflow with a chain of jobs
FEW, MANY = 2, 10  # attempts of a run whose artifacts are listed by default, and by a setting


def workflow_texts(jobs: Sequence[WorkflowJob], settings: ActionsSettings, *, others: Iterable[str]) -> dict[str, str]:
    """Return the texts of the workflows by their names; each has at most as many configs as a matrix may have.

    The first one calls the others, so that all are one run, in which one job can wait for all builds. ``others`` are
    the configs that other services build.
    """
    others = tuple(others)
    _require_no_expression(jobs, settings, others)
    most = workflow_settings.limit_of_service(GITHUB, "matrix jobs").value
    parts = [jobs[start : start + most] for start in range(0, len(jobs), most)]
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
        "shared": any(map(_warm_jobs, parts)),
        "cache_option": f" --cache-size {settings.cache_size}GB" if settings.cache_size else "",
    }
    environment = _template_environment()
    called = [f"build-{number}" for number in range(2, len(parts) + 1)]
    links = max(job.links for job in jobs)
    _require_within_limit("called workflows", len(called) + (links > 1), "workflows in addition to build.yml")
    # Each chain has the jobs of the longest, of which GitHub skips the rest.
    runs = sum((links if job.links > 1 else 1) + bool(job.gpu) for job in jobs)
    _require_within_limit("check runs", runs + 1, "jobs")
    needs = [*_build_job_names(parts[0]), *(["gpu"] if any(job.gpu for job in parts[0]) else []), *called]
    with_chains = [f"build-{number}" for number, part in enumerate(parts[1:], 2) if CHAIN in _build_job_names(part)]
    matrices = sum(len(_build_job_names(part)) for part in parts)  # which all keep to the setting together
    written = {
        f"{title}.yml": environment.get_template("build.yml.j2" if number == 0 else "part.yml.j2").render(
            **common,
            **_job_template_values(parts[number]),
            title=title,
            called=called,
            max_parallel=settings.max_parallel and max(1, settings.max_parallel // matrices),
            publish_needs=_yaml_list(needs),
            publish_condition=_needs_succeeded_condition(needs, chained_parts=with_chains),
            listed_artifacts=_max_listed_artifacts(jobs),
        )
        for number, title in enumerate(("build", *called))
    }
    if links > 1:
        written["build-chain.yml"] = environment.get_template("chain.yml.j2").render(**common, links=links)
    _require_allowed_workflow_sizes(written)
    return written


def _job_template_values(jobs: Sequence[WorkflowJob]) -> dict[str, object]:
    builds, warm = _build_job_names(jobs), _warm_jobs(jobs)
    return {
        "single": [job for job in jobs if job.links == 1],
        "chained": [job for job in jobs if job.links > 1 and job not in warm],
        "warm": warm,
        "warm_condition": _needs_succeeded_condition([CHAIN], chained_parts=()),
        "gpus": [job for job in jobs if job.gpu],
        "gpu_needs": _yaml_list(builds),
        "gpu_condition": _needs_succeeded_condition(builds, chained_parts=()),
    }


def _warm_jobs(jobs: Sequence[WorkflowJob]) -> list[WorkflowJob]:
    """Return the chains that begin with what another one has compiled, the first of their group."""
    chained = [job for job in jobs if job.links > 1]
    first = {job.group: job for job in reversed(chained)}
    return [job for job in chained if job is not first[job.group]]


def _needs_succeeded_condition(needs: Sequence[str], *, chained_parts: Collection[str]) -> str:
    """Return the condition of a job that all of its ``needs`` have succeeded; empty where GitHub's own one says that.

    GitHub skips a job if any job that it depends on was skipped, however far away, as the last jobs of a chain are
    that was faster than expected. A status function in the condition turns that off. A chain may count as skipped, for
    nothing but that skips jobs of it.

    Source: "Using jobs in a workflow" of GitHub's documentation, and actions/runner's issues 491 and 2205.
    """
    certain = [name for name in needs if name not in {CHAIN, WARM} and name not in chained_parts]
    if len(certain) == len(needs):
        return ""
    terms = [f"!contains(needs.*.result, '{result}')" for result in ("failure", "cancelled")]
    return " && ".join(("!cancelled()", *terms, *(f"needs.{name}.result == 'success'" for name in certain)))


def _max_listed_artifacts(jobs: Sequence[WorkflowJob]) -> int:
    """Return how many artifacts the publishing job must list, with those of further attempts; 0 for the default."""
    # Each job's logs and what it hands on, and the packages; and what each group has compiled.
    count = sum(2 * job.links + 1 for job in jobs) + len({job.group for job in jobs})
    return MANY * count if FEW * count > workflow_settings.limit_of_service(GITHUB, "listed artifacts").value else 0


def _require_within_limit(name: str, count: int, what: str) -> None:
    """Refuse more of something than a limit of the service."""
    most = workflow_settings.limit_of_service(GITHUB, name)
    if count > most.value:
        raise RecipeFault(
            f"the configs need {count} {what}",
            why=f"GitHub allows {most.value} {most.unit}",
            hint="reduce the variants, or build some platforms with another service (provider)",
        )


def _require_allowed_workflow_sizes(written: Mapping[str, str]) -> None:
    """Refuse a workflow that the service would not start."""
    most = workflow_settings.limit_of_service(GITHUB, "workflow size")
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
    names = {"build": any(job.links == 1 for job in jobs), CHAIN: any(job.links > 1 for job in jobs)}
    names[WARM] = bool(_warm_jobs(jobs))
    return [name for name, exists in names.items() if exists]


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
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("workflow")),
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
    files_by_name = workflow_texts(jobs, settings, others=others)
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
        base_files.safe_path_inside(path, feedstock.root)
        if text is None:
            base_files.remove(path)
            lines.append(f"{name}: removed")
        else:
            base_files.write_text(path, text)
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
        for job in job_settings.read_matrix_settings(feedstock.conda_forge_yml).jobs
        if job.provider == GITHUB and job.build_platform in RUNNERS
    }
    hosted_configs = [config for config in configs if config.platform in runners]
    names = config_labels(
        [config.name for config in hosted_configs], {config.name: config.variant for config in hosted_configs}
    )
    sizes = config_sizes(feedstock, hosted_configs)
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
            links=settings.chain_job_count(compile_group(config), sizes[config.name]),
            gpu=settings.gpu_runner_label(compile_group(config)),
        )
        for config in hosted_configs
    ]


def _runner_label(config: BuildConfig, hosted: str, default_label: str) -> str:
    """Return the label of a config's runner: the variant's, else the default; ``hosted`` is GitHub's own runner."""
    label = config.variant.get("github_actions_labels", (default_label,))[0]
    return hosted if label == "hosted" else label
