"""HTTP: one attempt per request, credentials that do not travel, and downloads that are hashed as they come."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from kiln.base import files, masking, secret_forms
from kiln.base.errors import DownloadFailed
from kiln.base.patterns import HEADER, kind_of_content, kind_of_name, lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from http.client import HTTPMessage, HTTPResponse
    from urllib.parse import SplitResult

    from rattler.networking import Client


_CHANNEL = lazy_pattern(r"(?P<scheme>https?://)(?:(?P<user>[^/?#\s]*)@)?(?P<host>[^/?#@\s]+)(?P<path>[^?#\s]*)")
_TOKEN = lazy_pattern(r"/t/(?P<token>[^/]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCredentials:
    """The credentials of one channel: a user with a password, or a token in the path.

    ``full`` is the channel as it was named, ``bare`` the channel without the credentials.
    """

    bare: str
    full: str = field(repr=False)
    user: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @classmethod
    def from_channel_url(cls, channel: str) -> ChannelCredentials | None:
        """Return the credentials in the name of a channel, or None."""
        match = _CHANNEL.fullmatch(channel)
        if match is None:
            return None
        token = _TOKEN.search(match["path"])
        if match["user"] is None and token is None:
            return None
        bare = f"{match['scheme']}{match['host']}{_TOKEN.sub('', match['path'], count=1)}"
        return cls(bare=bare, full=channel, user=match["user"], token=token and token["token"])

    @property
    def host(self) -> str:
        """The server's name, without its port."""
        return urlsplit(self.bare).hostname or ""

    def contains_url(self, url: str) -> bool:
        """Return whether a URL is in the channel."""
        return f"{url}/".startswith(f"{self.bare.rstrip('/')}/")


def basic_auth_header(user: str) -> dict[str, str]:
    """Return the header of basic authentication (RFC 7617) for a URL's ``USER:PASSWORD``, in which both are quoted."""
    pair = ":".join(_user_and_password(user)).encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def _user_and_password(user: str) -> tuple[str, str]:
    """Return the two parts of the ``USER:PASSWORD`` of a URL, unquoted."""
    name, _, password = user.partition(":")
    return unquote(name), unquote(password)


_REGISTRY: dict[str, ChannelCredentials] = {}  # the credentials of this process, by bare channel


def register_credentials(channels: Iterable[str]) -> tuple[str, ...]:
    """Return channels without their credentials, which are kept for requests, and masked from now on."""
    channels = tuple(channels)
    for entry in filter(None, map(ChannelCredentials.from_channel_url, channels)):
        _REGISTRY[entry.bare] = entry
        masking.register_secrets(secret_forms.secrets_in_urls(entry.full))
    return tuple(map(url_without_credentials, channels))


def registered_urls_with_credentials() -> tuple[str, ...]:
    """Return the channels with their credentials, for another process of kiln's."""
    return tuple(entry.full for entry in _REGISTRY.values())


def url_without_credentials(url: str) -> str:
    """Return a URL without the credentials in it."""
    entry = ChannelCredentials.from_channel_url(url)
    return url if entry is None else entry.bare


def add_credentials_to_urls(channels: Iterable[str]) -> tuple[str, ...]:
    """Return channels with their credentials, for a program that takes them in no other way."""
    return tuple(_REGISTRY[channel].full if channel in _REGISTRY else channel for channel in channels)


def request_headers(url: str) -> dict[str, str]:
    """Return the headers of a request for a URL."""
    return _longest_channel_header(entry for entry in _REGISTRY.values() if entry.contains_url(url))


def _longest_channel_header(matches: Iterable[ChannelCredentials]) -> dict[str, str]:
    entry = max(matches, key=lambda entry: len(entry.bare), default=None)
    return {} if entry is None or entry.user is None else basic_auth_header(entry.user)


def url_with_token(url: str) -> str:
    """Return the URL of a request for a channel's file: with the token in its path, where the channel has one."""
    for entry in _REGISTRY.values():
        if entry.token is not None and entry.contains_url(url):
            return f"{entry.full.rstrip('/')}{url[len(entry.bare.rstrip('/')) :]}"
    return url


def rattler_http_client() -> Client | None:
    """Return rattler's HTTP client with the credentials, or None for its own client."""
    from rattler.networking import AddHeadersMiddleware, Client, MirrorMiddleware
    from rattler.networking.middleware import (
        AuthenticationMiddleware,
        GCSMiddleware,
        OciMiddleware,
        RetryMiddleware,
        S3Middleware,
    )

    entries = tuple(_REGISTRY.values())
    if not entries:
        return None

    def header(host: str, path: str) -> dict[str, str] | None:
        users = (entry for entry in entries if entry.host == host and entry.user)
        inside = (entry for entry in users if f"{path}/".startswith(f"{urlsplit(entry.bare).path.rstrip('/')}/"))
        return _longest_channel_header(inside) or None

    tokens = {f"{entry.bare.rstrip('/')}/": [f"{entry.full.rstrip('/')}/"] for entry in entries if entry.token}
    return Client(
        [
            *([MirrorMiddleware(tokens)] if tokens else []),
            RetryMiddleware(),
            AuthenticationMiddleware(),
            AddHeadersMiddleware(header),
            OciMiddleware(),
            GCSMiddleware(),
            S3Middleware(),
        ]
    )


