"""Check out a repository of Mercurial, Subversion or git at a revision, for the engine to copy.

Source: hg_source, svn_source and git_source in conda_build/source.py. A recipe's addresses and revisions are never
options of the programs. A password goes to Subversion's standard input; it is on no command line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from kiln import masking, process_runner, rattler_process
from kiln.errors import DownloadFailed, RecipeFault

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.model.rendered import Checkout

    # Those that check out, the first one next to the new folder; and the one that prints the revision.
    Commands: TypeAlias = tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]

# No questions, and messages in English that this module reads; without UTF-8, Subversion refuses names of files.
_SETTINGS = {"HGPLAIN": "1", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8", "LANGUAGE": ""}
_NO_REVISION = re.compile(
    r"unknown revision|No such revision|Syntax error in revision|E205000|ambiguous identifier"
    r"|invalid reference|reference is not a tree|unable to read tree"
)
_HINT = "see that the repository can be reached and read from here, then run the same command again"


def check_out_repository(checkout: Checkout, folder: Path, *, env: Mapping[str, str]) -> str:
    """Check out a repository into a new folder, and return the revision that it has.

    Raises:
        RecipeFault: the address or the revision is invalid, or the repository does not have it.
        DownloadFailed: the repository cannot be read.
        MissingTool: the program is missing.
    """
    for value in (checkout.url, checkout.revision or "", checkout.user or ""):
        if value.startswith("-"):
            raise RecipeFault(f"source/{checkout.program}_url: {value[:80]!r} is an option", hint="give an address")
    masking.register_secrets([checkout.password] if checkout.password else ())
    environment = {**env, **_SETTINGS}
    folder.parent.mkdir(parents=True, exist_ok=True)
    commands_of = {"hg": _mercurial_commands, "svn": _subversion_commands, "git": _git_commands}
    (checkout_command, *commands), revision_command = commands_of[checkout.program](checkout, str(folder))
    stdin = checkout.password if checkout.program == "svn" else None
    _run_checkout_command(checkout, checkout_command, folder.parent, environment, stdin=stdin)
    for argv in commands:
        _run_checkout_command(checkout, argv, folder, environment)
    result = process_runner.capture(revision_command, env=environment, cwd=folder)
    return result.stdout.strip() if result.ok else ""


def _mercurial_commands(checkout: Checkout, folder: str) -> Commands:
    program = ("hg", "--noninteractive")
    clone = (*program, "clone", "--noupdate", "--", checkout.url, folder)
    update = (*program, "update", "--clean", f"--rev={checkout.revision or 'tip'}")
    return (clone, update), (*program, "log", "--rev=.", "--template={node}")


def _subversion_commands(checkout: Checkout, folder: str) -> Commands:
    argv = ["svn", "checkout", "--non-interactive", "--revision", checkout.revision or "HEAD"]
    if not checkout.externals:
        argv.append("--ignore-externals")
    if checkout.user is not None and checkout.password is not None:
        argv += ["--no-auth-cache", "--username", checkout.user, "--password-from-stdin"]
    return ((*argv, "--", checkout.url, folder),), ("svn", "info", "--show-item", "last-changed-revision", ".")


def _git_commands(checkout: Checkout, folder: str) -> Commands:
    depth = () if checkout.depth is None else ("--depth", str(checkout.depth))
    clone = ("git", "clone", "--quiet", *depth, "--", checkout.url, folder)
    switch = ("git", "checkout", "--quiet", checkout.revision or "HEAD", "--")
    submodules = ("git", "submodule", "--quiet", "update", "--init", "--recursive")
    return (clone, switch, submodules), ("git", "rev-parse", "HEAD")


def _run_checkout_command(
    checkout: Checkout, argv: tuple[str, ...], folder: Path, env: Mapping[str, str], stdin: str | None = None
) -> None:
    idle = rattler_process.current_limits().stall
    result = process_runner.run(argv, env=env, cwd=folder, stdin=stdin, idle=idle)
    if result.idle:
        raise DownloadFailed(f"{checkout.url} has sent nothing for {idle} s", hint=_HINT)
    if result.ok:
        return
    if _NO_REVISION.search(result.tail):
        raise RecipeFault(f"{checkout.url} has no revision {checkout.revision!r}", why=result.tail)
    raise DownloadFailed(f"{checkout.url} cannot be checked out", why=result.tail, hint=_HINT)
