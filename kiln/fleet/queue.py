"""Which cell a free machine takes next: one rule, for the plan and for the run.

A cell compiles in full, unless its group's compile is in the machine's reach: on its own disk, or in a cache that all
machines use. Leaders come first, the longest first among equals (LPT: Graham, Bounds on multiprocessing timing
anomalies, 1969).
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kiln.model.fleet import Work

WORTH = 1.1  # a compile is repeated only where the group is through a tenth of a compile sooner


def shared(work: Work) -> str:
    """Return what a cell shares its compile with: itself alone when a compile before it saves nothing."""
    return work.group if work.follower < work.full else work.config


class Queue:
    """The cells that wait, and where each group's compile lies.

    With ``cache`` it lies in reach of every machine once any has ended it. ``patient`` followers then wait for a leader
    that is under way; others compile for themselves.
    """

    def __init__(self, works: Iterable[Work], *, cache: bool = False, patient: bool = True) -> None:
        self._cache = cache
        self._patient = patient
        self._waiting: dict[str, list[Work]] = {}
        self._unled: list[tuple[float, str]] = []
        self._compiling: dict[str, set[str]] = {}  # group -> machines that compile it now
        self._on_disk: dict[str, set[str]] = {}  # group -> machines that have it
        self._reach: dict[str, set[str]] = {}  # machine -> groups on its disk
        self._cached: set[str] = set()
        self._busy: dict[str, tuple[Work, float]] = {}  # machine -> what it builds, and until when
        self._count = 0
        for work in works:
            self.add(work)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Work]:
        return (work for works in self._waiting.values() for work in works)

    def add(self, work: Work) -> None:
        """Let a cell wait, perhaps again."""
        insort(self._waiting.setdefault(shared(work), []), work, key=lambda each: (-each.full, each.config))
        self._count += 1
        self._orphaned(shared(work))

    def next(self, machine: str, now: float) -> Work | None:
        """Return what a free machine should build, or None when it had better wait; ``now`` is in seconds."""
        if not self._count:
            return None
        group = self._unbegun() or self._in_reach(machine) or self._worth_another(now)
        return None if group is None else self._waiting[group][0]

    def compiles(self, machine: str, work: Work) -> bool:
        """Whether a cell has to be compiled in full on a machine."""
        return shared(work) not in self._cached and machine not in self._on_disk.get(shared(work), ())

    def leads(self, machine: str) -> bool:
        """Whether what a machine builds, it compiles in full."""
        return machine in self._compiling.get(shared(self._busy[machine][0]), ())

    def expected(self, machine: str) -> float:
        """Return how long what a machine builds should take."""
        work = self._busy[machine][0]
        return work.full if self.leads(machine) else work.follower

    def seconds(self, machine: str, work: Work) -> float:
        """Return how long a cell should take on a machine."""
        return work.full if self.compiles(machine, work) else work.follower

    def begin(self, machine: str, work: Work, now: float) -> None:
        """Take a cell out of the queue for a machine, from ``now`` on."""
        self._waiting[shared(work)].remove(work)
        self._count -= 1
        self.resume(machine, work, now)

    def resume(self, machine: str, work: Work, now: float) -> None:
        """Take note of a cell that a machine builds, which need not have waited."""
        self._busy[machine] = (work, now + self.seconds(machine, work))
        if self.compiles(machine, work):
            self._compiling.setdefault(shared(work), set()).add(machine)

    def end(self, machine: str, *, well: bool = True) -> None:
        """Take note that a machine has built what it was given; its compile can be used when it went ``well``."""
        group = shared(self._busy.pop(machine)[0])
        self._compiling.get(group, set()).discard(machine)
        if well:
            self.has(machine, group)
            if self._cache:
                self._cached.add(group)
        self._orphaned(group)

    def has(self, machine: str, group: str) -> None:
        """Take note that a group's compile lies on a machine's disk, from before this queue began."""
        self._on_disk.setdefault(group, set()).add(machine)
        self._reach.setdefault(machine, set()).add(group)

    def lose_cache(self) -> None:
        """Take note that there is no cache any more that all machines use."""
        self._cache = False
        self._cached.clear()
        for group in self._waiting:
            self._orphaned(group)

    def leave(self, machine: str) -> None:
        """Take note that a machine is gone, with all that lay on its disk."""
        if machine in self._busy:
            self.end(machine, well=False)
        for group in self._reach.pop(machine, set()):
            self._on_disk[group].discard(machine)
            self._orphaned(group)

    def _orphaned(self, group: str) -> None:
        """Let a group be led, perhaps again, when its compile lies nowhere and nobody is at it."""
        if self._waiting.get(group) and not self._led(group):
            heapq.heappush(self._unled, (-self._waiting[group][0].full, group))

    def _led(self, group: str) -> bool:
        return bool(self._compiling.get(group) or self._on_disk.get(group)) or group in self._cached

    def _unbegun(self) -> str | None:
        while self._unled:
            group = self._unled[0][1]
            if self._waiting.get(group) and not self._led(group):
                return group
            heapq.heappop(self._unled)
        return None

    def _in_reach(self, machine: str) -> str | None:
        here = [group for group in self._reach.get(machine, set()) | self._cached if self._waiting.get(group)]
        return min(here, key=lambda group: (-self._waiting[group][0].follower, group), default=None)

    def _worth_another(self, now: float) -> str | None:
        """The group whose compile had better be repeated on a further machine than be waited for."""
        if self._cache:
            others = [] if self._patient else [group for group, works in self._waiting.items() if works]
            return min(others, key=lambda group: (-len(self._waiting[group]), group), default=None)
        ends = [(self._end_of(group), group) for group, works in self._waiting.items() if works]
        end, group = max(ends, default=(0.0, None))
        return group if group and now + WORTH * self._waiting[group][0].full < end else None

    def _end_of(self, group: str) -> float:
        """When those who have a group's compile, or make it, would be through with all that waits of it."""
        holders = self._compiling.get(group, set()) | self._on_disk.get(group, set())
        free = min((self._busy[machine][1] if machine in self._busy else 0.0 for machine in holders), default=0.0)
        waiting = self._waiting[group]
        return free + math.ceil(len(waiting) / max(1, len(holders))) * waiting[0].follower
