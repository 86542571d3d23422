"""Channels on servers and in buckets, releases for them, and clients that die."""

from __future__ import annotations

import dataclasses
import functools
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files
from kiln.base.errors import HashMismatch
from kiln.conda.index import IndexEntry, read_index_entry
from kiln.publish.servers.servers import ServerKind
from kiln.publish.servers.target import ServerTarget
from kiln.publish.targets import parse_target
from tests.channel_server import TOKEN
from tests.packages import release_package

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kiln.publish.servers.servers import Server
    from kiln.publish.stores.s3 import Lease, S3Store


ROOT = Path(__file__).parents[2]
KINDS = tuple(ServerKind)


def channel_on(
    server: str,
    kind: ServerKind,
    tmp_path: Path,
    pauses: list[float] | None = None,
    *,
    token: str = TOKEN,
    channel: str = "release",
    staging: str = "trial",
) -> ServerTarget:
    """A channel of the server as a target; its journals are in ``tmp_path``."""
    reading = f"{server}/get" if kind is ServerKind.ANACONDA else None
    environment = {kind.server_class.token_variable: token}
    journals = tmp_path / "journals"
    result = parse_target(
        f"{kind.value}:{server}/{channel}", environment, journals=journals, staging=staging, reading=reading
    )
    assert isinstance(result, ServerTarget)
    return dataclasses.replace(result, pause=(pauses if pauses is not None else []).append)


def release(tmp_path: Path) -> tuple[list[Path], list[IndexEntry]]:
    """Two packages, the first of which needs the second."""
    paths = [
        release_package(tmp_path / "built", "app", depends=["lib"]),
        release_package(tmp_path / "built", "lib"),
    ]
    return paths, [read_index_entry(path) for path in paths]


def requests(tmp_path: Path, *methods: str) -> list[str]:
    """The changes that a server was asked for: all of them, or those by some methods."""
    told = tmp_path / "requests"
    lines = told.read_text().splitlines() if told.is_file() else []
    return [line for line in lines if not methods or line.split()[0] in methods]


def served(tmp_path: Path, channel: str = "release") -> dict[str, str]:
    """Return the packages in a channel of the server, with their hashes."""
    place = tmp_path / "served" / channel
    return {str(file.relative_to(place)): files.sha256(file) for file in sorted(place.glob("*/*.conda"))}


class Mortal:
    """A server that we lose at the n-th change that we ask for, before or after it is made."""

    def __init__(self, server: Server, lives: int, *, after: bool) -> None:
        self.server, self.lives, self.after = server, lives, after

    def __getattr__(self, name: str) -> Any:
        result = getattr(self.server, name)
        return functools.partial(self.ask, result) if name in {"upload", "promote", "unlist"} else result

    def ask(self, change: Callable[..., Iterator[str] | None], *args: Any) -> list[str]:
        self.lives -= 1
        if self.lives < 0 and not self.after:
            raise KeyboardInterrupt
        taken = list(change(*args) or ())
        if self.lives < 0:
            raise KeyboardInterrupt
        return taken


def refuse(_: str) -> None:
    """Try packages out, and find them no good."""
    raise HashMismatch("no good")


class MortalClient:
    """A client of S3 that dies at its n-th request."""

    def __init__(self, client: Any, lives: int) -> None:
        self.client, self.lives = client, lives

    def __getattr__(self, name: str) -> Any:
        self.lives -= 1
        if self.lives < 0:
            raise KeyboardInterrupt
        return getattr(self.client, name)


def dying(store: S3Store, lives: int) -> S3Store:
    """A bucket whose client dies at its n-th request; a lease that an earlier one has left is nobody's at once."""
    client = MortalClient(store.client, lives)
    return dataclasses.replace(store, client=client, lease=taken_over(store, client))


def taken_over(store: S3Store, client: Any = None) -> Lease:
    """The lease of a bucket for one who has waited until it ran out, and needs no renewal within a test."""
    return dataclasses.replace(store.lease, client=client or store.client, life=0, renewal=3600)


def has(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False
