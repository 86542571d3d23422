"""The record of a chain: jobs that continue one config's build, each in the time that a CI service gives it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ChainState(str, Enum):
    """The state in which a job leaves a chain."""

    UNFINISHED = "unfinished"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """One job of a chain: its duration in seconds, and the finished actions and steps at its end."""

    seconds: float
    actions: int
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverArchive:
    """The archive of what a chain has made so far: ``size`` and ``unpacked`` in bytes, ``files`` their number."""

    name: str
    size: int
    unpacked: int
    files: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverRecord:
    """The state that one job hands on to the next.

    ``sources`` is a hash of the feedstock's files, ``cache_key`` the name of the compile cache, ``in_container`` where
    the steps were made. A finished chain has no archive, but the hashes of its ``packages`` by their names.
    """

    version: int
    config: str
    sources: str
    cache_key: str
    in_container: bool
    state: ChainState
    links: tuple[ChainLink, ...]
    archive: HandoverArchive | None
    packages: tuple[tuple[str, str], ...] = ()

    @property
    def total_seconds(self) -> float:
        """The duration of all jobs so far."""
        return sum(link.seconds for link in self.links)
