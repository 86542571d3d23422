"""The servers that keep their own index: anaconda.org, prefix.dev, quetz, Artifactory, and credentials."""

from __future__ import annotations

import abc
import base64
import fnmatch
import functools
import json
import re
import secrets
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlsplit

from kiln.base import http, masking
from kiln.base.errors import TokenRefused
from kiln.base.files import read_chunks, sha256
from kiln.base.http import HttpError
from kiln.conda import package_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path


class ServerKind(str, Enum):
    """The servers that the library can upload to."""

    ANACONDA = "anaconda"
    PREFIX = "prefix"
    QUETZ = "quetz"
    ARTIFACTORY = "artifactory"

    @property
    def server_class(self) -> type[Server]:
        """The class of the server."""
        types: dict[ServerKind, type[Server]] = {
            ServerKind.ANACONDA: Anaconda,
            ServerKind.PREFIX: PrefixDev,
            ServerKind.QUETZ: Quetz,
            ServerKind.ARTIFACTORY: Artifactory,
        }
        return types[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCredentials:
    """A token, or a user with a password in the form of HTTP's basic authentication."""

    token: str | None = field(default=None, repr=False)
    basic: str | None = field(default=None, repr=False)

    @classmethod
    def from_file(cls, file: Path, url: str) -> ServerCredentials:
        """Return what rattler's file of credentials has for a server: by its name, or by a pattern with a star.

        The format is rattler's (``RATTLER_AUTH_FILE`` in the documentation of pixi and rattler-build).

        Raises:
            TokenRefused: when the file has nothing for the server, or cannot be read.
        """
        host = urlsplit(url).hostname or ""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            names = sorted((name for name in content if fnmatch.fnmatchcase(host, name)), key=lambda name: "*" in name)
            kind, value = next(iter(content[names[0]].items()))
        except (OSError, ValueError, AttributeError, IndexError, StopIteration) as error:
            raise TokenRefused(f"no token for {host}", why=f"{file} has none that can be read") from error
        if kind == "BasicHTTP":
            pair = f"{value['username']}:{value['password']}".encode()
            return cls(basic=base64.b64encode(pair).decode())
        return cls(token=str(value))

    def auth_headers(self, name: str, form: str) -> dict[str, str]:
        """Return the header of a request: HTTP's own, or the one of this name in which a server takes a token."""
        if self.basic:
            return {"Authorization": f"Basic {self.basic}"}
        return {name: form.format(self.token)} if self.token else {}

    def text_without_token(self, text: str) -> str:
        """Return a text without the token."""
        return text.replace(self.token or "\0", "***")


PROCESSING = 1800.0  # seconds for a server to answer a write: it may have gigabytes to read


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerApi:
    """A server's HTTP interface; ``headers`` hold the token. Each method is one attempt and raises HttpError."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def send_json_request(self, method: str, url: str, *, body: Any = None) -> None:
        """Send a request, with a body as JSON if there is one."""
        if body is None:
            self._send_request(method, url, None, {})
        else:
            self._send_request(method, url, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def post_files(
        self,
        url: str,
        field_name: str,
        files: Sequence[Path],
        *,
        part_headers: Mapping[str, str] | None = None,
        texts: Mapping[str, str] | None = None,
    ) -> None:
        """Send files as one form, read while they are sent (RFC 7578), and after them ``texts`` by their fields."""
        boundary = secrets.token_hex(16)
        start = f"--{boundary}\r\nContent-Disposition: form-data; name="
        more = "".join(f"{name}: {value}\r\n" for name, value in (part_headers or {}).items())
        kind = "Content-Type: application/octet-stream"
        heads = [f'{start}"{field_name}"; filename="{file.name}"\r\n{kind}\r\n{more}\r\n'.encode() for file in files]
        parts = "".join(f'{start}"{name}"\r\n\r\n{value}\r\n' for name, value in (texts or {}).items())
        end = f"{parts}--{boundary}--\r\n".encode()

        def chunks() -> Iterator[bytes]:
            for head, file in zip(heads, files, strict=True):
                yield head
                with file.open("rb") as content:
                    yield from read_chunks(content)
                yield b"\r\n"
            yield end

        size = len(end) + sum(len(head) + file.stat().st_size + 2 for head, file in zip(heads, files, strict=True))
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}", "Content-Length": str(size)}
        self._send_request("POST", url, chunks(), headers)

    def _send_request(
        self, method: str, url: str, data: bytes | Iterator[bytes] | None, headers: Mapping[str, str]
    ) -> None:
        headers = {**self.headers, **headers}
        try:
            with http.send_request(
                url, method=method, headers=headers, data=data, timeout=PROCESSING, follow_redirects=False
            ) as response:
                response.read()
        except HttpError as error:
            raise HttpError(f"{method} {url}: {error}", error.status) from error


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
        name, version, _ = _parse_package_file_name(path)
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


def _parse_package_file_name(path: str) -> tuple[str, str, str]:
    """Return name, version and build of the package file at a path."""
    name, version, build = path.rpartition("/")[2].removesuffix(".conda").rsplit("-", 2)
    return name, version, build


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifactory(Server):
    """An Artifactory server; a channel is a repository."""

    token_variable: ClassVar[str] = "ARTIFACTORY_TOKEN"  # noqa: S105 - the variable's name
    auth_probe: ClassVar[str] = "{url}/{channel}/"
    deletion: ClassVar[str] = "{url}/{channel}/{path}"
    moment: ClassVar[str] = (
        "packages are copied one by one, what others need first: readers have the old release or the new one"
    )

    def _upload_by_library(self, files: list[str], channel: str) -> None:
        from rattler_build.upload import upload_package_to_artifactory as upload

        upload(files, self.url, channel, token=self.credentials.token, auth_file=self.auth_file)

    def promote(self, promotion: Promotion) -> Iterator[str]:
        """Copy packages from the repository for staging."""
        for path in promotion.packages:
            target = quote(f"/{promotion.channel}/{path}")
            self.api.send_json_request("POST", f"{self.url}/api/copy/{promotion.staging}/{path}?to={target}")
            yield path


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixDev(Server):
    """prefix.dev, or another server of its kind."""

    default_url: ClassVar[str] = "https://prefix.dev"
    takes_attestations: ClassVar[bool] = True
    trusts_jobs: ClassVar[bool] = True
    token_variable: ClassVar[str] = "PREFIX_API_KEY"  # noqa: S105 - the variable's name
    deletion: ClassVar[str] = "{url}/api/v1/delete/{channel}/{path}"

    def _upload_by_library(self, files: list[str], channel: str) -> None:
        from rattler_build.upload import upload_package_to_prefix as upload

        upload(files, self.url, channel, api_key=self.credentials.token, auth_file=self.auth_file)

    def promote(self, promotion: Promotion) -> Iterator[str]:
        """Upload packages to the channel, each with the bundle of its publish attestation, if it has one.

        The library sends an attestation with a token of its own trusted publishing alone, so the form is sent here.
        """
        for path, package in promotion.packages.items():
            if attestation := promotion.attestations.get(path):
                self.api.post_files(
                    f"{self.url}/api/v1/upload/{promotion.channel}",
                    "file",
                    [package],
                    part_headers={"X-File-Name": package.name, "X-File-SHA256": sha256(package)},
                    texts={"attestation": attestation.read_text(encoding="utf-8")},
                )
            else:
                self.upload(package, promotion.channel)
            yield path


EXISTS = 409
_NO_FORM = {404, 405, EXISTS, 413}  # no such route; one of the files exists; larger than a proxy allows


@dataclass(frozen=True, slots=True, kw_only=True)
class Quetz(Server):
    """A quetz server."""

    reading: ClassVar[str] = "{url}/get/{channel}"
    token_variable: ClassVar[str] = "QUETZ_API_KEY"  # noqa: S105 - the variable's name
    token_header: ClassVar[tuple[str, str]] = ("X-API-Key", "{}")
    auth_probe: ClassVar[str] = "{url}/api/me"
    deletion: ClassVar[str] = "{url}/api/channels/{channel}/packages/{name}/versions/{path}"
    together: ClassVar[bool] = True
    moment: ClassVar[str] = "one request brings all packages; then the server replaces the index of each subdir in turn"

    def _upload_by_library(self, files: list[str], channel: str) -> None:
        from rattler_build.upload import upload_package_to_quetz as upload

        upload(files, self.url, channel, api_key=self.credentials.token, auth_file=self.auth_file)

    def promote(self, promotion: Promotion) -> Iterator[str]:
        """Upload all packages in one request; where the server does not take that, one by one."""
        files, channel = list(promotion.packages.values()), promotion.channel
        try:
            if len(files) > 1:
                self.api.post_files(f"{self.url}/api/channels/{channel}/files/", "files", files)
                yield from promotion.packages
                return
        except HttpError as error:
            if error.status not in _NO_FORM:
                raise
        for path, package in promotion.packages.items():
            try:
                self.upload(package, channel)
            except HttpError as error:
                if error.status != EXISTS:  # the index then says with which hash
                    raise
            else:
                yield path


OWNED = "already exists"  # in the library's error, which has no status


@dataclass(frozen=True, slots=True, kw_only=True)
class Anaconda(Server):
    """The owner's files; the published channel is the label ``main``."""

    default_url: ClassVar[str] = "https://api.anaconda.org"
    reading: ClassVar[str] = "https://conda.anaconda.org/{channel}"
    token_variable: ClassVar[str] = "ANACONDA_API_KEY"  # noqa: S105 - the variable's name
    token_header: ClassVar[tuple[str, str]] = ("Authorization", "token {}")
    auth_probe: ClassVar[str] = "{url}/user"
    together: ClassVar[bool] = True
    sweeps: ClassVar[bool] = True
    moment: ClassVar[str] = (
        "one request labels all packages; the server may take a moment to update the index of each subdir"
    )

    def channel_url(self, channel: str) -> str:
        """Return the URL of the owner's channel, or of one of its labels."""
        name = channel if channel == self.channel else f"{self.channel}/label/{channel}"
        return (self.client_url or self.reading).format(url=self.url, channel=name)

    def upload(self, package: Path, channel: str) -> None:
        """Upload a package under a label; one that the owner has is not taken again, and gets the label."""
        try:
            Server.upload(self, package, channel)
        except HttpError as error:
            if OWNED not in str(error):
                raise
            subdir = package_reader.read_info_json(package, "index.json")["subdir"]
            self._change_label("POST", f"{subdir}/{package.name}", channel)

    def _upload_by_library(self, files: list[str], channel: str) -> None:
        from rattler_build.upload import upload_package_to_anaconda as upload

        key, labels = self.credentials.token, [self._label_of_channel(channel)]
        upload(files, self.channel, channel=labels, api_key=key, url=self.url, auth_file=self.auth_file)

    def promote(self, promotion: Promotion) -> Iterator[str]:
        """Give all files with the label for staging the published one, too."""
        self.api.send_json_request(
            "POST", f"{self._label_api_url(promotion.staging)}/copy/{self._label_of_channel(promotion.channel)}"
        )
        yield from promotion.packages

    def unlist(self, path: str, channel: str) -> None:
        """Remove a label from a file; the file stays, since others may have given it labels."""
        self._change_label("DELETE", path, channel)

    def _change_label(self, method: str, path: str, channel: str) -> None:
        name, version, _ = _parse_package_file_name(path)
        body = {"package": name, "version": version, "basename": path}
        self.api.send_json_request(method, self._label_api_url(channel), body=body)

    def _label_of_channel(self, channel: str) -> str:
        return "main" if channel == self.channel else channel

    def _label_api_url(self, channel: str) -> str:
        return f"{self.url}/channels/{self.channel}/{quote(self._label_of_channel(channel))}"


REQUEST_URL, REQUEST_TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
GITLAB_TOKEN = "PREFIX_ID_TOKEN"  # noqa: S105 - the variable's name
MINT = "/api/oidc/mint_token"
RENEWAL = 120.0  # seconds after which a token is exchanged anew; servers do not say how long theirs live
LARGEST = 1 << 16  # bytes of an answer
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_TOKEN = re.compile(r"[\x21-\x7e]+")  # that a header can carry
HINT = (
    "on GitHub: permissions: {id-token: write} for this job; on GitLab: id_tokens: {PREFIX_ID_TOKEN: {aud: prefix.dev}}"
)


def oidc_audience(url: str) -> str:
    """Return the audience that a server requires: its host, so that no other server can use the identity.

    All hosts of prefix.dev require the same.
    """
    host = urlsplit(url).hostname or ""
    return "prefix.dev" if host.endswith(".prefix.dev") else host


def request_github_id_token(request_url: str, request_token: str, audience: str) -> str:
    """Return the ID token of this job of GitHub Actions for an audience, which its runner requests."""
    parts = urlsplit(request_url)
    if parts.scheme != "https" and parts.hostname not in LOOPBACK:
        why = "the job's identity would be sent unencrypted"
        raise TokenRefused(f"{REQUEST_URL} is not a URL of https", why=why)
    url = f"{request_url}{'&' if parts.query else '?'}audience={quote(audience, safe='')}"
    answer = _request_with_size_limit("GET", url, {"Authorization": f"Bearer {request_token}"})
    try:
        value = json.loads(answer)["value"]
    except (ValueError, KeyError, TypeError) as error:
        raise HttpError(f"{REQUEST_URL} answered without a token") from error
    return _mask_token(str(value), REQUEST_URL)


@dataclass(slots=True, kw_only=True)
class TrustedPublisher:
    """Credentials for a server of prefix.dev's kind, exchanged for the job's identity when they are needed.

    ``id_token`` returns the identity for an audience. A token lives for minutes only, and a publication may take
    longer: an old one is replaced by another exchange.
    """

    url: str
    id_token: Callable[[str], str] = field(repr=False)
    clock: Callable[[], float] = time.monotonic
    _token: str = field(default="", init=False, repr=False)
    _since: float = field(default=0.0, init=False, repr=False)

    @classmethod
    def from_ci_job(cls, url: str, environment: Mapping[str, str]) -> TrustedPublisher | None:
        """Return the credentials of this CI job for a server; None if the job has no identity."""
        request_url, request_token = environment.get(REQUEST_URL), environment.get(REQUEST_TOKEN)
        if request_url and request_token:
            return cls(url=url, id_token=functools.partial(request_github_id_token, request_url, request_token))
        given = environment.get(GITLAB_TOKEN)  # made for the audience that the pipeline names
        return cls(url=url, id_token=lambda _: given) if given else None

    @property
    def token(self) -> str:
        """A token that is accepted now.

        Raises:
            TokenRefused: when the server does not trust this job.
            HttpError: when the exchange fails and may be tried again.
        """
        if not self._token or self.clock() - self._since >= RENEWAL:
            now = self.clock()
            self._token, self._since = self._exchange_identity_for_token(), now
        return self._token

    def auth_headers(self, name: str, form: str) -> dict[str, str]:
        """Return the header of a request."""
        return {name: form.format(self.token)}

    def text_without_token(self, text: str) -> str:
        """Return a text without the token."""
        return text.replace(self._token or "\0", "***")

    def _exchange_identity_for_token(self) -> str:
        try:
            statement = self.id_token(oidc_audience(self.url))
        except HttpError as error:
            if error.is_auth_failure:
                why = f"GitHub answered {error.status}"
                raise TokenRefused("this CI job has no identity to publish with", why=why, hint=HINT) from error
            raise
        body = json.dumps({"token": statement}).encode()
        try:
            answer = _request_with_size_limit("POST", f"{self.url}{MINT}", {"Content-Type": "application/json"}, body)
        except HttpError as error:
            if error.status is not None and 400 <= error.status < 500 and error.status != 429:
                raise TokenRefused(
                    f"{self.url} does not trust this CI job ({error.status})",
                    why="no trusted publisher of the server has this repository and this workflow",
                    hint="name them on the page of the channel, and on that of its channel for staging",
                ) from error
            raise
        return _mask_token(answer.decode("utf-8", "replace").strip(), MINT)


def _request_with_size_limit(method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> bytes:
    """Return the answer to one request, which no redirect carries elsewhere; an error names the URL's place alone."""
    bare = url.partition("?")[0]
    try:
        with http.send_request(url, method=method, headers=headers, data=body, follow_redirects=False) as response:
            data: bytes = response.read(LARGEST + 1)
    except HttpError as error:
        raise HttpError(f"{method} {bare}: {error}", error.status) from error
    if len(data) > LARGEST:
        raise HttpError(f"{method} {bare}: the answer has more than {LARGEST} bytes")
    return data


def _mask_token(token: str, source: str) -> str:
    """Return a token, masked from now on in all output."""
    if not _TOKEN.fullmatch(token):
        raise HttpError(f"{source} answered without a token")
    masking.register_secrets([token])
    return token
