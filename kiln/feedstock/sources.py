"""The sources of a recipe by their hashes: from a folder, a Python package index, a mirror, or their own address."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from kiln.base import files, http, locks
from kiln.base.errors import DownloadFailed, HashMismatch
from kiln.conda import pypi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kiln.recipe.rendered import Source

HASH_HINT = "kiln bump --hashes writes it, if the file is that version's; otherwise see who could have changed it"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnavailableItem:
    """A source that cannot be found, or a requested project without a fitting wheel, with the reason and what helps."""

    name: str
    reason: str
    hint: str = "put missing sources into a folder and name it with --distdir, or name a --mirror"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A source of the recipe by its hash: ``url`` has the file ``name``; ``origin`` describes where it is."""

    name: str
    sha256: str
    url: str
    origin: str
    size: int = 0


_TIMEOUT = 30.0  # seconds for an address to answer


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSearch:
    """The places in which sources are searched, in this order.

    ``store`` has fetched files, each in a folder named by its SHA-256, ``folder`` the user's downloads, ``mirror``
    files as ``MIRROR/HOST/PATH``. ``projects`` are names to ask the indexes for besides those in a source's own
    address; ``env`` is pip's environment.
    """

    store: Path
    folder: Path | None
    mirror: str | None
    projects: tuple[str, ...]
    env: Mapping[str, str]

    def locate_sources(self, sources: Iterable[Source]) -> tuple[tuple[SourceFile, ...], tuple[UnavailableItem, ...]]:
        """Return where each source file is, and those that cannot be had; nothing is downloaded."""
        located: dict[str, SourceFile] = {}
        missing: list[UnavailableItem] = []
        indexes: list[str] | None = None
        for source in sources:
            repository = source.git_url if source.checkout is None else source.checkout.url
            if repository is not None and not repository.startswith((".", "/", "file:")):
                reason = "a repository has no hash to find it by"
                hint = "kiln build without --rehearse clones it"
                missing.append(UnavailableItem(name=repository, reason=reason, hint=hint))
            if not remote_urls(source) or source.sha256 in located:
                continue
            if source.sha256 is None:
                reason = "the recipe has no sha256 to find it by"
                missing.append(UnavailableItem(name=source.url[0], reason=reason, hint="write the sha256 of each file"))
                continue
            here = self._find_in_folders(source, source.sha256)
            if here is None and indexes is None:
                indexes = list(pypi.configured_indexes(self.env))
            file = (
                here
                or self._find_on_indexes(source, source.sha256, indexes or [])
                or self._find_on_web(source, source.sha256)
            )
            if file is None:
                other = self._hash_on_indexes(source, indexes or [])
                reason = f"{other}, the recipe has {source.sha256}" if other else "no index has its hash"
                item = UnavailableItem(name=source.url[0], reason=f"{reason}; no address answers")
                missing.append(replace(item, hint=HASH_HINT) if other else item)
            else:
                located[source.sha256] = file
        return tuple(located.values()), tuple(missing)

    def _find_in_folders(self, source: Source, sha256: str) -> SourceFile | None:
        for name in source_file_names(source):
            for folder in filter(None, (self.store / sha256, self.folder)):
                path = folder / name
                if path.is_file() and files.sha256(path) == sha256:
                    size = path.stat().st_size
                    return SourceFile(
                        name=name, sha256=sha256, url=path.absolute().as_uri(), origin=str(folder), size=size
                    )
        return None

    def _find_on_indexes(self, source: Source, sha256: str, indexes: Iterable[str]) -> SourceFile | None:
        projects = possible_projects_of_source(source, self.projects)
        for file, project, index in pypi.files_on_indexes(projects, indexes):
            if file.sha256 == sha256:
                name = next(iter(source_file_names(source)))
                origin = f"{file.name} of {project} on {urlsplit(index).hostname or index}"
                return SourceFile(name=name, sha256=sha256, url=file.url, origin=origin, size=file.size)
        return None

    def _hash_on_indexes(self, source: Source, indexes: Iterable[str]) -> str:
        """Return which hash the file of a source's name has on the first index with it; empty for none."""
        names, projects = source_file_names(source), possible_projects_of_source(source, self.projects)
        for file, _, index in pypi.files_on_indexes(projects, indexes):
            if file.name in names:
                return f"the sha256 of {file.name} on {urlsplit(index).hostname or index} is {file.sha256}"
        return ""

    def _find_on_web(self, source: Source, sha256: str) -> SourceFile | None:
        for url, name in self._addresses_and_names(source):
            try:
                with http.send_request(
                    url, method="HEAD", headers={"User-Agent": "kiln"}, timeout=_TIMEOUT
                ) as response:
                    size = http.content_length(response) or 0
            except http.HttpError:
                continue
            return SourceFile(name=name, sha256=sha256, url=url, origin=urlsplit(url).hostname or url, size=size)
        return None

    def _addresses_and_names(self, source: Source) -> Iterator[tuple[str, str]]:
        for url in remote_urls(source):
            parts = urlsplit(url)
            name = Path(unquote(parts.path)).name
            if self.mirror is not None:
                yield f"{self.mirror.rstrip('/')}/{parts.netloc}{parts.path}", name
            yield url, name


