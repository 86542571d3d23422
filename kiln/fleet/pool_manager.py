"""The workers of a run's pool, which run the actions of compiles: requested, replaced when they are lost, terminated.

The pool's server is on the machine of the cache, which `kiln.fleet.worker_manager` decides about.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kiln.errors import ProvisionRefused, WorkersLost
from kiln.fleet.fleet_run_settings import POOL
from kiln.model.fleet_run import Offer, WorkerState

if TYPE_CHECKING:
    from kiln.fleet.live_run_state import FleetState
    from kiln.fleet.worker_and_job_inventory import Worker

LOGGER = logging.getLogger(__name__)


class PoolManager:
    """Decides how many workers a pool has: ``size`` of them, fewer once some are refused or not replaced any more."""

    def __init__(self, state: FleetState) -> None:
        self.state = state
        self.size = state.run_config.pool_workers if state.run_config.pool is not None else 0

    @property
    def living_workers(self) -> list[Worker]:
        """The workers of the pool that are alive, without those that their provider takes back."""
        present = self.state.inventory.present_workers
        return [worker for worker in present if worker.is_pool_worker and worker.is_alive and not worker.is_reclaimed]

    @property
    def is_ready(self) -> bool:
        """True when a worker of the pool is ready, and for a run without a pool."""
        return self.state.run_config.pool is None or any(
            worker.record.state is WorkerState.READY for worker in self.living_workers
        )

    def add_missing_workers(self, now: float, zone: str) -> list[str]:
        """Add the workers that the pool lacks, and return their names; a name is never given twice."""
        run_config, inventory = self.state.run_config, self.state.inventory
        if run_config.pool is None:
            return []
        numbers = [int(name.rpartition("-")[2]) for name in inventory.used_worker_names if POOL.fullmatch(name)]
        first, missing = max(numbers, default=0) + 1, self.size - len(self.living_workers)
        offer = Offer(machine_type=run_config.pool, spot=run_config.spot, zone=zone)
        added = [run_config.pool_worker_name(number) for number in range(first, first + missing)]
        return [inventory.add_requested_worker(name, offer, now=now).name for name in added]

    def exceeds_pool_size(self, worker: Worker) -> bool:
        """Return whether a worker of an earlier process of the run is one too many."""
        return not worker.is_reclaimed and self.living_workers.index(worker) >= self.size

    def on_worker_refused(self, reason: str) -> None:
        """Continue with a smaller pool; stop the run when the provider refuses all of its workers."""
        self.size -= 1
        LOGGER.warning("note: the pool has %d workers, as the provider refuses another: %s", self.size, reason)
        if not self.size:
            hint = "choose another --pool-type, have the quota raised, or build without --pool"
            self.state.stop = ProvisionRefused("the provider refused all workers of the pool", why=reason, hint=hint)

    def on_worker_reclaimed(self, worker: Worker, seconds: float, *, replaced: bool) -> None:
        """Report a worker that its provider takes back; until then it runs actions, and another is requested now."""
        text = self._shrink_unless_replaced(replaced)
        LOGGER.warning("note: the provider takes %s of the pool back in %.0f s: %s", worker.name, seconds, text)

    def _shrink_unless_replaced(self, replaced: bool) -> str:
        self.size = self.size if replaced else min(self.size, len(self.living_workers))
        return "another is requested" if replaced else f"the pool has {self.size} workers"

    def on_worker_lost(self, worker: Worker, reason: str, *, replaced: bool) -> None:
        """Report a lost worker, whose actions the server gives to others; stop the run when none remains."""
        if not worker.is_reclaimed:
            text = self._shrink_unless_replaced(replaced)
            LOGGER.warning("note: %s of the pool is lost (%s): %s", worker.name, reason, text)
        if not self.size and not any(
            each.is_pool_worker and each.is_alive for each in self.state.inventory.present_workers
        ):
            self.state.stop = WorkersLost(
                "all workers of the pool were lost, and no more are replaced",
                why=reason,
                hint="--replacements N allows for more",
            )

    def on_server_lost(self, reason: str) -> None:
        """Stop the run: what was compiling has failed, and other builds would compile alone for hours."""
        self.state.stop = WorkersLost(
            "the server of the pool was lost",
            why=reason,
            hint="what is finished is kept; the same command builds the rest with a new pool",
        )
