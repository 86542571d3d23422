"""Count the lost workers of a run: how many are replaced, and from when on after an outage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import WorkersLost
from kiln.fleet.fallback_offers import BACKOFF

if TYPE_CHECKING:
    from kiln.fleet.fleet_run_settings import FleetRunConfig

OUTAGES = 3  # losses of all workers together that every run replaces
ONE_OUTAGE = 300.0  # seconds within which workers are lost by the same outage


def joint_loss_limit(replacements: int, workers: int) -> int:
    """Return how many workers that are lost together a run replaces, besides those that are lost one by one."""
    return max(replacements, OUTAGES * workers)


class LostWorkerLimits:
    """The lost workers of a run: ``single`` ones, and those that were lost together (``joint``) in ``outages``.

    An outage takes many workers at once, and is no reason to end a run. But a flawed image, or a zone that ends every
    worker, would take them again and again: so they have a limit of their own, and from the second outage on, without a
    finished config in between, the next workers are requested ``wait_until`` a later time.
    """

    def __init__(self, run_config: FleetRunConfig) -> None:
        self.single = self.joint = self.outages = 0
        self.wait_until = 0.0
        self._limit = run_config.replacements
        self._joint_limit = joint_loss_limit(run_config.replacements, run_config.max_workers + run_config.pool_workers)
        self._in_vain = 0  # outages since a config was finished
        self._last = -ONE_OUTAGE

    def count_lost_worker(self, now: float, *, together: bool) -> None:
        """Count a lost worker."""
        if not together:
            self.single += 1
            return
        self.joint += 1
        if now >= self._last + ONE_OUTAGE:
            self.outages += 1
            self._in_vain += 1
            if self._in_vain > 1:
                self.wait_until = now + BACKOFF[min(self._in_vain, len(BACKOFF) - 1)]
        self._last = now

    def reset_outages(self) -> None:
        """Record that a config was finished: the next outage is the first one again."""
        self._in_vain = 0

    @property
    def is_exhausted(self) -> bool:
        """True when no more lost workers are replaced."""
        return self.single > self._limit or self.joint > self._joint_limit

    def exhausted_error(self, reason: str) -> WorkersLost:
        """Return the error of a run that has no worker left; ``reason`` is that of the last loss."""
        if self.joint <= self._joint_limit:
            what = f"{self.single} workers were lost, and no more are replaced"
            return WorkersLost(what, why=reason, hint="--replacements N allows for more")
        return WorkersLost(
            f"{self.joint} workers were lost together, in {self.outages} outages, and no more are replaced",
            why=f"{reason}; a zone that is down, or a flawed image, ends their replacements, too",
            hint="look at the provider's console and status, try another --zone or --type; the same command builds the"
            " rest (--replacements N allows for more)",
        )
