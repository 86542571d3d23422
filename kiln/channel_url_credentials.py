"""The credentials of channels, removed from their URLs, so that no file and no message contains them.

A channel is named ``https://USER:PASSWORD@HOST/CHANNEL`` or ``https://HOST/t/TOKEN/CHANNEL``, as conda has it. rattler
writes such names into the records of installed packages, its caches and errors; so it gets the bare name, and the
credentials separately. This process keeps them, and sends them to no other server.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from kiln import masking
from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
        masking.register_secrets(masking.secrets_in_urls(entry.full))
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
        return _longest_channel_header(entry for entry in users if _is_path_in_channel(entry.bare, path)) or None

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


def _is_path_in_channel(bare: str, path: str) -> bool:
    return f"{path}/".startswith(f"{urlsplit(bare).path.rstrip('/')}/")


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
