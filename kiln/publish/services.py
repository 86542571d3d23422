"""What each kind of server can do with packages: take one, publish those that were tried out, and take one away.

Uploads go through the library (py-rattler-build), which has no means for the rest; that goes to the servers' own
interfaces, each named with its source.
"""

from __future__ import annotations

import abc
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from kiln.publish.web import Fault, Web

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kiln.publish.web import Credentials

_STATUS = re.compile(r"\(HTTP (\d{3})\)")
_NOT_TOGETHER = {404, 405, 409, 413}  # no such route; one of the files is there; more than a proxy lets through


class Kind(str, Enum):
    """The servers that the library can upload to."""

    ANACONDA = "anaconda"
    PREFIX = "prefix"
    QUETZ = "quetz"
    ARTIFACTORY = "artifactory"


class Service(Protocol):
    """One server; ``path`` is a package's SUBDIR/FILE. Each call is one attempt and raises Fault.

    ``together`` tells whether all packages of a release are published by one request, ``sweeps`` whether that publishes
    whatever else is staged, ``moment`` what readers may see.
    """

    @property
    def together(self) -> bool:
        """Whether ``promote`` takes all packages at once."""

    @property
    def sweeps(self) -> bool:
        """Whether ``promote`` takes everything that is staged."""

    @property
    def moment(self) -> str:
        """What somebody who reads meanwhile may see."""

    def address(self, channel: str) -> str:
        """Return where clients read a channel."""

    def upload(self, package: Path, channel: str) -> None:
        """Bring a package to a channel."""

    def promote(self, packages: Mapping[str, Path], staging: str, channel: str) -> None:
        """Bring packages, by their paths, to the channel; they are staged."""

    def unlist(self, path: str, channel: str) -> None:
        """Have a channel no longer offer a package."""

    def delete(self, path: str, channel: str) -> None:
        """Remove a package that we brought there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server(abc.ABC):
    """What all of them have: ``channel`` is the published one, ``reading`` the pattern of where clients find one."""

    url: str
    channel: str
    credentials: Credentials = field(repr=False)
    auth_file: str | None = None
    reading: str
    web: Web

    together = False
    sweeps = False
    moment = "packages appear one by one, what others need first: readers have the old release or the new one"

    def address(self, channel: str) -> str:
        """Return where clients read a channel."""
        return self.reading.format(url=self.url, channel=channel)

    @abc.abstractmethod
    def upload(self, package: Path, channel: str) -> None:
        """Bring a package to a channel."""

    def promote(self, packages: Mapping[str, Path], staging: str, channel: str) -> None:  # noqa: ARG002 - some copy
        """Upload the packages once more."""
        for package in packages.values():
            self.upload(package, channel)

    def unlist(self, path: str, channel: str) -> None:
        """Remove a package: what a channel does not offer it does not have."""
        self.delete(path, channel)

    @abc.abstractmethod
    def delete(self, path: str, channel: str) -> None:
        """Remove a package that we brought there."""

    @property
    @abc.abstractmethod
    def probe(self) -> str | None:
        """An address that tells what the server thinks of the token."""

    def _call(self, upload: Callable[..., None], package: Path, *where: str, **more: object) -> None:
        """Call the library, whose errors then tell nothing of the token."""
        from rattler_build import RattlerBuildError

        try:
            upload([str(package)], *where, auth_file=self.auth_file, **more)
        except RattlerBuildError as error:
            told = str(error).replace(self.credentials.token or "\0", "***")
            raise Fault(told, self._status(told)) from error

    def _status(self, told: str) -> int | None:
        """Return the status behind a fault: told by the library, or by the server when it is asked about the token."""
        if found := _STATUS.search(told):
            return int(found[1])
        if self.probe is None:
            return None
        try:
            self.web.ask("GET", self.probe)
        except Fault as fault:
            return fault.status
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Anaconda(_Server):
    """anaconda.org, where a channel is a label of an owner's files: one request gives all of them another label.

    Source: anaconda-client 1.16, binstar_client/mixins/channels.py (labels) and ``Binstar.remove_dist``.
    """

    together = True
    sweeps = True
    moment = "one request labels all packages; the server may take a moment to bring the index of each subdir in line"

    def address(self, channel: str) -> str:
        """Return where clients read the owner's channel, or one of its labels."""
        label = channel if channel == self.channel else f"{self.channel}/label/{channel}"
        return self.reading.format(url=self.url, channel=label)

    def upload(self, package: Path, channel: str) -> None:
        """Upload a file under a label; one that the owner has is refused, whatever its label."""
        from rattler_build import upload

        more = {"channel": [self._label(channel)], "api_key": self.credentials.token, "url": self.url}
        self._call(upload.upload_package_to_anaconda, package, self.channel, **more)

    def promote(self, packages: Mapping[str, Path], staging: str, channel: str) -> None:  # noqa: ARG002 - all have the label
        """Give everything that has the label of staging the published one, too."""
        self.web.ask("POST", f"{self._labels(staging)}/copy/{self._label(channel)}")

    def unlist(self, path: str, channel: str) -> None:
        """Take a label from a file."""
        name, version, _ = parts(path)
        told = {"package": name, "version": version, "basename": path}
        self.web.ask("DELETE", self._labels(channel), told=told)

    def delete(self, path: str, channel: str) -> None:  # noqa: ARG002 - a file is the owner's, with all of its labels
        """Remove a file from the owner's."""
        name, version, _ = parts(path)
        self.web.ask("DELETE", f"{self.url}/dist/{self.channel}/{name}/{quote(version)}/{path}")

    @property
    def probe(self) -> str | None:
        """What anaconda-client asks to know who somebody is."""
        return f"{self.url}/user"

    def _label(self, channel: str) -> str:
        return "main" if channel == self.channel else channel

    def _labels(self, channel: str) -> str:
        return f"{self.url}/channels/{self.channel}/{quote(self._label(channel))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix(_Server):
    """prefix.dev, which takes packages and removes them, and nothing else.

    Source: the page "API" of prefix.dev's documentation (DELETE /api/v1/delete/:channel/:subdir/:package_file_name).
    """

    def upload(self, package: Path, channel: str) -> None:
        """Upload a package."""
        from rattler_build import upload

        self._call(upload.upload_package_to_prefix, package, self.url, channel, api_key=self.credentials.token)

    def delete(self, path: str, channel: str) -> None:
        """Remove a package."""
        self.web.ask("DELETE", f"{self.url}/api/v1/delete/{channel}/{path}")

    @property
    def probe(self) -> str | None:
        """The library tells the status of this server by itself."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quetz(_Server):
    """quetz, which takes many packages in one form and makes its index once, afterwards.

    Source: quetz-server 0.10.4, quetz/main.py (post_file_to_channel, delete_package_version).
    """

    together = True
    moment = "one request brings all packages; then the server replaces the index of one subdir after the other"

    def upload(self, package: Path, channel: str) -> None:
        """Upload a package."""
        from rattler_build import upload

        self._call(upload.upload_package_to_quetz, package, self.url, channel, api_key=self.credentials.token)

    def promote(self, packages: Mapping[str, Path], staging: str, channel: str) -> None:  # noqa: ARG002 - no copies
        """Upload all packages in one request; where the server does not take that, one by one."""
        files = list(packages.values())
        try:
            if len(files) > 1:
                self.web.post_files(f"{self.url}/api/channels/{channel}/files/", "files", files)
                return
        except Fault as fault:
            if fault.status not in _NOT_TOGETHER:
                raise
        for package in files:
            self._unless_there(package, channel)

    def _unless_there(self, package: Path, channel: str) -> None:
        try:
            self.upload(package, channel)
        except Fault as fault:
            if fault.status != 409:  # it has it, of which hash is seen in the index
                raise

    def delete(self, path: str, channel: str) -> None:
        """Remove one version of a package."""
        self.web.ask("DELETE", f"{self.url}/api/channels/{channel}/packages/{parts(path)[0]}/versions/{path}")

    @property
    def probe(self) -> str | None:
        """Who the token belongs to."""
        return f"{self.url}/api/me"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifactory(_Server):
    """Artifactory, which copies within itself without the bytes travelling, and then renews the index.

    Source: the pages "Copy Item" and "Delete Item" of JFrog's REST APIs.
    """

    moment = "packages are copied one by one, what others need first: readers have the old release or the new one"

    def upload(self, package: Path, channel: str) -> None:
        """Upload a package."""
        from rattler_build import upload

        self._call(upload.upload_package_to_artifactory, package, self.url, channel, token=self.credentials.token)

    def promote(self, packages: Mapping[str, Path], staging: str, channel: str) -> None:
        """Copy packages from the repository for staging."""
        for path in packages:
            self.web.ask("POST", f"{self.url}/api/copy/{staging}/{path}?to={quote(f'/{channel}/{path}')}")

    def delete(self, path: str, channel: str) -> None:
        """Remove a package."""
        self.web.ask("DELETE", f"{self.url}/{channel}/{path}")

    @property
    def probe(self) -> str | None:
        """The repository itself."""
        return f"{self.url}/{self.channel}/"


# Where each is when nothing else is said, where clients read, the variable that has the token (rattler-build's names),
# and the header that the server takes it in.
HOMES = {Kind.ANACONDA: "https://api.anaconda.org", Kind.PREFIX: "https://prefix.dev"}
READING = {
    Kind.ANACONDA: "https://conda.anaconda.org/{channel}",
    Kind.PREFIX: "{url}/{channel}",
    Kind.QUETZ: "{url}/get/{channel}",
    Kind.ARTIFACTORY: "{url}/{channel}",
}
TOKENS = {
    Kind.ANACONDA: "ANACONDA_API_KEY",
    Kind.PREFIX: "PREFIX_API_KEY",
    Kind.QUETZ: "QUETZ_API_KEY",
    Kind.ARTIFACTORY: "ARTIFACTORY_TOKEN",
}
HEADERS = {
    Kind.ANACONDA: ("Authorization", "token {}"),
    Kind.PREFIX: ("Authorization", "Bearer {}"),
    Kind.QUETZ: ("X-API-Key", "{}"),
    Kind.ARTIFACTORY: ("Authorization", "Bearer {}"),
}


TYPES: Mapping[Kind, Callable[..., Service]] = {
    Kind.ANACONDA: Anaconda,
    Kind.PREFIX: Prefix,
    Kind.QUETZ: Quetz,
    Kind.ARTIFACTORY: Artifactory,
}


def service(
    kind: Kind, url: str, channel: str, credentials: Credentials, *, auth_file: str | None, reading: str | None
) -> Service:
    """Return the server of a kind."""
    name, form = HEADERS[kind]
    headers = {name: form.format(credentials.token)} if credentials.token else {}
    if credentials.basic:
        headers = {"Authorization": f"Basic {credentials.basic}"}
    return TYPES[kind](
        url=url,
        channel=channel,
        credentials=credentials,
        auth_file=auth_file,
        reading=reading or READING[kind],
        web=Web(headers=headers),
    )


def parts(path: str) -> tuple[str, str, str]:
    """Return name, version and build of the package file at a path."""
    name, version, build = path.rpartition("/")[2].removesuffix(".conda").rsplit("-", 2)
    return name, version, build
