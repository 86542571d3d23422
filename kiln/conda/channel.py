"""A conda channel in a folder, and a reader of any channel's files within limits on time and size."""

from __future__ import annotations

import ipaddress
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from kiln.base import files, secret_forms
from kiln.base.errors import DownloadFailed, LimitExceeded, TokenRefused, UsageError
from kiln.base.patterns import existing_subdirs
from kiln.conda.rattler import client
from kiln.conda.rattler.limits import current_limits, limit_increase_hint

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterable, Iterator


UNINDEXED = ".unindexed"  # exists in the channel while the index may differ from the files in any way
ADDED = ".unindexed-added"  # exists while the index only lacks packages
SUBDIRS = ("linux-64", "noarch")  # of every channel that is made here


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalChannel:
    """A channel in the folder ``root``."""

    root: Path

    @property
    def url(self) -> str:
        """The channel's URL, as conda clients take it."""
        return self.root.absolute().as_uri()

    @property
    def subdirs(self) -> tuple[str, ...]:
        """The channel's folders of packages; those of a channel that is made here are among them."""
        return (*SUBDIRS, *(name for name in existing_subdirs(self.root) if name not in SUBDIRS))

    def package_path(self, package: Path, subdir: str) -> Path:
        """Return the path of a package file in the channel; raises NotWritable for a link that leads out of it."""
        return files.safe_path_inside(self.root / subdir / package.name, self.root, links=True)

    def add(self, packages: Iterable[tuple[Path, str]], *, index: bool = True) -> tuple[Path, ...]:
        """Add package files, each with its subdir, index the channel, and return their paths there.

        A file is linked where the file system can, and appears whole or not at all. After a run killed between the two
        steps, the next one repairs the index, see ``repair_index``; so does a caller that adds many without ``index``.
        """
        places = {self.package_path(package, subdir): package for package, subdir in packages}
        replaced = any(place.exists() for place in places)
        self._mark_unindexed(UNINDEXED if replaced else ADDED)
        for place, package in places.items():
            files.link_or_copy(package, place)
        if index:
            self._index_packages()
        return tuple(places)

    def remove_other_packages(self, names: Iterable[str]) -> None:
        """Remove the packages with other file names, and index the channel when there were any."""
        names = frozenset(names)
        stale = [package for package in self.packages() if package.name not in names]
        if stale:
            self._mark_unindexed()
            for package in stale:
                package.unlink()
            self._index_packages()

    def packages(self) -> tuple[Path, ...]:
        """Return the package files of the channel."""
        return tuple(file for subdir in self.subdirs for file in sorted((self.root / subdir).glob("*.conda")))

    def package_names(self) -> frozenset[str]:
        """Return the names of all packages in the channel."""
        return frozenset(package.name.rsplit("-", 2)[0] for package in self.packages())

    @property
    def is_unindexed(self) -> bool:
        """True while the index differs from the files."""
        return any((self.root / mark).exists() for mark in (UNINDEXED, ADDED))

    def repair_index(self) -> None:
        """Index a channel whose index is missing or unfinished, and remove half-written files.

        Where packages were only added, the others are not read again.
        """
        for folder in self._subdir_folders():
            files.remove_part_files(folder)
        indexed = all((self.root / subdir / "repodata.json").is_file() for subdir in self.subdirs)
        if not indexed:
            self._mark_unindexed()
        if self.is_unindexed:
            self._index_packages()

    def _subdir_folders(self) -> Iterator[Path]:
        """Yield the folder of each subdir, made where there is none yet."""
        for subdir in self.subdirs:
            folder = files.safe_path_inside(self.root / subdir, self.root, links=True)
            folder.mkdir(parents=True, exist_ok=True)
            yield folder

    def _mark_unindexed(self, mark: str = UNINDEXED) -> None:
        files.create_empty_file(self.root / mark)

    def _index_packages(self) -> None:
        force = (self.root / UNINDEXED).exists()
        self._mark_unindexed()  # a run that is killed meanwhile may leave any index
        for folder in self._subdir_folders():
            for index in folder.glob("repodata*"):
                files.safe_path_inside(index, self.root, links=True)
        with files.full_disk_as_kiln_error(self.root):
            client.run_operation("index", root=str(self.root.absolute()), force=force)
        for mark in (ADDED, UNINDEXED):
            files.remove(self.root / mark)


CHUNK = 1 << 20
SAFE = "/:?#[]@!$&'()*+,;=%-._~"  # the characters of a URL (RFC 3986); others in an address are quoted
HINT = "name the channel with credentials that it takes: https://USER:PASSWORD@HOST/CHANNEL"


def channel_reader(channel: str, largest: int | None = None) -> Callable[[str], bytes | None]:
    """Return a function that reads a file of a channel by its path there; it returns None for a missing file.

    Credentials in the channel's URL are sent to its own server alone, see `kiln.base.http`. ``largest``
    is the limit on a file's size in bytes, by default that on an index.

    Raises:
        UsageError: when the channel is neither a URL nor a folder.
        DownloadFailed: when a server cannot be reached, refuses, sends nothing, or half a file.
        TokenRefused: when it refuses the credentials, or requires some.
        LimitExceeded: when a file is larger than an index may be, or takes longer than reading one may.
    """
    from kiln.base.http import register_credentials

    if not channel.startswith(("http://", "https://")):
        root = (
            files.path_of_file_url(channel.removeprefix("file://")) if channel.startswith("file://") else Path(channel)
        )
        if not root.is_dir():
            raise UsageError(f"channel not found: {channel!r}", hint="a folder or a URL")
        return lambda path: _read_local_file(root / path, largest)
    (bare,) = register_credentials((channel,))
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
    import http.client

    limits = current_limits()
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
    from kiln.base.http import (
        NOT_FOUND,
        TIMEOUT,
        HttpError,
        content_length,
        request_headers,
        send_request,
        url_with_token,
    )

    url = quote(address, safe=SAFE)
    with_token = quote(url_with_token(address), safe=SAFE)
    timeout = min(TIMEOUT, current_limits().stall)
    try:
        with send_request(with_token, headers=request_headers(url), timeout=timeout) as response:
            return read_stream_within_limits(response, url, content_length(response), largest)
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
            f"{secret_forms.with_masked_credentials(channel)!r} is not the URL of a channel",
            why=why,
            hint="https://HOST/PATH, or a folder",
        )