def rattler_auth_file_content(channels: Iterable[str]) -> Mapping[str, Any]:
    """Return the credentials of channels in the form of rattler's file of them (``RATTLER_AUTH_FILE``)."""
    content: dict[str, Any] = {}
    for entry in filter(None, map(_REGISTRY.get, channels)):
        if entry.token is not None:
            content[entry.host] = {"CondaToken": entry.token}
        else:
            name, password = _user_and_password(entry.user or "")
            content[entry.host] = {"BasicHTTP": {"username": name, "password": password}}
    return content


TIMEOUT = 60.0  # seconds without a byte
NOT_FOUND = 404
REFUSALS = frozenset({401, 403})


class HttpError(Exception):
    """A failed attempt; ``status`` is the server's, None where it gave no answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_auth_failure(self) -> bool:
        """True when the server does not accept the credentials."""
        return self.status in REFUSALS


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leave a redirect as the answer: urllib would repeat a write as a read, and send the token along."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """Return None, so that the redirect is an error."""


class _SafeRedirects(_NoRedirects):
    """Send credentials to no other server: urllib would send them to whatever server a redirect names."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request of the redirect's target."""
        leaves = urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]
        in_url = url_without_credentials(req.full_url) != req.full_url
        if leaves and (in_url or req.has_header("Authorization")):
            raise OSError("it leads to another server, to which the credentials are not sent")
        return urllib.request.HTTPRedirectHandler.redirect_request(self, req, fp, code, msg, headers, newurl)


_FOLLOWING = urllib.request.build_opener(_SafeRedirects)
_STAYING = urllib.request.build_opener(_NoRedirects)


@contextlib.contextmanager
def send_request(
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    data: bytes | Iterator[bytes] | None = None,
    timeout: float = TIMEOUT,
    follow_redirects: bool = True,
) -> Iterator[HTTPResponse]:
    """Send one request and yield the response.

    Raises:
        HttpError: when the server cannot be reached, answers with an error, or breaks off while it is read.
    """
    import http.client

    opener = _FOLLOWING if follow_redirects else _STAYING
    try:
        request = urllib.request.Request(url, data=data, headers=dict(headers or {}), method=method)  # noqa: S310 - callers check the scheme
        with opener.open(request, timeout=timeout) as response:
            yield response
    except urllib.error.HTTPError as error:
        error.close()
        raise HttpError(f"the server answered {error.code}", error.code) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise HttpError(str(error) or type(error).__name__) from error


def content_length(response: HTTPResponse) -> int | None:
    """Return the size that the response's header announces."""
    size = response.headers.get("Content-Length", "")
    return int(size) if size.isdecimal() and len(size) < 20 else None


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
    progress: Callable[[int, int | None], None] = lambda _done, _size: None,
    target: Path | None = None,
    verify_kind: bool = True,
) -> Mapping[str, str]:
    """Return the hashes of what is at an address, which is written to ``target``, if given.

    ``folder`` is the one that an address without a scheme is relative to; ``progress`` gets the bytes received so far,
    and of how many, if the server announces it.
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
        total, beginning = 0, b""
        for chunk in _chunks_within_limits(stream, size, url):
            total += len(chunk)
            beginning = beginning or chunk[:HEADER]
            for digest in hashes.values():
                digest.update(chunk)
            if sink is not None:
                with files.full_disk_as_kiln_error(Path(sink.name).parent):
                    sink.write(chunk)
            progress(total, size)
        if verify_kind:
            _require_archive(url, beginning)
    return {name: digest.hexdigest() for name, digest in hashes.items()}


def _opened_source(url: str, folder: Path) -> contextlib.AbstractContextManager[tuple[IO[bytes], int | None]]:
    """Open what is at an address; the size is None where a server does not announce it."""
    parts = urlsplit(url)
    if parts.scheme in {"http", "https"}:
        return _opened_response(url, parts)
    if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
        return _opened_file(url, Path(unquote(parts.path)))
    if not parts.scheme:
        return _opened_file(url, folder / url)
    raise DownloadFailed(url, why=f"kiln downloads by http, https and file, not by {parts.scheme}")


@contextlib.contextmanager
def _opened_response(url: str, parts: SplitResult) -> Iterator[tuple[IO[bytes], int | None]]:
    bare, headers = url, request_headers(url)
    if parts.username is not None:  # the user and the password are sent in a header instead
        user, _, host = parts.netloc.rpartition("@")
        bare, headers = parts._replace(netloc=host).geturl(), basic_auth_header(user)
    try:
        with send_request(bare, headers={"User-Agent": "kiln", **headers}) as response:
            yield response, content_length(response)
    except HttpError as error:
        match = _UNREACHED.fullmatch(str(error))
        why = f"{parts.hostname or url} cannot be reached: {match[1]}" if match else str(error)
        raise DownloadFailed(url, why=why) from error


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
