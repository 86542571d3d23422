"""A local git repository as conda-build's templates know it, asked for without running any program that it names."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import files, git
from kiln.errors import RecipeFault, UnsafeTemplate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SECONDS = 30.0
_MAX_SIZE = 4 << 20  # bytes of a file
# The user's and the system's settings do not count, and the repository's own run no program.
_SETTINGS = {
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ALLOW_PROTOCOL": "", "LC_ALL": "C",
    "PATH": os.defpath,
}  # fmt: skip
_ELSEWHERE = ("commondir", "objects/info/alternates", "objects/info/http-alternates")
_SETTINGS_FILES = ("config", "config.worktree")
_INCLUDE = re.compile(r"\[\s*include|refstorage[^\n]*:", re.IGNORECASE)  # settings and refs of other files
_OF_TAG = ("GIT_DESCRIBE_TAG", "GIT_DESCRIBE_NUMBER", "GIT_DESCRIBE_HASH")
_DESCRIPTION = re.compile(r"(.+)-(\d+)-(g[0-9a-f]+)")
_PEP440 = re.compile(r"[-_`azA-Z]*([a-zA-Z0-9.]+)-(\d+)-g([0-9a-f]{7,})")  # the characters are conda-build's


@lru_cache(maxsize=64)
def revision_variables(repository: Path, revision: str, feedstock: Path) -> Mapping[str, str]:
    """Return conda-build's names for a revision of a repository; without a tag, those of tags are left out.

    Raises:
        RecipeFault: the repository does not have the revision.
        UnsafeTemplate: a part of the repository is outside the feedstock.
        MissingTool: git is missing.
    """
    folder = _safe_git_folder(repository, feedstock)
    commit = _git_output(folder, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    if commit is None:
        raise RecipeFault(f"the git repository {repository.name!r} has no revision {revision[:80]!r}")
    values = {"GIT_FULL_HASH": commit}
    if match := _DESCRIPTION.fullmatch(_git_output(folder, "describe", "--tags", "--long", commit) or ""):
        values |= dict(zip(_OF_TAG, match.groups(), strict=True))
        values["GIT_DESCRIBE_TAG_PEP440"] = str(_pep440_version(match[0]))
        values["GIT_BUILD_STR"] = f"{match[2]}_{match[3]}"
    elif match := _DESCRIPTION.fullmatch(_git_output(folder, "describe", "--all", "--long", commit) or ""):
        values["GIT_DESCRIBE_HASH"] = match[3]
    return values


def file_text_at_revision(repository: Path, revision: str, name: str, feedstock: Path) -> str | None:
    """Return the text of a file at a revision; None where it has no such file.

    Raises:
        RecipeFault: the file exceeds the size limit.
        UnsafeTemplate: a part of the repository is outside the feedstock.
    """
    folder = _safe_git_folder(repository, feedstock)
    blob = f"{revision}:{name}"
    size = _git_output(folder, "cat-file", "-s", "--end-of-options", blob)
    if size is None or _git_output(folder, "cat-file", "-t", "--end-of-options", blob) != "blob":
        return None
    if int(size) > _MAX_SIZE:
        raise RecipeFault(f"{name[:80]!r} has {int(size):,} bytes", why=f"the limit is {_MAX_SIZE:,}")
    return _run_git(folder, "cat-file", "blob", "--end-of-options", blob)


def _pep440_version(description: str) -> str | None:
    """Return the version of a description; conda-build's rule (``get_version_from_git_tag``)."""
    match = _PEP440.fullmatch(description)
    if match is None:
        return None
    return match[1] if match[2] == "0" else f"{match[1]}.post{match[2]}+{match[3]}"


def _git_output(folder: Path, *arguments: str) -> str | None:
    output = _run_git(folder, *arguments)
    return None if output is None else output.strip()


def _safe_git_folder(repository: Path, feedstock: Path) -> Path:
    """Return the folder that git reads of a repository: all of it is in the feedstock, and no link leads out of it.

    Raises:
        RecipeFault: the repository is not complete.
        UnsafeTemplate: a part of it is outside the feedstock.
    """
    what = f"the template reads the git repository {repository.name!r}"
    place = repository / ".git"
    folder = (place if place.exists() else repository).resolve()
    if not folder.is_relative_to(feedstock.resolve()):
        raise UnsafeTemplate(what, why="it is outside the feedstock")
    if not folder.is_dir() or any((folder / name).exists() for name in _ELSEWHERE):
        why = "its objects are in another folder, as those of a worktree, a submodule or a shared clone"
        raise RecipeFault(f"the git repository {repository.name!r} is not complete in the feedstock", why=why)
    for link in _symbolic_links(folder):
        if not Path(os.path.realpath(link)).is_relative_to(folder):
            raise UnsafeTemplate(what, why=f"{link.relative_to(folder)} is a link out of its folder")
    for name in _SETTINGS_FILES:
        file = folder / name
        if file.is_file() and _INCLUDE.search(file.read_text(encoding="utf-8", errors="replace")):
            raise UnsafeTemplate(what, why=f"its {name} includes other files")
    return folder


def _symbolic_links(folder: Path) -> Iterator[Path]:
    for top, folders, names in files.walk(folder):
        for name in (*folders, *names):
            if (file := Path(top, name)).is_symlink():
                yield file


def _run_git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a command of git in a repository, and in none of the folders above; None where it fails."""
    result = git.run(folder, *arguments, env=_SETTINGS, repository=folder, timeout=_SECONDS)
    return result.stdout if result.ok else None
