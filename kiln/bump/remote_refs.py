"""The tags and branches of a git repository, asked for without a copy of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import process_runner
from kiln.errors import DownloadFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SECONDS = 120.0
# No questions, and none of git's transports that run other programs.
_SETTINGS = {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh", "LC_ALL": "C"}


def references(address: str, names: tuple[str, ...], folder: Path, *, env: Mapping[str, str]) -> dict[str, str]:
    """Return a repository's references with these names, or patterns of names, each with its commit.

    ``folder`` is the recipe's, which a path is relative to; ``env`` is git's environment.

    Raises:
        MissingTool: git is missing.
        DownloadFailed: the repository cannot be reached.
    """
    place = address if ":" in address else str((folder / address).resolve())
    argv = ("git", "ls-remote", "--", place, *names)
    result = process_runner.capture(argv, env={**env, **_SETTINGS}, timeout=_SECONDS)
    if not result.ok:
        lines = [line for line in result.tail.splitlines() if line.startswith("fatal:")] or result.tail.splitlines()
        why = (lines or [f"git ended with exit code {result.exit_code}"])[0]
        raise DownloadFailed(f"{address} cannot be reached", why=why, hint="check the repository's address")
    rows = (line.partition("\t") for line in result.stdout.splitlines())
    return {name: commit for commit, _, name in rows}
