"""The order in which packages appear where they cannot appear all at once: no solve finds half a release.

What others need comes first, so whoever reads in between is offered nothing whose requirements are not there: the old
release, or the new one. Of one name, the builds that a solver prefers come first: with the others alone there, a newer
build for the CPU would win over the older one for the GPU.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from kiln.matchspec import package_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kiln.repodata import Entry


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Return packages with those first that others need; all builds of a name stay together."""
    waiting = sorted(entries, key=_preference)
    ordered: list[Entry] = []
    while waiting:
        names = {_name(entry) for entry in waiting}
        held_back = {_name(entry) for entry in waiting if _needs(entry) & (names - {_name(entry)})}
        free = [entry for entry in waiting if _name(entry) not in held_back] or waiting
        ordered += free
        waiting = [entry for entry in waiting if entry not in free]
    return ordered


def runs(entries: Iterable[Entry]) -> list[Sequence[Entry]]:
    """Return packages in order, parted where the subdir changes: each part changes one index."""
    return [list(run) for _, run in itertools.groupby(in_order(entries), key=lambda entry: entry.subdir)]


def _preference(entry: Entry) -> tuple[bool, int, str]:
    """Solvers avoid what has features to track, and prefer high build numbers."""
    record: Any = entry.record
    return bool(record.get("track_features")), -int(record.get("build_number", 0)), entry.path


def _name(entry: Entry) -> str:
    return str(entry.record["name"])


def _needs(entry: Entry) -> set[str]:
    return {package_name(str(spec)) for spec in entry.record.get("depends", ())}
