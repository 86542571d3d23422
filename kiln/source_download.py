"""Download one source by http, https or file: hashed as it comes, written to a file or to none, within limits."""

from __future__ import annotations

import contextlib
import hashlib
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from kiln import channel_url_credentials, files, http_client
from kiln.archive_kinds import HEADER, kind_of_content, kind_of_name
from kiln.errors import DownloadFailed
from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

UNFINISHED = ".fetch-"  # the beginning of the names of folders with unfinished files
MOST_BYTES = 8_000_000_000  # of one file
MOST_SECONDS = 3600.0  # for one file
_CHUNK = 1 << 18
_UNREACHED = lazy_pattern(r"<urlopen error (?:\[Errno -?\d+\] )?(.*)>")


def fetch_and_hash(
    url: str,
    folder: Path,
    *,
    algorithms: Iterable[str],
    progress: Callable[[str], None] = lambda _text: None,
    target: Path | None = None,
    verify_kind: bool = True,
) -> Mapping[str, str]:
    """Return the hashes of what is at an address, which is written to ``target``, if given.

    ``folder`` is the one that an address without a scheme is relative to; ``progress`` gets the bytes received so far.
    Without ``verify_kind``, what has the name of an archive may be something else.

    Raises:
        DownloadFailed: the address cannot be read, exceeds a limit, breaks off, or is not the archive that its name
            says.
        DiskFull: when the disk is full.
    """
    full_disk = contextlib.nullcontext() if target is None else files.full_disk_as_kiln_error(target.parent)
    hashes = {name: hashlib.new(name, usedforsecurity=False) for name in algorithms}
    with (
        full_disk,
        contextlib.nullcontext() if target is None else target.open("wb") as sink,  # closed in full_disk
        _opened_source(url, folder) as (stream, size),
    ):
        total, beginning, announced = 0, b"", f" of {files.human_readable_size(size)}" if size else ""
        for chunk in _chunks_within_limits(stream, size, url):
            total += len(chunk)
            beginning = beginning or chunk[:HEADER]
            for digest in hashes.values():
                digest.update(chunk)
            if sink is not None:
                with files.full_disk_as_kiln_error(Path(sink.name).parent):
                    sink.write(chunk)
            progress(files.human_readable_size(total) + announced)
        if verify_kind:
            _require_archive(url, beginning)
    return {name: digest.hexdigest() for name, digest in hashes.items()}


def _opened_source(url: str, folder: Path) -> contextlib.AbstractContextManager[tuple[IO[bytes], int | None]]:
    """Open what is at an address; the size is None where a server does not announce it."""
    parts = urlsplit(url)
    if parts.scheme in {"http", "https"}:
        return _opened_response(url, parts.hostname or url)
    if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
        return _opened_file(url, Path(unquote(parts.path)))
    if not parts.scheme:
        return _opened_file(url, folder / url)
    raise DownloadFailed(url, why=f"kiln downloads by http, https and file, not by {parts.scheme}")


@contextlib.contextmanager
def _opened_response(url: str, host: str) -> Iterator[tuple[IO[bytes], int | None]]:
    bare, headers = _url_and_auth_headers(url)
    try:
        with http_client.send_request(bare, headers={"User-Agent": "kiln", **headers}) as response:
            yield response, http_client.content_length(response)
    except http_client.HttpError as error:
        match = _UNREACHED.fullmatch(str(error))
        why = f"{host} cannot be reached: {match[1]}" if match else str(error)
        raise DownloadFailed(url, why=why) from error


def _url_and_auth_headers(url: str) -> tuple[str, dict[str, str]]:
    """Return an address without the user and the password in it, and the headers that have them instead."""
    parts = urlsplit(url)
    if parts.username is None:
        return url, channel_url_credentials.request_headers(url)
    user, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=host).geturl(), channel_url_credentials.basic_auth_header(user)


@contextlib.contextmanager
def _opened_file(url: str, path: Path) -> Iterator[tuple[IO[bytes], int | None]]:
    if not path.is_file():  # a device or a pipe could have no end
        raise DownloadFailed(url, why="no such file" if not path.exists() else "not a regular file")
    try:
        with path.open("rb") as file:
            yield file, path.stat().st_size
    except OSError as error:
        raise DownloadFailed(url, why=error.strerror or str(error)) from error


def _chunks_within_limits(stream: IO[bytes], size: int | None, url: str) -> Iterator[bytes]:
    """Yield the content of a stream; raises DownloadFailed where it exceeds a limit, or has another size."""
    if size is not None and size > MOST_BYTES:
        raise DownloadFailed(
            url, why=f"it has {files.human_readable_size(size)}, the limit is {files.human_readable_size(MOST_BYTES)}"
        )
    total, end = 0, time.monotonic() + MOST_SECONDS
    while chunk := stream.read(_CHUNK):
        total += len(chunk)
        if time.monotonic() > end:
            raise DownloadFailed(url, why=f"it takes more than {MOST_SECONDS / 60:.0f} minutes")
        if total > MOST_BYTES:
            raise DownloadFailed(url, why=f"it has more than {files.human_readable_size(MOST_BYTES)}")
        yield chunk
    if size is not None and total != size:
        raise DownloadFailed(url, why=f"it broke off after {total:,} of {size:,} bytes")


def _require_archive(url: str, beginning: bytes) -> None:
    """Refuse a server's error page in place of an archive; one of another kind than its name says is none."""
    path = urlsplit(url).path
    kind = kind_of_name(path)
    if kind in {None, "tar"} or kind_of_content(beginning) is not None:  # an old tar file has no mark
        return
    content = "a web page" if beginning.lstrip().startswith(b"<") else "something else" if beginning else "nothing"
    raise DownloadFailed(url, why=f"the server sent {content}, not a {path[path.rindex('.') :].lower()} file")
