"""Which sources rattler-build gets by itself, and further places of a source archive."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from kiln.base.patterns import file_name_of_url, is_archive, is_unpacked_by_rattler_build, is_wheel
from kiln.build.steps import FetchedSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.recipe.rendered import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMirrors:
    """A folder with files under the names that they have at their addresses, and the address of a mirror.

    ``by_hash`` has such files in folders named by their SHA-256.
    A mirror has a file under its own address without the scheme, ``MIRROR/github.com/...``, as in TensorFlow's
    (third_party/repo.bzl of its sources, tf_mirror_urls). ``kept`` is the folder of the files that kiln fetches.
    """

    folder: Path | None = None
    mirror: str | None = None
    by_hash: Path | None = None
    kept: Path | None = None

    def urls_to_try(self, urls: Iterable[str], sha256: str = "") -> list[str]:
        """Return the addresses to try for a file, in order; a file that is not remote has only its own."""
        originals = list(urls)
        remote = [urlsplit(url) for url in originals if url.startswith(("http://", "https://"))]
        names = dict.fromkeys(Path(unquote(url.path)).name for url in remote)
        folders = (self.by_hash / sha256 if self.by_hash is not None and sha256 else None, self.folder)
        here = [folder / name for folder in folders for name in names if folder is not None and name]
        mirrored = [f"{self.mirror.rstrip('/')}/{url.netloc}{url.path}" for url in remote if self.mirror is not None]
        return [*(file.absolute().as_uri() for file in here if file.is_file()), *mirrored, *originals]


def recipe_with_mirror_urls(recipe: Mapping[str, Any], origins: SourceMirrors) -> dict[str, Any]:
    """Return a concrete recipe whose sources have the addresses of the mirrors, too."""
    sources = [
        {**entry, "url": origins.urls_to_try(entry["url"], entry["sha256"])}
        if "url" in entry and "sha256" in entry
        else entry
        for entry in recipe.get("source", ())
    ]
    return {**recipe, "source": sources} if sources else dict(recipe)


def source_file_name(source: Source) -> str:
    """Return the name of a source's file, by which conda-build knows how to unpack it."""
    return source.archive_name or source.file_name or (file_name_of_url(source.url[0]) if source.url else "")


def is_fetched_by_kiln(source: Source) -> bool:
    """Return whether kiln fetches a source, so that the engine gets a local file or folder."""
    if source.by_engine:
        return is_unpacked_by_kiln(source)
    if source.url:
        local = any("://" not in url for url in source.url)
        return bool(source.hashes or source.archive_name or local) or is_unpacked_by_kiln(source)
    return source.checkout is not None or (source.git_url is not None and bool(source.content_hashes))


def is_unpacked_by_kiln(source: Source) -> bool:
    """Return whether kiln unpacks a source's file, since the engine cannot, or would do it in another way."""
    name = source_file_name(source) or (Path(source.path).name if source.path and source.by_engine else "")
    if source.by_engine:  # a file with a name of its own is not unpacked
        return source.file_name is None and name.lower().endswith(".7z")
    if not source.url:
        return False
    foreign = is_archive(name) and not is_wheel(name) and not is_unpacked_by_rattler_build(name)
    return source.no_hoist or bool(source.content_hashes) or foreign or (is_wheel(name) and bool(source.patches))


def sources_fetched_by_kiln(sources: Iterable[Source], recipe_folder: Path) -> tuple[FetchedSource, ...]:
    """Return the sources that kiln fetches or verifies, with the positions of their entries in the engine's recipe."""
    result, position = [], 0
    for source in sources:
        if is_fetched_by_kiln(source) or (source.content_hashes and not source.by_engine):
            place = None if source.linked else position
            result.append(FetchedSource(source=_with_absolute_paths(source, recipe_folder), position=place))
        position += not source.linked
    return tuple(result)


def archives_unpacked_by_engine(sources: Iterable[Source], recipe_folder: Path) -> tuple[FetchedSource, ...]:
    """Return the sources that the engine fetches and unpacks; kiln does when their content is not what their name says.

    Those of a recipe.yaml are the engine's alone.
    """
    entries = [source for source in sources if not source.linked]
    return tuple(
        FetchedSource(source=_with_absolute_paths(source, recipe_folder), position=position)
        for position, source in enumerate(entries)
        if source.url
        and not source.by_engine
        and not is_fetched_by_kiln(source)
        and is_archive(source_file_name(source))
    )


def absolute_repository_address(address: str, recipe_folder: Path) -> str:
    """Return the address of a repository; one that begins with a dot is relative to the recipe, as in conda-build."""
    return str((recipe_folder / address).resolve()) if address.startswith(".") else address


def _with_absolute_paths(source: Source, recipe_folder: Path) -> Source:
    checkout = source.checkout
    if checkout is not None:
        checkout = dataclasses.replace(checkout, url=absolute_repository_address(checkout.url, recipe_folder))
    return dataclasses.replace(
        source,
        url=tuple(url if "://" in url else (recipe_folder / Path(url).expanduser()).as_uri() for url in source.url),
        path=None if source.path is None else str((recipe_folder / source.path).resolve()),
        git_url=source.git_url and absolute_repository_address(source.git_url, recipe_folder),
        checkout=checkout,
    )


def symlink_sources_lines(sources: Iterable[Source], recipe_folder: Path) -> tuple[str, ...]:
    """Return the shell lines that make the links of ``path_via_symlink`` in the work directory."""
    lines = []
    for source in sources:
        if source.linked and source.path is not None and source.folder is not None:
            folder = PurePosixPath(source.folder)
            target = shlex.quote(str((recipe_folder / source.path).resolve()))
            parent, link = shlex.quote(str(folder.parent)), shlex.quote(str(folder))
            check = f'[ "$(readlink -- {link})" = {target} ]'  # a script of --debug runs again
            lines.append(f"mkdir -p -- {parent} && {{ {check} || ln -sT -- {target} {link}; }} || exit 1")
    return tuple(lines)
