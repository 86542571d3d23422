"""The order in which packages appear where they cannot appear all at once: no solve finds half a release.

Packages that others need come first, so a reader in between finds the old release or the new one, and no package
without its requirements. Of one name, the builds that a solver prefers come first: if the others came first, a newer
build for the CPU would win over the older one for the GPU.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from kiln.matchspec_notation import package_name
from kiln.repodata.index_document import BASE, SHARDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kiln.repodata.index_entry import IndexEntry

SUBDIRS = ("noarch", "linux-64")  # of every channel that is made here; others follow with their packages


def subdirs_with_defaults(names: Iterable[str]) -> tuple[str, ...]:
    """Return the subdirs of a channel that has, or gets, these: those of every channel first."""
    return (*SUBDIRS, *sorted(set(names) - set(SUBDIRS)))


def sorted_by_dependencies(entries: Iterable[IndexEntry]) -> list[IndexEntry]:
    """Return packages, those first that others need; all builds of a name stay together."""
    waiting = sorted(entries, key=_solver_preference)
    ordered: list[IndexEntry] = []
    while waiting:
        names = {_package_name(entry) for entry in waiting}
        blocked = {
            _package_name(entry)
            for entry in waiting
            if _required_package_names(entry) & (names - {_package_name(entry)})
        }
        free = [entry for entry in waiting if _package_name(entry) not in blocked] or waiting
        ordered += free
        waiting = [entry for entry in waiting if entry not in free]
    return ordered


def sorted_and_split_by_subdir(entries: Iterable[IndexEntry]) -> list[Sequence[IndexEntry]]:
    """Return packages in order, divided where the subdir changes: each part changes one index."""
    return [list(run) for _, run in itertools.groupby(sorted_by_dependencies(entries), key=lambda entry: entry.subdir)]


def index_file_write_order(name: str) -> tuple[bool, bool, bool, str]:
    """Return the turn of an index file where files are replaced one by one.

    Shards that others name come first, then what clients read, kiln's record last.
    """
    return not name.startswith(f"{SHARDS}/"), name == BASE, "repodata" in name, name


def _solver_preference(entry: IndexEntry) -> tuple[bool, int, str]:
    """Return the key by which solvers prefer builds: none to track features, then a high build number."""
    record: Any = entry.record
    return bool(record.get("track_features")), -int(record.get("build_number", 0)), entry.path


def _package_name(entry: IndexEntry) -> str:
    return str(entry.record["name"])


def _required_package_names(entry: IndexEntry) -> set[str]:
    return {package_name(str(spec)) for spec in entry.record.get("depends", ())}