def remote_urls(source: Source) -> tuple[str, ...]:
    """Return the addresses of a source on servers."""
    return tuple(url for url in source.url if url.startswith(("http://", "https://")))


def source_file_names(source: Source) -> tuple[str, ...]:
    """Return the names of a source's file at its addresses."""
    names = (Path(unquote(urlsplit(url).path)).name for url in remote_urls(source))
    return tuple(dict.fromkeys(name for name in names if name not in {"", ".."}))


def possible_projects_of_source(source: Source, more: Iterable[str]) -> tuple[str, ...]:
    """Return the projects of an index that may have a source: those of its addresses first."""
    names = (*map(pypi.project_of_url, source.url), *more)
    return tuple(dict.fromkeys(canonicalize_name(name) for name in names if name))


def missing_sources(sources: Iterable[SourceFile], store: Path) -> tuple[SourceFile, ...]:
    """Return the sources that ``fetch_sources`` would download; existing files are not read."""
    return tuple(source for source in sources if not stored_source_path(source, store).is_file())


def stored_source_path(source: SourceFile, store: Path) -> Path:
    """Return the path of a source in ``store``: different sources have the same name, such as ``v1.0.tar.gz``."""
    return store / source.sha256 / source.name


def fetch_sources(
    sources: Iterable[SourceFile],
    store: Path,
    *,
    env: Mapping[str, str],
    on_line: Callable[[str], None],
    on_received: Callable[[int, int | None], None] = lambda _done, _total: None,
) -> None:
    """Download or copy the sources that are missing from ``store``, and verify all.

    ``env`` is pip's environment: its indexes' credentials are used, which another process may have searched with.
    ``on_received`` gets how many bytes of how many are there, None where a server did not say.

    Raises:
        KilnError: HashMismatch, after removing the bad file, DownloadFailed, DiskFull.
    """
    store.mkdir(parents=True, exist_ok=True)
    sources = tuple(sources)
    if any(not source.url.startswith("file:") for source in missing_sources(sources, store)):
        pypi.configured_indexes(env)  # which keeps their credentials
    sizes = [source.size for source in missing_sources(sources, store)]
    total, before = sum(sizes) if all(sizes) else None, 0
    for source in sources:
        target = stored_source_path(source, store)
        if target.is_file() and files.sha256(target) == source.sha256:
            continue
        files.require_disk_space(store, source.size, for_what=f"fetching {source.name}")
        on_line(f"{source.name}: {source.origin}")
        with locks.temporary_folder(store, http.UNFINISHED) as folder:
            part = folder / "part"
            _download_source(source, part, lambda done, _size: on_received(before + done, total))  # noqa: B023
            before += source.size
            if total is not None:
                on_received(before, total)
            if (actual := files.sha256(part)) != source.sha256:
                raise HashMismatch(
                    f"{source.name} is not the recipe's source; it is not used",
                    why=f"its SHA-256 is {actual}, the recipe has {source.sha256}; it came from {source.origin}",
                    hint=HASH_HINT,
                )
            target.parent.mkdir(exist_ok=True)
            part.replace(target)


def _download_source(source: SourceFile, part: Path, progress: Callable[[int, int | None], None]) -> None:
    parts = urlsplit(source.url)
    if parts.scheme == "file":
        files.link_or_copy(Path(unquote(parts.path)), part)
        return
    try:
        http.fetch_and_hash(source.url, part.parent, algorithms=(), target=part, progress=progress)
    except DownloadFailed as error:
        raise DownloadFailed(
            f"{source.name} cannot be downloaded",
            why=f"{source.origin}: {error.why}",
            hint="run the same command again, or put the file into a folder and name it with --distdir",
        ) from error
