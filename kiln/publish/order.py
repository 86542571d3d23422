"""The order in which packages appear where they cannot appear all at once: no solve finds half a release.

Packages that others need come first, so a reader in between finds the old release or the new one, and no package
without its requirements. Of one name, the builds that a solver prefers come first: if the others came first, a newer
build for the CPU would win over the older one for the GPU.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from kiln.matchspec_notation import package_name
from kiln.repodata import BASE, SHARDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kiln.repodata import IndexEntry

SUBDIRS = ("noarch", "linux-64")  # of every channel that is made here; others follow with their packages


def channel_subdirs(names: Iterable[str]) -> tuple[str, ...]:
    """Return the subdirs of a channel that has, or gets, these: those of every channel first."""
    return (*SUBDIRS, *sorted(set(names) - set(SUBDIRS)))


def in_dependency_order(entries: Iterable[IndexEntry]) -> list[IndexEntry]:
    """Return packages, those first that others need; all builds of a name stay together."""
    waiting = sorted(entries, key=_preference)
    ordered: list[IndexEntry] = []
    while waiting:
        names = {_name(entry) for entry in waiting}
        blocked = {_name(entry) for entry in waiting if _needs(entry) & (names - {_name(entry)})}
        free = [entry for entry in waiting if _name(entry) not in blocked] or waiting
        ordered += free
        waiting = [entry for entry in waiting if entry not in free]
    return ordered


def subdir_groups(entries: Iterable[IndexEntry]) -> list[Sequence[IndexEntry]]:
    """Return packages in order, divided where the subdir changes: each part changes one index."""
    return [list(run) for _, run in itertools.groupby(in_dependency_order(entries), key=lambda entry: entry.subdir)]


def write_rank(name: str) -> tuple[bool, bool, bool, str]:
    """Return the turn of an index file where files are replaced one by one.

    Shards that others name come first, then what clients read, kiln's record last.
    """
    return not name.startswith(f"{SHARDS}/"), name == BASE, "repodata" in name, name


def _preference(entry: IndexEntry) -> tuple[bool, int, str]:
    """Return the key by which solvers prefer builds: none to track features, then a high build number."""
    record: Any = entry.record
    return bool(record.get("track_features")), -int(record.get("build_number", 0)), entry.path


def _name(entry: IndexEntry) -> str:
    return str(entry.record["name"])


def _needs(entry: IndexEntry) -> set[str]:
    return {package_name(str(spec)) for spec in entry.record.get("depends", ())}
