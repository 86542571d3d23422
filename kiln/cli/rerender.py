"""``kiln rerender``: write .ci_support and the CI workflow and commit them, or check that they are up to date."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from kiln import __version__
from kiln.base.errors import MatrixDrift, UsageError
from kiln.cli import pinning as cli_pinning
from kiln.cli.main import make_pasteable
from kiln.cli.output import print_notes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kiln.feedstock.rerender import WorkflowJob
    from kiln.feedstock.workflow_settings import ActionsSettings
    from kiln.recipe.feedstock import BuildConfig, Feedstock
    from kiln.recipe.template.names import Doubts


JOB_MINUTES, DISK = "job minutes", "disk"  # limits of a service
GB = 10**9


def limit_excess_notes(feedstock: Feedstock, configs: Iterable[BuildConfig]) -> list[str]:
    """Return for each service and limit a line about the config that exceeds it most."""
    from kiln.feedstock import job_settings
    from kiln.feedstock.rerender import workflow_jobs
    from kiln.feedstock.workflow_settings import GITHUB, ActionsSettings

    place, settings = feedstock.artifacts / "ledger.sqlite", ActionsSettings(feedstock.conda_forge_yml)
    configs = list(configs)
    if not configs or not place.is_file():  # opening a ledger creates it
        return []
    jobs = {job.config: job for job in workflow_jobs(feedstock, configs, settings)}
    services = {
        job.platform_name: job.provider for job in job_settings.read_matrix_settings(feedstock.conda_forge_yml).jobs
    }
    from kiln.state.ledger.ledger import Ledger

    with Ledger(place) as ledger:
        seconds, disk = ledger.last_build_seconds(), ledger.last_build_disk_use()
    worst: dict[tuple[str, str], tuple[float, str]] = {}
    for config in configs:
        job, service = jobs.get(config.name), services.get(config.platform.replace("-", "_"), "")
        if job is None and service == GITHUB:
            continue  # by conda-smithy's workflow
        for limit, amount, note in _exceeded_limits(
            config.name, job, service, settings, seconds.get(config.name, 0.0), disk.get(config.name, 0)
        ):
            worst[service, limit] = max(worst.get((service, limit), (0.0, "")), (amount, note))
    return [note for _, note in worst.values()]


def _exceeded_limits(
    config: str, job: WorkflowJob | None, service: str, settings: ActionsSettings, seconds: float, disk: int
) -> Iterator[tuple[str, float, str]]:
    """Yield the limits that a config exceeds, each with what it took, and a note."""
    from kiln.feedstock import workflow_settings
    from kiln.feedstock.rerender import RUNNERS

    limits = workflow_settings.all_limits()
    if job is not None:
        if seconds > 60 * settings.chain_build_minutes(job.links):
            yield JOB_MINUTES, seconds, _build_hours_note(config, seconds)
    elif (minutes := limits.get((service, JOB_MINUTES))) is not None and seconds > 60 * minutes.value:
        took = f"{config} took {math.ceil(seconds / 60)} min when it was last built here, and {service} allows"
        note = f"{took} {minutes.value} {minutes.unit}: build it over several, with --budget and --handover"
        yield JOB_MINUTES, seconds, note
    room = limits.get((service, DISK))
    of_service = job is None or job.runner in RUNNERS.values()
    if room is not None and of_service and disk > GB * room.value:
        took = f"{config} took {math.ceil(disk / GB)} GB of disk when it was last built here, and {service} has"
        yield DISK, disk, f"{took} {room.value} {room.unit}: {_disk_space_hint(job)}"


def _build_hours_note(config: str, seconds: float) -> str:
    hours = math.ceil(seconds / 3600)
    took = f"{config} took {hours} h when it was last built here, longer than its jobs in the workflow may"
    return f"{took}: set kiln: build_hours in conda-forge.yml ({hours}, or more for fewer cores)"


def _disk_space_hint(job: WorkflowJob | None) -> str:
    """Return what gives a job more room on the disk."""
    from kiln.feedstock.workflow_settings import SKIP

    another = "another runner (the variant key github_actions_labels)"
    if job is None:
        return "build it on a machine with more"
    return f"set workflow_settings: free_disk_space: max, or use {another}" if job.free == SKIP else f"use {another}"


AUTO, EDIT = "auto", "edit"
_TOOLS = ("py-rattler-build", "py-rattler")  # that render recipes and fetch pinnings
_SHOWN = 200  # lines of a difference that are shown; the rest is counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln rerender``."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--check", action="store_true", help="write nothing; show the differences, and fail if there are any"
    )
    group.add_argument(
        "--commit",
        nargs="?",
        const=AUTO,
        choices=(AUTO, EDIT),
        help="commit the written files with conda-smithy's message, which names the version of conda-forge-pinning; "
        "edit opens git's editor with it (default with --commit: auto)",
    )
    cli_pinning.add_arguments(parser)


def run(options: argparse.Namespace, root: Path) -> int:
    """Write the files, or check them.

    Raises:
        MatrixDrift: if the checked files differ.
        PinningNeeded: if keys have no value without a pinning, and none can be fetched.
        UsageError: if git refuses the commit.
    """
    from kiln.base import limits
    from kiln.recipe.feedstock import load

    (notes, lines, fault), variant_file = cli_pinning.run_with_pinning(
        options, root, lambda variant_file: (rerender(options, root, variant_file), variant_file)
    )
    print_notes(make_pasteable(note, root) for note in notes)
    print("\n".join(lines))
    if fault:
        raise fault
    if options.commit:
        from kiln.feedstock.pinning import version_of_pinning_file

        feedstock = limits.run_bounded(lambda: load(root))
        pinning = "" if variant_file is None else version_of_pinning_file(variant_file)
        print(commit_rerendered_files(feedstock, pinning, options.commit))
    return 0


def rerender(
    options: argparse.Namespace, root: Path, variant_file: Path | None
) -> tuple[list[str], list[str], MatrixDrift | None]:
    """Write or check the files; return notes, the lines to print, and the error of a check."""
    from kiln.base.text import count_text
    from kiln.feedstock import matrix, pinning
    from kiln.feedstock.rerender import (
        NAME,
        ci_support_drift,
        has_kiln_build_script,
        planned_workflow,
        workflow_drift,
        write_ci_support,
        write_workflows,
    )
    from kiln.feedstock.settings import no_effect_notes
    from kiln.recipe.feedstock import load

    feedstock = load(root)
    doubts: Doubts = {}
    needs = pinning.keys_without_value(feedstock) if options.no_pinning else ()
    if not options.check and (held := [need for need in needs if need.held]):
        raise pinning.missing_values_error(
            held,
            why="--no-pinning would remove their values from .ci_support",
            hint="-e PINNING/conda_build_config.yaml; or remove .ci_support/*.yaml, if nothing needs them",
        )
    configs = matrix.configs(feedstock, variant_file, doubts)
    notes = [
        *cli_pinning.notes_of_keys(needs),
        *no_effect_notes(feedstock.conda_forge_yml),
        *map(str, doubts.values()),
        *limit_excess_notes(feedstock, configs),
    ]
    total = f"{count_text(len(configs), 'config')} in {feedstock.config_folder}"
    if not options.check:
        planned_workflow(feedstock, configs)  # what it refuses, before anything is written
        first = not feedstock.config_names
        changes = write_ci_support(feedstock, configs).summary or "nothing to change"
        lines = write_workflows(feedstock, configs)
        if not (first or has_kiln_build_script(feedstock)):  # of another tool: why it has no workflow is said once
            lines = [line for line in lines if not line.startswith(f"no {NAME}")]
        return notes, [f"{total}: {changes}", *lines], None
    drift, workflow_lines = (ci_support_drift(feedstock, configs), workflow_drift(feedstock, configs))
    if not drift and not workflow_lines:
        return notes, [f"{total} {'is' if len(configs) == 1 else 'are'} up to date"], None
    lines = [*drift.lines, *workflow_lines]
    more = [f"... and {len(lines) - _SHOWN} more lines"] if len(lines) > _SHOWN else []
    why = [part for part in (drift.summary, f"{NAME} differs" if workflow_lines else "") if part]
    fault = MatrixDrift(
        f"{'.ci_support' if drift else NAME} is not up to date with the recipe and the variant files",
        why=", ".join(why),
        hint="kiln rerender" + (f" -e {options.pinning}" if options.pinning else " --no-pinning" * options.no_pinning),
    )
    return notes, [*lines[:_SHOWN], *more], fault


# Source of the message: commit_changes in conda_smithy/configure_feedstock.py, the only place where conda-smithy writes
# the pinning's version.
def commit_message(pinning: str) -> str:
    """Return the message of a commit; ``pinning`` is the version of conda-forge-pinning, empty without one."""
    from importlib import metadata

    with_pinning = f" and conda-forge-pinning {pinning}" if pinning else ""
    tools = "\n".join(f"- {name} {metadata.version(name)}" for name in _TOOLS)
    return f"MNT: Re-rendered with kiln {__version__}{with_pinning}\n\nOther tools:\n{tools}\n"


def commit_rerendered_files(feedstock: Feedstock, pinning: str, how: str) -> str:
    """Commit the files that a rerender writes, and no others; return a line for the terminal.

    ``how`` is AUTO, or EDIT to open git's editor with the message.
    """
    from kiln.feedstock.rerender import NAME

    root = feedstock.root
    _run_git(root, "rev-parse", "--git-dir")
    names = [str(feedstock.config_folder.relative_to(root)), NAME]
    tracked = [name for name in names if (root / name).exists() or _run_git(root, "ls-files", "--", name)]
    if not tracked or not _run_git(root, "status", "--porcelain", "--", *tracked):
        return "nothing to commit"
    _run_git(root, "add", "--all", "--", *tracked)
    if how == EDIT:
        _commit_with_editor(root, commit_message(pinning), tracked)
    else:
        _run_git(root, "commit", "--quiet", "--message", commit_message(pinning), "--", *tracked)
    return "committed: " + _run_git(root, "log", "-1", "--format=%h %s").strip()


def _run_git(root: Path, *arguments: str) -> str:
    from kiln.base import git

    return git.output(root, *arguments, env=os.environ, hint="commit the files yourself")


def _commit_with_editor(root: Path, text: str, names: list[str]) -> None:
    from kiln.base import git, process

    arguments = ("commit", "--quiet", "--edit", "--verbose", "--message", text, "--", *names)
    words, env = git.command(root, *arguments, env=os.environ)
    if process.run_on_terminal(words, env=env, cwd=root):
        raise UsageError(f"git commit failed in {root}", hint="commit the files yourself")
