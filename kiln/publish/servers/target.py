"""A channel on a server that keeps its own index, as the target of a publication."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import random
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from kiln.base import files, http
from kiln.base.errors import PublicationPending, TokenRefused, UploadFailed, UsageError
from kiln.base.http import NOT_FOUND, HttpError
from kiln.conda.channel import read_stream_within_limits
from kiln.publish.attestations import (
    extract_own_publication_bundle,
    remove_documents,
    remove_sidecars,
    write_documents,
    write_package_sidecar,
)
from kiln.publish.model import Journal, JournalFile, subdirs_with_defaults
from kiln.publish.servers.servers import Promotion, Server
from kiln.publish.stores.folder import FolderStore
from kiln.publish.transaction import AGAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from kiln.conda.index import IndexEntry
    from kiln.conda.provenance.records import ReleaseAttestations
    from kiln.publish.servers.servers import ServerKind
    from kiln.publish.transaction import Publication


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
        """Send a change; repeat it when it fails and is not done all the same."""
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
        hashes: dict[str, str] = {}
        for subdir in subdirs_with_defaults(self.subdirs):
            url = f"{self.server.channel_url(channel)}/{subdir}/repodata.json"
            records: dict[str, Any] = self._read_with_retries(_download_index_records, url, {})
            hashes |= {f"{subdir}/{file}": str(record.get("sha256", "")) for file, record in records.items()}
        return hashes

    def package_hash(self, path: str, channel: str, listed: Mapping[str, str]) -> str | None:
        """Return the hash of a package that a channel has, also of one that is not in its index yet."""
        url = f"{self.server.channel_url(channel)}/{path}"
        return listed[path] if path in listed else self._read_with_retries(_remote_file_hash, url, None)

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


def _download_index_records(url: str) -> dict[str, Any]:
    """Return the records of one index; raise HttpError, also for half a file."""
    try:
        with http.send_request(url) as response:
            value = json.loads(read_stream_within_limits(response, url, http.content_length(response)))
        return {**value.get("packages", {}), **value.get("packages.conda", {})}
    except (AttributeError, TypeError, RecursionError) as error:
        raise HttpError(str(error) or type(error).__name__) from error


def _remote_file_hash(url: str) -> str:
    """Return the SHA-256 of a file; raise HttpError, also for half a file."""
    with http.send_request(url) as response:
        sha256 = files.open_file_sha256(response)
        cut_off = bool(response.length)  # the rest of the announced size
    if cut_off:
        raise HttpError(f"{url} was cut off")
    return sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTarget:
    """A channel on a server, as `kiln.publish.transaction.PublicationTarget` describes.

    ``staging`` is the channel (or label) that packages are tried out from, ``journals`` a folder of this machine.
    ``subdirs`` are those of the packages that may be published.
    """

    kind: ServerKind
    server: Server
    staging: str | None
    journals: Path
    subdirs: frozenset[str] = frozenset()
    pause: Callable[[float], None] = time.sleep

    @property
    def name(self) -> str:
        """The channel's name in messages."""
        return f"{self.kind.value}:{self.server.url}/{self.channel}"

    @property
    def channel(self) -> str:
        """The published channel."""
        return self.server.channel

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on readers during a publication, and on the statements."""
        folder = self.state_folder.root / "provenance"
        kept = "statements" if self.server.takes_attestations else "statements and attestations"
        return self.server.moment, f"the server cannot keep {kept} of how packages were made; they are in {folder}"

    @property
    def client(self) -> ServerClient:
        """The server, with retries; a publication under way may have other subdirs than the feedstock has now."""
        journal = self.journal.read()
        pending = {path.partition("/")[0] for path in journal.packages} if journal else set()
        return ServerClient(server=self.server, pause=self.pause, subdirs=self.subdirs | pending)

    @property
    def state_folder(self) -> FolderStore:
        """The folder of this machine for the channel: its journal and its records."""
        host = urlsplit(self.server.url).hostname or ""
        digest = hashlib.sha256(self.name.encode()).hexdigest()[:8]
        return FolderStore(root=self.journals / f"{host}-{self.channel}-{digest}")

    @property
    def journal(self) -> JournalFile:
        """The journal, on this machine."""
        return JournalFile(store=self.state_folder, path="journal.json")

    def package_hashes(self) -> dict[str, str]:
        """Return the hashes in the channel's index."""
        return self.client.indexed_hashes(self.channel)

    def damaged_paths(self) -> frozenset[str]:
        """Return nothing: a server keeps its files itself."""
        return frozenset()

    def channel_url(self) -> str:
        """Return the URL at which clients read the channel."""
        return self.server.channel_url(self.channel)

    def exclusive_lock(self) -> AbstractContextManager[None]:
        """Hold the lock of this machine."""
        return self.state_folder.exclusive_lock()

    def prepare_journal(self, journal: Journal, entries: Sequence[IndexEntry]) -> Journal:  # noqa: ARG002 - of stores
        """Return the journal with the channel for staging."""
        if journal.aside or not journal.fresh:
            return journal
        if not self.staging or self.staging == self.channel:
            hint = "--staging CHANNEL, or LABEL on anaconda"
            raise UsageError(f"no channel for staging on {self.kind.value}", hint=hint)
        journal = dataclasses.replace(journal, aside=self.staging)
        self._require_nothing_else_staged(journal)
        return journal

    def stage(self, publication: Publication) -> str:
        """Upload packages to the channel for staging."""
        aside = publication.journal.aside

        def upload_packages(paths: Sequence[str]) -> Iterator[str]:
            for path in paths:
                self.server.upload(publication.files[path], aside)
                yield path

        for entry in publication.entries:
            self._transfer_missing_packages([entry], aside, upload_packages)
        self._wait_until_indexed(publication.entries, aside)
        return self.server.channel_url(aside)

    def promote(self, publication: Publication, attestation: ReleaseAttestations | None) -> None:
        """Publish staged packages, with their attestations: all by one request, or one after the other."""
        aside = publication.journal.aside
        attestations = {}
        for entry in publication.entries:
            write_package_sidecar(self.state_folder, entry, attestation)
            file = extract_own_publication_bundle(self.state_folder, entry.path)
            if file and self.server.takes_attestations:
                attestations[entry.path] = file
        self._require_nothing_else_staged(publication.journal)

        def promote_packages(paths: Sequence[str]) -> Iterator[str]:
            packages = {path: publication.files[path] for path in paths}
            promotion = Promotion(packages=packages, staging=aside, channel=self.channel, attestations=attestations)
            return self.server.promote(promotion)

        batches = [publication.entries] if self.server.together else [(entry,) for entry in publication.entries]
        for batch in batches:
            self._transfer_missing_packages(batch, self.channel, promote_packages)

    def add_packages_to_index(self, publication: Publication, attestation: ReleaseAttestations | None) -> None:
        """Wait until the server has indexed the packages, and keep the statements about them on this machine."""
        self._wait_until_indexed(publication.entries, self.channel)
        write_documents(self.state_folder, publication.journal, attestation)

    def remove_from_staging(self, publication: Publication) -> None:
        """Remove published packages from staging; where the token does not allow that, they stay."""
        aside, journal = publication.journal.aside, self.journal.read()
        with contextlib.suppress(UploadFailed, TokenRefused):
            for path in reversed(journal.uploaded_paths(aside) if journal else ()):
                self.client.remove_package(self.server.unlist, path, aside)

    def withdraw_packages(self, journal: Journal) -> None:
        """Remove what the channel took from this publication, the last package first."""
        self._remove_confirmed_packages(journal, self.channel)

    def abort(self, journal: Journal) -> tuple[str, ...]:
        """Remove what staging and the channel took from this publication, and the statements; return what stays."""
        for channel in (journal.aside, self.channel):
            self._remove_confirmed_packages(journal, channel)
        remove_documents(self.state_folder, journal)
        for path in journal.fresh:
            remove_sidecars(self.state_folder, path)
        listed = {channel: self.client.indexed_hashes(channel) for channel in (journal.aside, self.channel)}
        return tuple(
            f"{path} is in {channel} and stays there: its upload was not confirmed, so it may be another machine's"
            for channel, path in journal.brought
            if (channel, path) not in journal.confirmed
            and self.client.package_hash(path, channel, listed[channel]) == journal.packages[path]
        )

    def _remove_confirmed_packages(self, journal: Journal, channel: str) -> None:
        listed, paths = self.client.indexed_hashes(channel), journal.confirmed_paths(channel)
        for path in reversed(paths):
            if self.client.package_hash(path, channel, listed) == journal.packages[path]:
                self.client.remove_package(self.server.unlist, path, channel)
        self.client.wait_until_removed(channel, {path: journal.packages[path] for path in paths})

    def _require_nothing_else_staged(self, journal: Journal) -> None:
        """Raise PublicationPending where one request would publish other packages that are staged."""
        others = (
            self.client.indexed_hashes(journal.aside).keys() - journal.packages.keys() if self.server.sweeps else ()
        )
        if others:
            raise PublicationPending(
                f"{journal.aside} holds other packages: {', '.join(sorted(others)[:3])}",
                why="all packages there would be published; perhaps another publication is under way",
                hint="name another --staging, or remove them from this one",
            )

    def _transfer_missing_packages(
        self, batch: Sequence[IndexEntry], channel: str, act: Callable[[Sequence[str]], Iterable[str]]
    ) -> None:
        """Bring packages to a channel, except those that it has; the journal notes them before and after."""
        paths = self._missing_package_paths(batch, channel)
        if not paths:
            return
        self._change_journal(lambda journal: journal.with_uploads(channel, paths))

        def transfer() -> None:
            for path in act(self._missing_package_paths(batch, channel)):
                self._change_journal(partial(Journal.with_confirmed_upload, channel=channel, path=path))

        names = ", ".join(path.split("/")[-1] for path in paths)
        self.client.send_change_with_retries(
            transfer,
            lambda: not self._missing_package_paths(batch, channel),
            f"{names} could not be uploaded to {channel} on {self.server.url}",
        )

    def _change_journal(self, change: Callable[[Journal], Journal]) -> None:
        journal = self.journal.read()
        assert journal is not None, "uploads begin with a journal"
        self.journal.write(change(journal))

    def _missing_package_paths(self, batch: Sequence[IndexEntry], channel: str) -> list[str]:
        return _missing_from_index(batch, self.client.indexed_hashes(channel), channel)

    def _wait_until_indexed(self, entries: Sequence[IndexEntry], channel: str) -> None:
        self.client.wait_for_index(
            channel, lambda listed: not _missing_from_index(entries, listed, channel), "does not list uploaded packages"
        )


def _missing_from_index(batch: Sequence[IndexEntry], listed: Mapping[str, str], channel: str) -> list[str]:
    """Return the paths that an index lacks; raise UploadFailed where it has one with another hash."""
    for entry in batch:
        if listed.get(entry.path, entry.sha256) != entry.sha256:
            raise UploadFailed(f"{channel} has {entry.file} with another hash", hint="raise the build number")
    return [entry.path for entry in batch if entry.path not in listed]
