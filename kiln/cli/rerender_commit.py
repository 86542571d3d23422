"""The commit of a rerender: its message names kiln and the pinning, as conda-smithy's names itself and the pinning.

Source: commit_changes in conda_smithy/configure_feedstock.py, the only place where conda-smithy writes the pinning's
version.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kiln import __version__
from kiln.cli.allowed_environment_variables import git_output
from kiln.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.feedstock import Feedstock

AUTO, EDIT = "auto", "edit"
_TOOLS = ("py-rattler-build", "py-rattler")  # that render recipes and fetch pinnings


def message(pinning: str) -> str:
    """Return the message of a commit; ``pinning`` is the version of conda-forge-pinning, empty without one."""
    from importlib import metadata

    with_pinning = f" and conda-forge-pinning {pinning}" if pinning else ""
    tools = "\n".join(f"- {name} {metadata.version(name)}" for name in _TOOLS)
    return f"MNT: Re-rendered with kiln {__version__}{with_pinning}\n\nOther tools:\n{tools}\n"


def commit(feedstock: Feedstock, pinning: str, how: str) -> str:
    """Commit the files that a rerender writes, and no others; return a line for the terminal.

    ``how`` is AUTO, or EDIT to open git's editor with the message.

    Raises:
        UsageError: the folder is not in a git repository, or git refuses the commit.
    """
    from kiln.expand import workflow

    root = feedstock.root
    _git(root, "rev-parse", "--git-dir")
    names = [str(feedstock.config_folder.relative_to(root)), workflow.NAME]
    tracked = [name for name in names if (root / name).exists() or _git(root, "ls-files", "--", name)]
    if not tracked or not _git(root, "status", "--porcelain", "--", *tracked):
        return "nothing to commit"
    _git(root, "add", "--all", "--", *tracked)
    if how == EDIT:
        _commit_with_editor(root, message(pinning), tracked)
    else:
        _git(root, "commit", "--quiet", "--message", message(pinning), "--", *tracked)
    return "committed: " + _git(root, "log", "-1", "--format=%h %s").strip()


def _git(root: Path, *arguments: str) -> str:
    return git_output(root, os.environ, *arguments, hint="commit the files yourself")


def _commit_with_editor(root: Path, text: str, names: list[str]) -> None:
    from kiln import process_runner

    words = ("git", "commit", "--quiet", "--edit", "--verbose", "--message", text, "--", *names)
    if process_runner.run_on_terminal(words, env=dict(os.environ), cwd=root):
        raise UsageError(f"git commit failed in {root}", hint="commit the files yourself")
