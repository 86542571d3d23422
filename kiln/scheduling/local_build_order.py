"""The schedule of a run on one computer: the same queue as the fleet's, with builds that share one disk."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kiln.model.job_estimate import JobEstimate
from kiln.model.run import ConfigRun, ConfigState
from kiln.scheduling.estimates import expected_build_seconds
from kiln.scheduling.queue import BuildQueue
from kiln.scheduling.queue_simulation import simulate_queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def order_configs_for_build(
    groups: Mapping[str, str], durations: Mapping[str, float], *, shared: bool = True
) -> tuple[ConfigRun, ...]:
    """Order configs, given each one's group: the groups' cold builds first, then the warm ones, longest first.

    Without a ``shared`` cache, as in a rehearsal, no build is cold.
    """
    relevant = {config: seconds for config, seconds in durations.items() if config in groups}
    waiting = {
        config: ConfigRun(
            config=config,
            state=ConfigState.WAITING,
            group=group,
            estimate=expected_build_seconds(config, groups, relevant)[0],
        )
        for config, group in groups.items()
    }
    return tuple(
        dataclasses.replace(waiting[placement.config], cold=shared and placement.cold)
        for placement in simulate_queue(queue_of_configs(waiting.values(), shared=shared), [""])
    )


def queue_of_configs(configs: Iterable[ConfigRun], *, shared: bool) -> BuildQueue:
    """Return the queue of configs; with ``shared``, warm builds wait for the cold build of their group."""
    jobs = (
        JobEstimate(config=config.config, group=config.group, cold=seconds, warm=seconds)
        for config in configs
        for seconds in (config.estimate or 0.0,)
    )
    return BuildQueue(jobs, cache=True, always_share=shared)


def total_build_seconds(configs: Iterable[ConfigRun], jobs: int, *, shared: bool) -> float | None:
    """Return the duration of all builds, ``jobs`` at a time; None when that of any one is unknown."""
    configs = tuple(configs)
    if any(config.estimate is None for config in configs):
        return None
    placements = simulate_queue(queue_of_configs(configs, shared=shared), [""] * jobs)
    return max((placement.start + placement.seconds for placement in placements), default=0.0)
