"""Channels on servers that keep their own index: anaconda.org, prefix.dev, quetz, Artifactory.

The library (py-rattler-build) uploads; here is what surrounds it: a channel for staging, the order of packages, another
attempt after a pause where a fault may pass, and no second upload of what is there by its hash. Such a server indexes
each package as it comes, so a release appears there package by package, what others need first.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kiln.errors import TokenRefused, UploadFailed, UsageError
from kiln.matchspec import package_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kiln.model.provenance import Attestation
    from kiln.repodata import Entry

ATTEMPTS = 6
PAUSE = 2.0  # seconds, doubled each time
PATIENCE = 600.0  # seconds for a server to index what it took
TIMEOUT = 60.0
SUBDIRS = ("noarch", "linux-64")
_STATUS = re.compile(r"\(HTTP (\d{3})\)")


class Kind(str, Enum):
    """The servers that the library can upload to."""

    ANACONDA = "anaconda"
    PREFIX = "prefix"
    QUETZ = "quetz"
    ARTIFACTORY = "artifactory"


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
PROBES = {
    Kind.QUETZ: ("{url}/api/me", "X-API-Key", "{token}"),
    Kind.ARTIFACTORY: ("{url}/{channel}/", "Authorization", "Bearer {token}"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTarget:
    """A channel on a server; ``reading`` is where clients find it, ``staging`` the channel (or label) tried out first.

    ``auth_file`` is rattler's file of credentials, asked when there is no ``token``.
    """

    kind: Kind
    url: str
    channel: str
    staging: str
    token: str | None = field(default=None, repr=False)
    auth_file: str | None = None
    reading: str | None = None
    pause: Callable[[float], None] = time.sleep

    @classmethod
    def parse(
        cls, kind: Kind, named: str, staging: str | None, environment: Mapping[str, str], reading: str | None = None
    ) -> ServerTarget:
        """Return the target that ``named``, an owner, a channel or its URL, stands for.

        Raises:
            UsageError: when it is no such thing, or no channel for staging is named.
            TokenRefused: when there are no credentials, or they would travel in the open.
        """
        url, _, channel = named.rpartition("/")
        url = url or HOMES.get(kind, "")
        if not channel or urlsplit(url).scheme not in {"http", "https"}:
            raise UsageError(f"{named!r} is no channel of {kind.value}", hint=f"{kind.value}:https://SERVER/CHANNEL")
        if staging is None or staging == channel:
            raise UsageError(f"no channel for staging on {kind.value}", hint="--staging CHANNEL, or LABEL on anaconda")
        token, auth_file = environment.get(TOKENS[kind]), environment.get("RATTLER_AUTH_FILE")
        if not token and not auth_file:
            raise TokenRefused(f"no token for {url}", hint=f"set {TOKENS[kind]}, or RATTLER_AUTH_FILE to a file")
        if urlsplit(url).scheme == "http" and urlsplit(url).hostname not in {"localhost", "127.0.0.1", "::1"}:
            raise TokenRefused(f"a token would go to {url} in the open", hint="use https")
        return cls(
            kind=kind,
            url=url,
            channel=channel,
            staging=staging,
            token=token,
            auth_file=auth_file,
            reading=reading and f"{reading.rstrip('/')}/{{channel}}",
        )

    @property
    def name(self) -> str:
        """What people are told."""
        return f"{self.kind.value}:{self.url}/{self.channel}"

    def held(self) -> dict[str, str]:
        """Return the hashes of what the channel has, by path."""
        return self._listed(self.channel)

    def address(self, channel: str | None = None) -> str:
        """Return where clients read a channel, the published one unless another is named."""
        channel = channel or self.channel
        if self.kind is Kind.ANACONDA and channel != self.channel:
            channel = f"{self.channel}/label/{channel}"
        return (self.reading or READING[self.kind]).format(url=self.url, channel=channel)

    def publish(
        self,
        packages: Sequence[Path],
        entries: Sequence[Entry],
        try_out: Callable[[str], None],
        attested: Attestation | None = None,  # noqa: ARG002 - such a server has no place for it; a bundle has
    ) -> tuple[str, ...]:
        """Bring packages to the channel for staging, have them tried out there, then to the channel itself.

        Raises:
            UploadFailed: naming how far it came; the same command goes on from there.
            TokenRefused: when the server does not take the token.
        """
        sources = {entry.path: package for entry, package in zip(entries, packages, strict=True)}
        held = self.held()
        new = [entry for entry in in_order(entries) if held.get(entry.path) != entry.sha256]
        if not new:
            return ()
        for channel in (self.staging, self.channel):
            there = self._listed(channel)
            for number, entry in enumerate(new):
                if there.get(entry.path) != entry.sha256:
                    self._bring(entry, sources[entry.path], channel, f"{number} of {len(new)} packages are there")
            self._wait(new, channel)
            if channel == self.staging:
                try_out(self.address(channel))
        return tuple(entry.path for entry in new)

    def abort(self) -> tuple[str, ...]:
        """Refuse: the library cannot remove what a server has taken.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"nothing can be taken back from {self.name}",
            why="the server indexes each package as it comes, and the library has no means to remove one",
            hint="run the same 'kiln publish' again to finish it, or remove the packages on the server's own pages",
        )

    def _bring(self, entry: Entry, package: Path, channel: str, so_far: str) -> None:
        """Upload one package, again after a pause when a fault may pass."""
        fault: str | None = None
        for attempt in range(ATTEMPTS):
            fault = self._upload(package, channel)
            if fault is None:
                return
            status = self._status(fault)
            if status in {401, 403}:
                raise TokenRefused(f"{self.url} does not take the token ({status})", why=fault)
            there = self._listed(channel).get(entry.path)
            if there == entry.sha256:
                return  # it came, only the answer was lost
            if there is not None:
                raise UploadFailed(f"{channel} has {entry.file} with another hash", hint="raise the build number")
            if attempt + 1 < ATTEMPTS:
                self.pause(PAUSE * 2**attempt * random.uniform(0.75, 1.25))  # noqa: S311 - to keep two from meeting again
        raise UploadFailed(
            f"{entry.file} could not be brought to {self.name} in {ATTEMPTS} attempts",
            why=f"{fault}; in {channel}, {so_far}",
            hint="run the same command again; what is there is not brought again",
        )

    def _upload(self, package: Path, channel: str) -> str | None:
        """Upload a package; returns what went wrong, without the token."""
        from rattler_build import RattlerBuildError, upload

        files, token, auth_file = [str(package)], self.token, self.auth_file
        try:
            if self.kind is Kind.ANACONDA:
                label = ["main" if channel == self.channel else channel]
                upload.upload_package_to_anaconda(
                    files, self.channel, channel=label, api_key=token, url=self.url, auth_file=auth_file
                )
            elif self.kind is Kind.PREFIX:
                upload.upload_package_to_prefix(files, self.url, channel, api_key=token, auth_file=auth_file)
            elif self.kind is Kind.QUETZ:
                upload.upload_package_to_quetz(files, self.url, channel, api_key=token, auth_file=auth_file)
            else:
                upload.upload_package_to_artifactory(files, self.url, channel, token=token, auth_file=auth_file)
        except RattlerBuildError as error:
            return str(error).replace(self.token or "\0", "***")
        return None

    def _status(self, fault: str) -> int | None:
        """Return the status behind a fault: told by the library, or by the server when it is asked about the token."""
        if found := _STATUS.search(fault):
            return int(found[1])
        if self.kind not in PROBES or not self.token:
            return None
        url, header, value = PROBES[self.kind]
        request = urllib.request.Request(  # noqa: S310 - parse lets http and https through alone
            url.format(url=self.url, channel=self.channel), headers={header: value.format(token=self.token)}
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310 - as above
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def _listed(self, channel: str) -> dict[str, str]:
        return {
            f"{subdir}/{file}": str(record.get("sha256", ""))
            for subdir in SUBDIRS
            for file, record in self._records(f"{self.address(channel)}/{subdir}/repodata.json").items()
        }

    def _records(self, url: str) -> dict[str, Any]:
        """Read one index; what is not there yet is empty, and what came cut off is asked for again."""
        fault = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                self.pause(PAUSE * 2 ** (attempt - 1))
            try:
                with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:  # noqa: S310 - parse saw to the scheme
                    told = json.loads(answer.read())
                    return {**told.get("packages", {}), **told.get("packages.conda", {})}
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return {}
                fault = f"the server answered {error.code}"
            except (OSError, ValueError, http.client.HTTPException) as error:
                fault = str(error) or type(error).__name__
        raise UploadFailed(f"{url} cannot be read", why=fault, hint="run the same command again")

    def _wait(self, entries: Sequence[Entry], channel: str) -> None:
        """Wait until a server has indexed what it took."""
        wanted = {entry.path: entry.sha256 for entry in entries}
        waited, pause = 0.0, 1.0
        while missing := wanted.items() - self._listed(channel).items():
            if waited > PATIENCE:
                names = ", ".join(sorted(path for path, _ in missing))
                raise UploadFailed(f"{self.url} took {names}, but does not list it after {PATIENCE:.0f} s")
            self.pause(pause)
            waited, pause = waited + pause, min(2 * pause, 30.0)


def in_order(entries: Sequence[Entry]) -> list[Entry]:
    """Return packages with those first that others need."""
    waiting = sorted(entries, key=lambda entry: entry.path)
    ordered: list[Entry] = []
    while waiting:
        names = {entry.record["name"] for entry in waiting}
        free = [entry for entry in waiting if not _needs(entry) & (names - {entry.record["name"]})] or waiting
        ordered += free
        waiting = [entry for entry in waiting if entry not in free]
    return ordered


def _needs(entry: Entry) -> set[str]:
    return {package_name(str(spec)) for spec in entry.record.get("depends", ())}
