"""The hashes of new sources: files are downloaded and hashed as they come, revisions are looked up; nothing is kept."""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from kiln import files, http_client
from kiln.bump.remote_refs import references
from kiln.errors import DownloadFailed, HashMismatch, MissingTool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from kiln.bump.hash_literals import Download
    from kiln.bump.literals import Literal

    OnFile = Callable[[str], AbstractContextManager[Callable[[str], None]]]

MOST_BYTES = 8_000_000_000  # of one file
MOST_SECONDS = 3600.0  # for one file
_CHUNK = 1 << 18
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_UNREACHED = re.compile(r"<urlopen error (?:\[Errno -?\d+\] )?(.*)>")
# The beginnings of archives by the ends of their names, so that a server's error page is not hashed.
_MAGIC = {
    (".gz", ".tgz"): b"\x1f\x8b",
    (".zip", ".whl", ".conda"): b"PK",
    (".bz2", ".tbz2", ".tbz"): b"BZh",
    (".xz", ".txz"): b"\xfd7zXZ\x00",
    (".zst",): b"\x28\xb5\x2f\xfd",
    (".7z",): b"7z\xbc\xaf\x27\x1c",
}
_MAGIC_LENGTH = 6


def digests(
    downloads: Iterable[Download],
    folder: Path,
    *,
    env: Mapping[str, str],
    on_file: OnFile,
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
            with on_file(download.name) as progress:
                hashes, note = _hashes(download, folder, env, progress)
        except DownloadFailed as fault:
            faults.append(fault)
            continue
        notes += [note] if note else []
        for literal, algorithm in download.hashes:
            value = hashes[algorithm]
            if values.setdefault(literal, value) != value:
                why = f"{download.name} has the {algorithm} {value}, another one has {values[literal]}"
                hint = "give each source its own hash in the recipe"
                raise HashMismatch("different sources share a hash in the recipe", why=why, hint=hint)
    if faults:
        first, *others = faults
        raise DownloadFailed(first.what, why=first.why, hint=first.hint, others=others)
    return values, tuple(notes)


def _hashes(
    download: Download, folder: Path, env: Mapping[str, str], progress: Callable[[str], None]
) -> tuple[Mapping[str, str], str]:
    """Return the hashes of a download by algorithm, and a note."""
    algorithms = tuple(dict.fromkeys(algorithm for _, algorithm in download.hashes))
    if download.urls:
        return _of_mirrors(download.urls, algorithms, folder, progress)
    if download.git:
        return _of_revision(download, folder, env)
    return {}, f"{download.name} is not looked up: kiln asks git repositories alone"


def _of_mirrors(
    urls: tuple[str, ...], algorithms: tuple[str, ...], folder: Path, progress: Callable[[str], None]
) -> tuple[Mapping[str, str], str]:
    """Return the hashes of the first URL that works."""
    reasons = []
    for url in urls:
        try:
            hashes = _of_url(url, algorithms, folder, progress)
        except DownloadFailed as fault:
            reasons.append(f"{url}: {fault.why}")
        else:
            note = f"{url} has no hash in the recipe" if not algorithms else ""
            return hashes, "; ".join([*([note] if note else []), *(f"not used: {reason}" for reason in reasons)])
    what = f"{urls[0]} cannot be downloaded" if len(urls) == 1 else f"none of {len(urls)} URLs can be downloaded"
    why = reasons[0].removeprefix(f"{urls[0]}: ") if len(urls) == 1 else "\n       ".join(reasons)
    raise DownloadFailed(what, why=why, hint="check the version, and whether upstream has released it there")


def _of_url(url: str, algorithms: tuple[str, ...], folder: Path, progress: Callable[[str], None]) -> Mapping[str, str]:
    parts = urlsplit(url)
    if parts.scheme in {"http", "https"}:
        try:
            with http_client.opened(url, headers={"User-Agent": "kiln"}) as response:
                return _hashed(response, url, algorithms, http_client.announced_size(response), progress)
        except http_client.HttpError as error:
            match = _UNREACHED.fullmatch(str(error))
            why = f"{parts.hostname} cannot be reached: {match[1]}" if match else str(error)
            raise DownloadFailed(url, why=why) from error
    if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
        return _of_file(Path(unquote(parts.path)), url, algorithms, progress)
    if not parts.scheme:
        return _of_file(folder / url, url, algorithms, progress)
    raise DownloadFailed(url, why=f"kiln downloads by http, https and file, not by {parts.scheme}")


def _of_file(path: Path, url: str, algorithms: tuple[str, ...], progress: Callable[[str], None]) -> Mapping[str, str]:
    if not path.is_file():  # a device or a pipe could have no end
        raise DownloadFailed(url, why="no such file" if not path.exists() else "not a regular file")
    try:
        with path.open("rb") as file:
            return _hashed(file, url, algorithms, path.stat().st_size, progress)
    except OSError as error:
        raise DownloadFailed(url, why=error.strerror or str(error)) from error


def _hashed(
    stream: IO[bytes], url: str, algorithms: tuple[str, ...], size: int | None, progress: Callable[[str], None]
) -> Mapping[str, str]:
    """Return the hashes of a stream.

    Raises:
        DownloadFailed: it is too large, takes too long, breaks off, or is not the archive that its name says.
    """
    if size is not None and size > MOST_BYTES:
        raise DownloadFailed(url, why=f"it has {files.size_text(size)}, the limit is {files.size_text(MOST_BYTES)}")
    hashes = {name: hashlib.new(name, usedforsecurity=False) for name in algorithms}
    total, beginning = 0, b""
    for chunk in _chunks(stream, url):
        total += len(chunk)
        if total > MOST_BYTES:
            raise DownloadFailed(url, why=f"it has more than {files.size_text(MOST_BYTES)}")
        beginning = beginning or chunk[:_MAGIC_LENGTH]
        for digest in hashes.values():
            digest.update(chunk)
        progress(files.size_text(total) + (f" of {files.size_text(size)}" if size else ""))
    if size is not None and total != size:
        raise DownloadFailed(url, why=f"it broke off after {total:,} of {size:,} bytes")
    _require_archive(url, beginning)
    return {name: digest.hexdigest() for name, digest in hashes.items()}


def _chunks(stream: IO[bytes], url: str) -> Iterator[bytes]:
    end = time.monotonic() + MOST_SECONDS
    while chunk := stream.read(_CHUNK):
        if time.monotonic() > end:
            raise DownloadFailed(url, why=f"it takes more than {MOST_SECONDS / 60:.0f} minutes")
        yield chunk


def _require_archive(url: str, beginning: bytes) -> None:
    path = urlsplit(url).path.lower()
    for ends, magic in _MAGIC.items():
        if path.endswith(ends) and not beginning.startswith(magic):
            kind = "a web page" if beginning.lstrip().startswith(b"<") else "something else" if beginning else "nothing"
            raise DownloadFailed(url, why=f"the server sent {kind}, not a {path[path.rindex('.') :]} file")


def _of_revision(download: Download, folder: Path, env: Mapping[str, str]) -> tuple[Mapping[str, str], str]:
    """Return the commit of a repository's tag or branch."""
    tag = f"refs/tags/{download.revision}"
    order = (f"{tag}^{{}}", tag, f"refs/heads/{download.revision}")  # first the commit of an annotated tag
    try:
        commits = references(download.git, order, folder, env=env)
    except MissingTool as error:
        raise DownloadFailed(f"{download.name} cannot be looked up", why=error.what, hint=error.hint) from error
    if commit := next((commits[name] for name in order if name in commits), ""):
        return {"commit": commit}, ""
    if _COMMIT.fullmatch(download.revision) and not download.hashes:
        return {}, f"{download.name}: a commit is not looked up"
    why = "the repository has no such tag or branch"
    raise DownloadFailed(f"{download.name} does not exist", why=why, hint="check the version, and upstream's tags")
