"""Requests to a server with retries: a fault that may pass costs another attempt after a pause."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kiln import files, http_client
from kiln.errors import TokenRefused, UploadFailed
from kiln.http_client import NOT_FOUND, HttpError
from kiln.publish.channel_file_reader import read_stream_within_limits
from kiln.publish.publication_order import subdirs_with_defaults
from kiln.publish.transaction import AGAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kiln.publish.servers.server import Server

T = TypeVar("T")
ATTEMPTS = 6
PAUSE = 2.0  # seconds, doubled each time
INDEXING = 600.0  # seconds for a server to index what it took


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerClient:
    """The changes and the index of a server's channels; ``pause`` sleeps for a number of seconds.

    ``subdirs`` are read in addition to those of every channel.
    """

    server: Server
    pause: Callable[[float], None]
    subdirs: frozenset[str] = frozenset()

    def send_change_with_retries(self, act: Callable[[], None], done: Callable[[], bool], failure: str) -> None:
        """Send a change; repeat it when it fails and is not done all the same.

        Raises:
            TokenRefused: when the server does not accept the token.
            UploadFailed: with the text ``failure``, after the last attempt.
        """
        reason = ""
        for attempt in range(ATTEMPTS):
            self._pause_before_attempt(attempt)
            try:
                act()
            except HttpError as error:
                reason = str(error)
                if error.is_auth_failure:
                    what = f"{self.server.url} does not take the token ({error.status})"
                    raise TokenRefused(what, why=reason) from error
                if done():  # only the response was lost
                    return
            else:
                return
        raise UploadFailed(f"{failure} in {ATTEMPTS} attempts", why=reason, hint=AGAIN)

    def remove_package(self, remove: Callable[[str, str], None], path: str, channel: str) -> None:
        """Remove a package by one of the server's methods, if it is there."""

        def remove_if_present() -> None:
            try:
                remove(path, channel)
            except HttpError as error:
                if error.status != NOT_FOUND:
                    raise

        self.send_change_with_retries(
            remove_if_present, lambda: False, f"{path} could not be removed from {channel} on {self.server.url}"
        )

    def indexed_hashes(self, channel: str) -> dict[str, str]:
        """Return the hashes in the index of a channel, by path."""
        return {
            f"{subdir}/{file}": str(record.get("sha256", ""))
            for subdir in subdirs_with_defaults(self.subdirs)
            for file, record in self._subdir_index_records(channel, subdir).items()
        }

    def package_hash(self, path: str, channel: str, listed: Mapping[str, str]) -> str | None:
        """Return the hash of a package that a channel has, also of one that is not in its index yet."""
        url = f"{self.server.channel_url(channel)}/{path}"
        return listed[path] if path in listed else self._read_with_retries(remote_file_hash, url, None)

    def wait_for_index(self, channel: str, ready: Callable[[Mapping[str, str]], bool], failure: str) -> None:
        """Wait until the index of a channel has followed a change."""
        waited, pause = 0.0, 1.0
        while not ready(self.indexed_hashes(channel)):
            if waited > INDEXING:
                hint = "run the same command again, when the server has come so far"
                raise UploadFailed(f"{self.server.url} {failure} in {channel}, after {INDEXING:.0f} s", hint=hint)
            self.pause(pause)
            waited, pause = waited + pause, min(2 * pause, 30.0)

    def wait_until_removed(self, channel: str, packages: Mapping[str, str]) -> None:
        """Wait until the index of a channel no longer has packages, given by path and hash."""
        self.wait_for_index(channel, lambda now: not now.items() & packages.items(), "still lists removed packages")

    def _subdir_index_records(self, channel: str, subdir: str) -> dict[str, Any]:
        url = f"{self.server.channel_url(channel)}/{subdir}/repodata.json"
        return self._read_with_retries(download_index_records, url, {})

    def _read_with_retries(self, read: Callable[[str], T], url: str, missing: T) -> T:
        """Return what a function reads of a file, or ``missing`` if the file does not exist."""
        reason = ""
        for attempt in range(ATTEMPTS):
            self._pause_before_attempt(attempt)
            try:
                return read(url)
            except HttpError as error:
                if error.status == NOT_FOUND:
                    return missing
                reason = str(error)
        raise UploadFailed(f"{url} cannot be read", why=reason, hint="run the same command again")

    def _pause_before_attempt(self, attempt: int) -> None:
        if attempt:
            self.pause(PAUSE * 2 ** (attempt - 1) * random.uniform(0.75, 1.25))  # noqa: S311 - to keep two apart


def download_index_records(url: str) -> dict[str, Any]:
    """Return the records of one index; raise HttpError, also for half a file."""
    try:
        with http_client.send_request(url) as response:
            value = json.loads(read_stream_within_limits(response, url, http_client.content_length(response)))
        return {**value.get("packages", {}), **value.get("packages.conda", {})}
    except (AttributeError, TypeError, RecursionError) as error:
        raise HttpError(str(error) or type(error).__name__) from error


def remote_file_hash(url: str) -> str:
    """Return the SHA-256 of a file; raise HttpError, also for half a file."""
    with http_client.send_request(url) as response:
        sha256 = files.open_file_sha256(response)
        cut_off = bool(response.length)  # the rest of the announced size
    if cut_off:
        raise HttpError(f"{url} was cut off")
    return sha256
