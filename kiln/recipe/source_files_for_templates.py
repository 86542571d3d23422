"""The sources of a recipe, as far as its template reads them: files by name, and the revision of a git repository.

conda-build lays the sources out in one work folder and reads there. Here nothing is laid out and nothing is run: a
file is read from the source that has it, inside the feedstock, with bounds on sizes; git answers for repositories.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kiln import files
from kiln.archive_kinds import file_name_of_url, is_archive
from kiln.errors import KilnError, RecipeFault, TemplateFault, UnsafeTemplate
from kiln.model.source_position import Place
from kiln.recipe.engine_unsupported_values import REVISIONS
from kiln.variants.files import as_list
from kiln.yamltext import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

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

    def source_file_text(self, name: str, *, optional: bool = False) -> str | None:
        """Return the text of a file of the sources; None where it is missing so far, or missing and ``optional``.

        Raises:
            TemplateFault: no source has the file, a patch changes it, or its source would have to be fetched.
            UnsafeTemplate: a source is outside the feedstock.
        """
        try:
            text = self._find_file_text(name)
        except KilnError:
            if self.final:
                raise
            return None
        if text is None and self.final and not optional:
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
        from kiln.recipe import git_repository

        return git_repository.revision_variables(repository, revision, self.recipe.parent)

    def _text_in_source(self, entry: Mapping[str, Any], name: str) -> str | None:
        if entry.get("url"):
            return self._text_in_url_source(entry, name)
        if entry.get("git_url"):
            from kiln.recipe import git_repository

            repository = self._repository_path_if_local(str(entry["git_url"]))
            if repository is not None:
                revision = _source_revision(entry)
                return git_repository.file_text_at_revision(repository, revision, name, self.recipe.parent)
        elif entry.get("path") is not None:
            return self._text_in_local_path(self._existing_local_path(str(entry["path"])), name)
        return self._refuse_remote_source(entry, name)

    def _refuse_remote_source(self, entry: Mapping[str, Any], name: str) -> str | None:
        """Refuse a file that would have to be fetched; an entry without an address has none."""
        address = _source_address(entry)
        if address:
            what = f"the template reads {name[:80]!r} of a source that kiln does not fetch for a rendering"
            raise TemplateFault(what, why=f"its address is {address[:200]}", hint="write the value into the recipe")
        return None

    def _text_in_local_path(self, path: Path, name: str) -> str | None:
        file = (path / name).resolve() if path.is_dir() else path if path.name == name else None
        if file is None or not file.is_file():
            return None
        self._require_inside_feedstock(file, name)
        return read_text(file, name)

    def _text_in_url_source(self, entry: Mapping[str, Any], name: str) -> str | None:
        places = [self._local_path_of_url(str(url)) for url in as_list(entry["url"])]
        archive = next((place for place in places if place is not None and place.is_file()), None)
        if archive is None:
            return self._refuse_remote_source(entry, name)
        self._require_inside_feedstock(archive.resolve(), _source_address(entry))
        title = str(entry.get("fn") or file_name_of_url(_source_address(entry)))
        if is_archive(title):
            from kiln.recipe.archive_search import archived_text

            return archived_text(archive, name, title, hoists="no_hoist" not in entry)
        return read_text(archive, name) if name == title else None

    def _local_path_of_url(self, url: str) -> Path | None:
        """Return the local file of an address; None for that of a server."""
        parts = urlsplit(url)
        if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
            return files.path_of_file_url(parts.path)
        return None if "://" in url else self.recipe / url

    def _existing_local_path(self, path: str) -> Path:
        """Return a folder or file of the feedstock."""
        place = (self.recipe / path).resolve()
        if not place.exists():
            raise RecipeFault(f"the source {path[:80]!r} does not exist", at=_PLACE, why="the template reads it")
        self._require_inside_feedstock(place, path)
        return place

    def _repository_path_if_local(self, address: str) -> Path | None:
        """Return the local repository of an address; None for that of a server."""
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


def _source_address(entry: Mapping[str, Any]) -> str:
    return str(next((as_list(entry[key])[0] for key in _ADDRESSES if entry.get(key)), ""))


def _source_revision(entry: Mapping[str, Any]) -> str:
    return next((str(entry[key]) for key in REVISIONS if entry.get(key)), "HEAD")


def _patched_files(patch: Path) -> Iterator[str]:
    for line in read_text(patch, patch.name).splitlines():
        if line.startswith("+++ "):
            yield line[4:].split("\t")[0].strip()
