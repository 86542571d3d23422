"""The schedule of a run on one computer: the same queue as the fleet's, with builds that share one disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.model.fleet import JobEstimate
from kiln.scheduling.estimates import expected_seconds
from kiln.scheduling.queue import Queue
from kiln.scheduling.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledConfig:
    """A config in the order of work: ``estimate`` is in seconds, None when nothing similar was built before."""

    config: str
    group: str
    cold: bool
    estimate: float | None


def arrange(
    groups: Mapping[str, str], durations: Mapping[str, float], *, shared: bool = True
) -> tuple[ScheduledConfig, ...]:
    """Order configs, given each one's group: the groups' cold builds first, then the warm ones, longest first.

    Without a ``shared`` cache, as in a rehearsal, no build is cold.
    """
    relevant = {config: seconds for config, seconds in durations.items() if config in groups}
    expected = {config: expected_seconds(config, groups, relevant)[0] for config in groups}
    configs = [
        ScheduledConfig(config=config, group=group, cold=shared, estimate=expected[config])
        for config, group in groups.items()
    ]
    return tuple(
        ScheduledConfig(
            config=placement.config,
            group=placement.group,
            cold=shared and placement.cold,
            estimate=expected[placement.config],
        )
        for placement in simulate(queue_of(configs, shared=shared), 1)
    )


def queue_of(configs: Iterable[ScheduledConfig], *, shared: bool) -> Queue:
    """Return the queue of configs; with ``shared``, warm builds wait for the cold build of their group."""
    jobs = (_job(config) for config in configs)
    return Queue(jobs, cache=True, always_share=shared)


def total_seconds(configs: Iterable[ScheduledConfig], jobs: int, *, shared: bool) -> float | None:
    """Return the duration of all builds, ``jobs`` at a time; None when that of any one is unknown."""
    configs = tuple(configs)
    if any(config.estimate is None for config in configs):
        return None
    placements = simulate(queue_of(configs, shared=shared), jobs)
    return max((placement.start + placement.seconds for placement in placements), default=0.0)


def _job(config: ScheduledConfig) -> JobEstimate:
    seconds = config.estimate or 0.0
    return JobEstimate(config=config.config, group=config.group, cold=seconds, warm=seconds)
