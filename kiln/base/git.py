"""Call git, so that it runs no program that a repository names, and say which commit a checkout is of."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import files, process
from kiln.base.errors import MissingTool, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kiln.base.process import ProcessResult

SECONDS = 60.0
COMMIT = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})(?:-dirty-([0-9a-f]{64}))?")  # the second one is of the changes
# A bare repository in a checkout would be used for a folder below it.
_SETTINGS = (
    *("safe.bareRepository=explicit", "core.fsmonitor=false", f"core.hooksPath={os.devnull}", "core.pager=cat"),
    "log.showSignature=false",
)
_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_NO_REPLACE_OBJECTS": "1",
}  # fmt: skip
# Settings that name programs: they count in the user's own files, not in those of a repository.
_PROGRAMS = re.compile(
    r"filter\..+\.(?:clean|smudge|process|required)|gpg(?:\..+)?\.program|credential(?:\..+)?\.helper|tar\..+\.command"
    r"|core\.(?:sshcommand|gitproxy|editor|askpass|alternaterefscommand)|diff\.(?:external|.+\.(?:command|textconv))"
    r"|merge\..+\.driver|remote\..+\.(?:uploadpack|receivepack|vcs)|trailer\..+\.(?:cmd|command)|sequence\.editor",
    re.IGNORECASE,
)
_OF_REPOSITORY = frozenset({"local", "worktree"})


def command(
    folder: Path, *arguments: str, env: Mapping[str, str], repository: Path | None = None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command line of git and its environment, for a folder, or for a named repository's own folder.

    Raises:
        MissingTool: git is missing.
        UsageError: the repository's settings cannot be read or overridden.
    """
    environment = {**env, **_ENVIRONMENT}
    words = ["git", *(word for setting in _SETTINGS for word in ("-c", setting))]
    words += ["--git-dir", str(repository)] if repository else []
    listing = (*words, "config", "--list", "--includes", "--show-scope", "--name-only", "-z")
    result = process.capture(listing, env=environment, cwd=folder, timeout=SECONDS)
    if not result.ok:
        raise UsageError(f"git cannot read the settings of {folder}", why=result.tail.strip())
    fields = result.stdout.split("\0")
    for scope, name in zip(fields[::2], fields[1::2], strict=False):
        if scope in _OF_REPOSITORY and _PROGRAMS.fullmatch(name):
            if "=" in name:  # git would read the rest as the value
                raise UsageError(f"the git repository of {folder} names a program", why=f"its setting {name!r}")
            words += ["-c", f"{name}={'false' if name.endswith('.required') else ''}"]
    return (*words, *arguments), environment


def run(
    folder: Path, *arguments: str, env: Mapping[str, str], repository: Path | None = None, timeout: float = SECONDS
) -> ProcessResult:
    """Run git in a folder, and return its result; see `command` for what it raises."""
    words, environment = command(folder, *arguments, env=env, repository=repository)
    return process.capture(words, env=environment, cwd=folder, timeout=timeout)


def output(folder: Path, *arguments: str, env: Mapping[str, str], hint: str = "") -> str:
    """Return the output of git in a folder.

    Raises:
        MissingTool: git is missing.
        UsageError: git fails.
    """
    result = run(folder, *arguments, env=env)
    if not result.ok:
        raise UsageError(f"git {arguments[0]} failed in {folder}", why=result.tail.strip(), hint=hint)
    return result.stdout


def output_or_empty(folder: Path, *arguments: str, env: Mapping[str, str]) -> str:
    """Return the output of git in a folder; empty without git, or if it fails."""
    with contextlib.suppress(MissingTool, UsageError):
        return output(folder, *arguments, env=env)
    return ""


def is_dirty(commit: str | None) -> bool:
    """Return whether a commit, as `checkout_commit` returns it, is that of a checkout with changes."""
    match = COMMIT.fullmatch(commit or "")
    return bool(match and match[2])


def base_commit(commit: str | None) -> str:
    """Return the commit that a checkout is of, without the hash of its changes; empty where it is unknown."""
    return (commit or "").partition("-dirty-")[0]


def short_commit(commit: str) -> str:
    """Return a commit as it is shown."""
    return f"{commit[:8]}-dirty" if is_dirty(commit) else commit[:8]


def checkout_commit(folder: Path, inputs: Sequence[Path], *, env: Mapping[str, str]) -> tuple[str, str]:
    """Return the commit of a checkout and its time in seconds since the epoch; both empty where there is none.

    ``COMMIT-dirty-SHA256`` for one that differs from its commit: a tracked file was changed or removed, or one of
    ``inputs``, files and folders in it, has another file, ignored or not. The hash is one over these files.
    """
    if not any((place / ".git").exists() for place in (folder, *folder.parents)):
        return "", ""
    with contextlib.suppress(MissingTool, UsageError), tempfile.TemporaryDirectory(prefix="kiln-git-") as scratch:
        commit, moment = output(folder, "log", "-1", "--format=%H %ct", env=env).split()
        # A fresh index has no file that is marked as unchanged, and shows what is staged as changed, too.
        fresh = {**env, "GIT_INDEX_FILE": str(Path(scratch, "index"))}
        output(folder, "read-tree", commit, env=fresh)
        names = set(output(folder, "ls-files", "-z", "--modified", "--", ".", env=fresh).split("\0"))
        paths = [os.path.relpath(path, folder) for path in inputs]
        names |= set(output(folder, "ls-files", "-z", "--others", "--", *paths, env=fresh).split("\0"))
        names.discard("")
        if names:
            contents = [entry for name in sorted(names) for entry in _contents(folder, folder / name)]
            commit = f"{commit}-dirty-{hashlib.sha256(json.dumps(contents).encode()).hexdigest()}"
        return commit, moment
    return "", ""


def _contents(root: Path, path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the relative path, the kind and the content of a file, or of all files below a folder."""
    name = path.relative_to(root).as_posix()
    try:
        mode = path.lstat().st_mode
    except OSError:
        yield name, "missing", ""
        return
    if stat.S_ISLNK(mode):
        yield name, "link", str(path.readlink())
    elif stat.S_ISREG(mode):
        yield name, "program" if mode & stat.S_IXUSR else "file", files.sha256(path)
    elif stat.S_ISDIR(mode):
        for entry in sorted(path.iterdir()):
            yield from _contents(root, entry)
    else:
        yield name, "other", ""
