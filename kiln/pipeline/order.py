"""In which order cells are built: decided purely, from their groups and how long they took before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A cell in the order of work: ``estimate`` in seconds, None when nothing like it was built before."""

    config: str
    group: str
    leader: bool
    estimate: float | None


def arrange(groups: Mapping[str, str], estimates: Mapping[str, float], *, shared: bool = True) -> tuple[Planned, ...]:
    """Order cells, given each one's group: the leaders of the groups first, and the longest first among equals.

    What the leader compiles, the others of its group find in a cache they share. A cell that was never built is taken
    to need as long as its group's do on average, or else as all do. Where nothing is ``shared``, as
    in a rehearsal, none leads.
    """
    expected = {config: _expected(config, groups, estimates) for config in groups}
    longest = sorted(groups, key=lambda config: (-(expected[config] or 0.0), config))
    led = set() if shared else set(groups.values())
    planned = []
    for config in longest:
        group = groups[config]
        planned.append(Planned(config=config, group=group, leader=group not in led, estimate=expected[config]))
        led.add(group)
    return tuple(sorted(planned, key=lambda each: not each.leader))


def _expected(config: str, groups: Mapping[str, str], estimates: Mapping[str, float]) -> float | None:
    if config in estimates:
        return estimates[config]
    alike = [estimates[other] for other, group in groups.items() if group == groups[config] and other in estimates]
    known = alike or [estimates[other] for other in groups if other in estimates]
    return sum(known) / len(known) if known else None


def pick(waiting: Sequence[Planned], leading: Collection[str]) -> Planned | None:
    """Return the cell to begin with next, ``leading`` being the groups whose leader is being built.

    A follower waits for its leader: beside it, it would compile all that it finds in the cache a little later. None
    when there are only such followers.
    """
    return next((each for each in waiting if each.leader or each.group not in leading), None)


def succeed(waiting: Sequence[Planned], group: str) -> tuple[Planned, ...]:
    """Return the cells that wait after a group's leader has failed: the next of its group leads."""
    heir = next((each for each in waiting if each.group == group), None)
    return tuple(replace(each, leader=True) if each is heir else each for each in waiting)


def whole_time(cells: Iterable[Planned], jobs: int) -> float | None:
    """Return the seconds until all cells are built, ``jobs`` at a time; None when any one's time is unknown."""
    free_at = [0.0] * jobs
    for cell in cells:
        if cell.estimate is None:
            return None
        free_at.sort()
        free_at[0] += cell.estimate
    return max(free_at)
