"""The hashes of new sources: files are downloaded and hashed as they come, revisions are looked up; nothing is kept."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from kiln import http_client, source_download
from kiln.bump.source_hash_literals import COMMIT, SourceDownload
from kiln.bump.upstream import list_git_references
from kiln.errors import DownloadFailed, HashMismatch, MissingTool, raise_all
from kiln.rehearse import pip_index_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from kiln.bump.literals import Literal

    OnFile = Callable[[str], AbstractContextManager[Callable[[str], None]]]


def hashes_of_downloads(
    downloads: Iterable[SourceDownload], folder: Path, *, env: Mapping[str, str], on_file: OnFile
) -> tuple[dict[Literal, str], tuple[str, ...]]:
    """Return the new values of all hashes, and notes.

    ``folder`` is the recipe's, which local paths are relative to; ``on_file`` gets the name of each download, and is a
    context whose value gets its progress.

    Raises:
        DownloadFailed: sources cannot be downloaded; all of them are named.
        HashMismatch: two files share a hash in the recipe, and differ.
    """
    values: dict[Literal, str] = {}
    notes: list[str] = []
    faults: list[DownloadFailed] = []
    for download in downloads:
        try:
            with on_file(download.display_name) as progress:
                hashes, note = _hashes_of_download(download, folder, env, progress)
        except DownloadFailed as fault:
            faults.append(fault)
            continue
        notes += [note] if note else []
        for literal, algorithm in download.hashes:
            value = hashes[algorithm]
            if values.setdefault(literal, value) != value:
                why = f"{download.display_name} has the {algorithm} {value}, another one has {values[literal]}"
                hint = "give each source its own hash in the recipe"
                raise HashMismatch("different sources share a hash in the recipe", why=why, hint=hint)
    raise_all(faults)
    return values, tuple(notes)


def _hashes_of_download(
    download: SourceDownload, folder: Path, env: Mapping[str, str], progress: Callable[[str], None]
) -> tuple[Mapping[str, str], str]:
    """Return the hashes of a download by algorithm, and a note."""
    algorithms = tuple(dict.fromkeys(algorithm for _, algorithm in download.hashes))
    if download.source.urls:
        return _hashes_from_first_working_url(download.source.urls, algorithms, folder, env, progress)
    if download.source.git:
        return _commit_of_revision(download, folder, env)
    return {}, f"{download.display_name} is not looked up: kiln asks git repositories alone"


def _hashes_from_first_working_url(
    urls: tuple[str, ...],
    algorithms: tuple[str, ...],
    folder: Path,
    env: Mapping[str, str],
    progress: Callable[[str], None],
) -> tuple[Mapping[str, str], str]:
    """Return the hashes of the first URL that works; of a Python package, pip's index is the last one."""
    reasons = []
    for url in itertools.chain(urls, _urls_on_package_index(urls, env)):
        try:
            hashes = source_download.fetch_and_hash(url, folder, algorithms=algorithms, progress=progress)
        except DownloadFailed as fault:
            reasons.append(f"{url}: {fault.why}")
        else:
            notes = [] if algorithms else [f"{url} has no hash in the recipe"]
            notes += [] if url in urls else [f"the hash is that of the file on pip's index: {url}"]
            return hashes, "; ".join([*notes, *(f"not used: {reason}" for reason in reasons)])
    what = f"{urls[0]} cannot be downloaded" if len(urls) == 1 else f"none of {len(urls)} URLs can be downloaded"
    why = reasons[0].removeprefix(f"{urls[0]}: ") if len(urls) == 1 else "\n       ".join(reasons)
    raise DownloadFailed(what, why=why, hint="check the version, and whether upstream has released it there")


def _urls_on_package_index(urls: tuple[str, ...], env: Mapping[str, str]) -> Iterator[str]:
    """Yield where pip's indexes have the file of a source; an index never has two files of one name."""
    for url in urls:
        project, name = pip_index_client.project_of_url(url), PurePosixPath(unquote(urlsplit(url).path)).name
        for index in pip_index_client.configured_indexes(env) if project else ():
            with contextlib.suppress(http_client.HttpError):
                yield from (file.url for file in pip_index_client.project_files(project, index) if file.name == name)


def _commit_of_revision(
    download: SourceDownload, folder: Path, env: Mapping[str, str]
) -> tuple[Mapping[str, str], str]:
    """Return the commit of a repository's tag or branch."""
    tag = f"refs/tags/{download.source.revision}"
    order = (f"{tag}^{{}}", tag, f"refs/heads/{download.source.revision}")  # first the commit of an annotated tag
    try:
        commits = list_git_references(download.source.git, order, folder, env=env)
    except MissingTool as error:
        raise DownloadFailed(f"{download.display_name} cannot be looked up", why=error.what, hint=error.hint) from error
    if commit := next((commits[name] for name in order if name in commits), ""):
        return {"commit": commit}, ""
    if COMMIT.fullmatch(download.source.revision) and not download.hashes:
        return {}, f"{download.display_name}: a commit is not looked up"
    why = "the repository has no such tag or branch"
    raise DownloadFailed(
        f"{download.display_name} does not exist", why=why, hint="check the version, and upstream's tags"
    )
