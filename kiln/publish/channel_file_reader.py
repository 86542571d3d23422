"""A reader of a channel's files, from a folder or over HTTP, within the limits on time and size."""

from __future__ import annotations

import http.client
import ipaddress
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from kiln import channel_url_credentials, files, http_client, masking, rattler_process
from kiln.errors import DownloadFailed, LimitExceeded, TokenRefused, UsageError
from kiln.http_client import NOT_FOUND, HttpError
from kiln.rattler_process.limit_settings import limit_increase_hint

if TYPE_CHECKING:
    import io
    from collections.abc import Callable

CHUNK = 1 << 20
SAFE = "/:?#[]@!$&'()*+,;=%-._~"  # the characters of a URL (RFC 3986); others in an address are quoted
HINT = "name the channel with credentials that it takes: https://USER:PASSWORD@HOST/CHANNEL"


def channel_reader(channel: str, largest: int | None = None) -> Callable[[str], bytes | None]:
    """Return a function that reads a file of a channel by its path there; it returns None for a missing file.

    Credentials in the channel's URL are sent to its own server alone, see `kiln.channel_url_credentials`. ``largest``
    is the limit on a file's size in bytes, by default that on an index.

    Raises:
        UsageError: when the channel is neither a URL nor a folder.
        DownloadFailed: when a server cannot be reached, refuses, sends nothing, or half a file.
        TokenRefused: when it refuses the credentials, or requires some.
        LimitExceeded: when a file is larger than an index may be, or takes longer than reading one may.
    """
    if not channel.startswith(("http://", "https://")):
        root = (
            files.path_of_file_url(channel.removeprefix("file://")) if channel.startswith("file://") else Path(channel)
        )
        return lambda path: _read_local_file(root / path, largest)
    (bare,) = channel_url_credentials.register_credentials((channel,))
    _require_channel_url(bare)
    return lambda path: _download_channel_file(f"{bare.rstrip('/')}/{path}", largest)


def read_stream_within_limits(
    stream: io.BufferedIOBase, name: str, size: int | None = None, largest: int | None = None
) -> bytes:
    """Return all bytes of a stream, ``size`` of them where that is known, in the time and of the size of an index.

    Raises:
        LimitExceeded: when it is larger, or takes longer.
        IncompleteRead: when it is shorter.
    """
    limits = rattler_process.current_limits()
    end = time.monotonic() + limits.solve
    data = bytearray()
    while (size is None or len(data) < size) and (chunk := stream.read1(CHUNK)):  # read() would wait for all of it
        data += chunk
        if largest is not None and len(data) > largest:
            raise LimitExceeded(f"{name} is larger than {files.human_readable_size(largest)}")
        if len(data) > limits.index:
            hint = limit_increase_hint(f"index={2 * limits.index // 10**6}MB")
            raise LimitExceeded(f"{name} is larger than {files.human_readable_size(limits.index)}", hint=hint)
        if time.monotonic() > end:
            hint = limit_increase_hint(f"solve={2 * limits.solve}")
            raise LimitExceeded(f"reading {name} takes longer than {limits.solve} s", hint=hint)
    if size is not None and len(data) < size:
        raise http.client.IncompleteRead(bytes(data[:0]), size - len(data))
    return bytes(data)


def _download_channel_file(address: str, largest: int | None) -> bytes | None:
    url = quote(address, safe=SAFE)
    with_token = quote(channel_url_credentials.url_with_token(address), safe=SAFE)
    timeout = min(http_client.TIMEOUT, rattler_process.current_limits().stall)
    try:
        with http_client.send_request(
            with_token, headers=channel_url_credentials.request_headers(url), timeout=timeout
        ) as response:
            return read_stream_within_limits(response, url, http_client.content_length(response), largest)
    except HttpError as error:
        if error.status == NOT_FOUND:
            return None
        if error.is_auth_failure:
            raise TokenRefused(f"{url} cannot be read", why=str(error), hint=HINT) from error
        hint = "" if error.status else "check that its server can be reached, then run the same command again"
        raise DownloadFailed(f"{url} cannot be read", why=str(error), hint=hint) from error


def _read_local_file(file: Path, largest: int | None) -> bytes | None:
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        return read_stream_within_limits(opened, str(file), largest=largest)


def _require_channel_url(channel: str) -> None:
    """Raise UsageError when an address has no valid host."""
    try:
        parts = urlsplit(channel)
        why = "" if parts.hostname and (parts.port is None or parts.port >= 0) else "it names no host"
        if any(character.isspace() for character in parts.netloc):
            why = "there is a space in its host"
        if "[" in parts.netloc:
            ipaddress.ip_address(parts.hostname or "")  # Python 3.10 takes any text in brackets
    except ValueError as error:
        why = str(error)
    if why:
        raise UsageError(
            f"{masking.with_masked_credentials(channel)!r} is not the URL of a channel",
            why=why,
            hint="https://HOST/PATH, or a folder",
        )
