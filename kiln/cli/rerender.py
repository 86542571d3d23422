"""``kiln rerender``: write .ci_support and the CI workflow and commit them, or check that they are up to date."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kiln import __version__
from kiln.cli import pinning_selection
from kiln.cli.commands_in_hints import make_pasteable
from kiln.cli.run_view_choice_and_printing import print_notes
from kiln.errors import MatrixDrift, UsageError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from kiln.model.feedstock import Feedstock
    from kiln.template.namespace import Doubts

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
    pinning_selection.add_arguments(parser)


def run(options: argparse.Namespace, root: Path) -> int:
    """Write the files, or check them.

    Raises:
        MatrixDrift: if the checked files differ.
        PinningNeeded: if keys have no value without a pinning, and none can be fetched.
        UsageError: if git refuses the commit.
    """
    from kiln import feedstock_folder_check, limits

    (notes, lines, fault), variant_file = pinning_selection.run_with_pinning(
        options, root, lambda variant_file: (rerender(options, root, variant_file), variant_file)
    )
    print_notes(make_pasteable(note, root) for note in notes)
    print("\n".join(lines))
    if fault:
        raise fault
    if options.commit:
        from kiln.expand import pinning_package

        feedstock = limits.run_bounded(lambda: feedstock_folder_check.load(root))
        pinning = "" if variant_file is None else pinning_package.version_of_pinning_file(variant_file)
        print(commit_rerendered_files(feedstock, pinning, options.commit))
    return 0


def rerender(
    options: argparse.Namespace, root: Path, variant_file: Path | None
) -> tuple[list[str], list[str], MatrixDrift | None]:
    """Write or check the files; return notes, the lines to print, and the error of a check."""
    from kiln import conda_forge_yml, expand, feedstock_folder_check
    from kiln.console.text import count_text
    from kiln.expand import ci_limit_notes, github_workflow_writer

    feedstock = feedstock_folder_check.load(root)
    doubts: Doubts = {}
    configs = expand.configs(feedstock, variant_file, doubts)
    notes = [
        *conda_forge_yml.no_effect_notes(feedstock.conda_forge_yml),
        *map(str, doubts.values()),
        *ci_limit_notes.limit_excess_notes(feedstock, configs),
    ]
    total = f"{count_text(len(configs), 'config')} in {feedstock.config_folder}"
    if not options.check:
        changes = expand.write_ci_support(feedstock, configs).summary or "nothing to change"
        return notes, [f"{total}: {changes}", *github_workflow_writer.write_workflows(feedstock, configs)], None
    drift, workflow_lines = (
        expand.ci_support_drift(feedstock, configs),
        github_workflow_writer.workflow_drift(feedstock, configs),
    )
    if not drift and not workflow_lines:
        return notes, [f"{total} {'is' if len(configs) == 1 else 'are'} up to date"], None
    lines = [*drift.lines, *workflow_lines]
    more = [f"... and {len(lines) - _SHOWN} more lines"] if len(lines) > _SHOWN else []
    why = [part for part in (drift.summary, f"{github_workflow_writer.NAME} differs" if workflow_lines else "") if part]
    fault = MatrixDrift(
        f"{'.ci_support' if drift else github_workflow_writer.NAME} is not up to date "
        "with the recipe and the variant files",
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

    Raises:
        UsageError: the folder is not in a git repository, or git refuses the commit.
    """
    from kiln.expand import github_workflow_writer

    root = feedstock.root
    _run_git(root, "rev-parse", "--git-dir")
    names = [str(feedstock.config_folder.relative_to(root)), github_workflow_writer.NAME]
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
    from kiln import git

    return git.output(root, *arguments, env=os.environ, hint="commit the files yourself")


def _commit_with_editor(root: Path, text: str, names: list[str]) -> None:
    from kiln import git, process_runner

    arguments = ("commit", "--quiet", "--edit", "--verbose", "--message", text, "--", *names)
    words, env = git.command(root, *arguments, env=os.environ)
    if process_runner.run_on_terminal(words, env=env, cwd=root):
        raise UsageError(f"git commit failed in {root}", hint="commit the files yourself")
