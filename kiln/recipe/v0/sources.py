"""The sources of a recipe as its template reads them: files by name, and a git repository's revision."""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError, RecipeFault, TemplateFault, UnsafeTemplate
from kiln.base.patterns import lazy_pattern
from kiln.base.position import Place
from kiln.base.yaml import read_text
from kiln.recipe.v0.used_keys import REVISIONS
from kiln.recipe.variants.files import as_list

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
_INCLUDE = lazy_pattern(r"\[\s*include|refstorage[^\n]*:", re.IGNORECASE)  # settings and refs of other files
_OF_TAG = ("GIT_DESCRIBE_TAG", "GIT_DESCRIBE_NUMBER", "GIT_DESCRIBE_HASH")
_DESCRIPTION = lazy_pattern(r"(.+)-(\d+)-(g[0-9a-f]+)")
_PEP440 = lazy_pattern(r"[-_`azA-Z]*([a-zA-Z0-9.]+)-(\d+)-g([0-9a-f]{7,})")  # the characters are conda-build's


@lru_cache(maxsize=64)
def revision_variables(repository: Path, revision: str, feedstock: Path) -> Mapping[str, str]:
    """Return conda-build's names for a revision of a repository; without a tag, those of tags are left out."""
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
    """Return the text of a file at a revision; None where it has no such file."""
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
    """Return the folder that git reads of a repository: all of it is in the feedstock, and no link leads out of it."""
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
    from kiln.base import files

    for top, folders, names in files.walk(folder):
        for name in (*folders, *names):
            if (file := Path(top, name)).is_symlink():
                yield file


def _run_git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a command of git in a repository, and in none of the folders above; None where it fails."""
    from kiln.base import git  # few recipes read a repository, and each command starts with this module

    result = git.run(folder, *arguments, env=_SETTINGS, repository=folder, timeout=_SECONDS)
    return result.stdout if result.ok else None


_ADDRESSES = ("url", "git_url", "hg_url", "svn_url")


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The entries of a recipe's ``source`` section, in a feedstock whose recipe is in ``recipe``.

    ``final`` is false for the first passes over a template, in which a file that is missing counts as empty, since the
    entries themselves are not final yet. Then a file that would have to be fetched is an error, too.
    """

    recipe: Path
    entries: tuple[Mapping[str, Any], ...] = ()
    final: bool = False

    @classmethod
    def from_section(cls, recipe: Path, section: Any, *, final: bool) -> SourceFiles:
        """Return the sources of a recipe's ``source`` section; ``recipe`` is its resolved folder."""
        entries = tuple(entry for entry in as_list(section) if isinstance(entry, dict) and entry)
        return cls(recipe, entries, final)

    def source_file_text(self, name: str) -> str | None:
        """Return the text of a file of the sources; None where it is missing so far."""
        try:
            text = self._find_file_text(name)
        except KilnError:
            if self.final:
                raise
            return None
        if text is None and self.final:
            hint = "from_recipe_dir=True reads a file of the recipe"
            raise TemplateFault(f"file {name!r} not found in the recipe's source", hint=hint)
        return text

    def _find_file_text(self, name: str) -> str | None:
        for entry in reversed(self.entries):  # of two files with one name, conda-build has the later
            inner = _relative_to_source_folder(name, str(entry.get("folder") or ""))
            if inner is None:
                continue
            text = self._text_in_source(entry, inner)
            if text is not None:
                self._require_unpatched(entry, inner)
                return text
        return None

    def git_variables(self) -> Mapping[str, str]:
        """Return the names of conda-build for the revision of the first source, such as ``GIT_DESCRIBE_TAG``."""
        try:
            return self._read_git_variables()
        except KilnError:
            if self.final:
                raise
            return {}

    def _read_git_variables(self) -> Mapping[str, str]:
        entry, repository, revision = self.entries[0] if self.entries else {}, None, "HEAD"
        if entry.get("path") is not None:
            place = self._existing_local_path(str(entry["path"]))
            repository = place if (place / ".git").exists() else None
        elif entry.get("git_url"):
            repository, revision = self._repository_path_if_local(str(entry["git_url"])), _source_revision(entry)
        if repository is None:
            return {}

        return revision_variables(repository, revision, self.recipe.parent)

    def _text_in_source(self, entry: Mapping[str, Any], name: str) -> str | None:
        if entry.get("git_url") and not entry.get("url"):
            repository = self._repository_path_if_local(str(entry["git_url"]))
            if repository is not None:
                revision = _source_revision(entry)
                return file_text_at_revision(repository, revision, name, self.recipe.parent)
        elif entry.get("path") is not None and not entry.get("url"):
            path = self._existing_local_path(str(entry["path"]))
            file = (path / name).resolve() if path.is_dir() else path if path.name == name else None
            if file is None or not file.is_file():
                return None
            self._require_inside_feedstock(file, name)
            return read_text(file, name)
        if address := str(next((as_list(entry[key])[0] for key in _ADDRESSES if entry.get(key)), "")):
            what = f"the template reads {name[:80]!r} of a source that kiln does not fetch for a rendering"
            raise TemplateFault(what, why=f"its address is {address[:200]}", hint="write the value into the recipe")
        return None  # an entry without an address has no files

    def _existing_local_path(self, path: str) -> Path:
        """Return a folder or file of the feedstock."""
        place = (self.recipe / path).resolve()
        if not place.exists():
            raise RecipeFault(f"the source {path[:80]!r} does not exist", at=_PLACE, why="the template reads it")
        self._require_inside_feedstock(place, path)
        return place

    def _repository_path_if_local(self, address: str) -> Path | None:
        if "://" in address or not (address.startswith((".", "/")) or (self.recipe / address).is_dir()):
            return None
        return self._existing_local_path(address)

    def _require_inside_feedstock(self, place: Path, name: str) -> None:
        if not place.is_relative_to(self.recipe.parent):
            raise UnsafeTemplate(f"the template reads {name[:80]!r}", why="it is outside the feedstock")

    def _require_unpatched(self, entry: Mapping[str, Any], name: str) -> None:
        """Refuse a file that a patch of its source changes: patches are applied by a build alone."""
        for patch in as_list(entry.get("patches")):
            file = (self.recipe / str(patch)).resolve()
            self._require_inside_feedstock(file, str(patch))
            if file.is_file() and any(target in {name, f"b/{name}"} for target in _patched_files(file)):
                what, why = (
                    f"the template reads {name!r}, which {patch} changes",
                    "patches are applied by a build alone",
                )
                raise TemplateFault(what, why=why, hint="write the value into the recipe")


_PLACE = Place(file="recipe/meta.yaml")


def _relative_to_source_folder(name: str, folder: str) -> str | None:
    """Return a name relative to a source's folder in the work folder; None for a name outside of it."""
    relative = posixpath.relpath(posixpath.normpath(name), posixpath.normpath(folder or "."))
    return None if relative.startswith("..") or name.startswith("/") else relative


def _source_revision(entry: Mapping[str, Any]) -> str:
    return next((str(entry[key]) for key in REVISIONS if entry.get(key)), "HEAD")


def _patched_files(patch: Path) -> Iterator[str]:
    for line in read_text(patch, patch.name).splitlines():
        if line.startswith("+++ "):
            yield line[4:].split("\t")[0].strip()
