"""The interface to a server: upload a package, promote packages from staging, unlist and delete one.

Uploads go through the library (py-rattler-build), which cannot do the rest; that goes to the servers' own interfaces,
each named with its source.
"""

from __future__ import annotations

import abc
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from kiln.http_client import HttpError
from kiln.publish.servers.api_requests import ServerApi

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kiln.publish.servers.server_credentials import ServerCredentials
    from kiln.publish.servers.trusted_publishing import TrustedPublisher

_STATUS = re.compile(r"\(HTTP (\d{3})\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """Staged packages that go to a channel, and the bundles of their attestations, both by path.

    Some servers copy them from the channel for ``staging``, others take them again; some take attestations.
    """

    packages: Mapping[str, Path]
    staging: str
    channel: str
    attestations: Mapping[str, Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server(abc.ABC):
    """One server; ``channel`` is the published one, ``path`` is a package's SUBDIR/FILE.

    Each method is one attempt and raises HttpError. ``together`` says whether one request promotes all packages of a
    release, ``sweeps`` whether it promotes whatever else is staged, ``moment`` what readers see meanwhile.
    ``trusts_jobs`` says whether the identity of a CI job takes the place of a stored token (trusted publishing).
    ``default_url`` is the URL of a public server, ``reading`` the pattern of a channel's URL for clients,
    ``token_variable`` the environment variable of the token (rattler-build's name), and ``token_header`` its header.
    ``auth_probe`` is the pattern of a URL whose status says whether the server accepts the token; empty where uploads
    report a status. ``deletion`` is the pattern of the URL of one package, where a request deletes it from a channel.
    """

    default_url: ClassVar[str] = ""
    reading: ClassVar[str] = "{url}/{channel}"
    token_variable: ClassVar[str]
    token_header: ClassVar[tuple[str, str]] = ("Authorization", "Bearer {}")
    auth_probe: ClassVar[str] = ""
    deletion: ClassVar[str] = ""
    together: ClassVar[bool] = False
    sweeps: ClassVar[bool] = False
    takes_attestations: ClassVar[bool] = False
    trusts_jobs: ClassVar[bool] = False
    moment: ClassVar[str] = (
        "packages appear one by one, what others need first: readers have the old release or the new one"
    )

    url: str
    channel: str
    credentials: ServerCredentials | TrustedPublisher = field(repr=False)
    auth_file: str | None = None
    client_url: str | None = None  # a pattern in the place of ``reading``

    @property
    def api(self) -> ServerApi:
        """The server's HTTP interface, with the credentials."""
        return ServerApi(headers=self.credentials.auth_headers(*self.token_header))

    def channel_url(self, channel: str) -> str:
        """Return the URL at which clients read a channel."""
        return (self.client_url or self.reading).format(url=self.url, channel=channel)

    def upload(self, package: Path, channel: str) -> None:
        """Upload a package to a channel, without the token in the library's errors."""
        from rattler_build import RattlerBuildError

        try:
            self._upload_by_library([str(package)], channel)
        except RattlerBuildError as error:
            message = self.credentials.text_without_token(str(error))
            raise HttpError(message, self._upload_failure_status(message)) from error

    @abc.abstractmethod
    def _upload_by_library(self, files: list[str], channel: str) -> None:
        """Call the library's function for uploads to this kind of server."""

    @abc.abstractmethod
    def promote(self, promotion: Promotion) -> Iterator[str]:
        """Publish staged packages, and yield the path of each that the server took now."""

    def unlist(self, path: str, channel: str) -> None:
        """Remove a package from a channel; most servers list all that they have, so delete it."""
        name, version, _ = parse_package_file_name(path)
        place = {"channel": channel, "name": name, "version": quote(version), "path": path}
        self.api.send_json_request("DELETE", self.deletion.format(url=self.url, **place))

    def _upload_failure_status(self, message: str) -> int | None:
        """Return the status behind a failed upload: the library's, or the server's answer about the token."""
        if match := _STATUS.search(message):
            return int(match[1])
        if not self.auth_probe:
            return None
        try:
            self.api.send_json_request("GET", self.auth_probe.format(url=self.url, channel=self.channel))
        except HttpError as error:
            return error.status
        return None


def parse_package_file_name(path: str) -> tuple[str, str, str]:
    """Return name, version and build of the package file at a path."""
    name, version, build = path.rpartition("/")[2].removesuffix(".conda").rsplit("-", 2)
    return name, version, build
