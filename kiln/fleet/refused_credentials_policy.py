"""Refused credentials, such as expired ones: a run stops when nothing is built any more, and says so before."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from kiln.errors import CredentialsRefused

if TYPE_CHECKING:
    from kiln.fleet.live_run_state import FleetState
    from kiln.fleet.pool_manager import PoolManager
    from kiln.fleet.worker_and_job_inventory import Worker

LOGGER = logging.getLogger(__name__)
RENEWAL = (
    "credentials that are renewed in their file are used at the next attempt; new variables need 'kill -9' of this"
    " process, which leaves the workers alone, and then the same command"
)
LENGTH = 200  # characters of a provider's reason in a line of the view


class CredentialRefusals:
    """Decides whether a run goes on whose provider does not accept the credentials.

    Neither the builds of existing workers, nor their leases, nor the collection of packages need the provider.
    """

    def __init__(self, state: FleetState, pool: PoolManager) -> None:
        self.state = state
        self.pool = pool
        self._is_noted = False
        self._since: float | None = None

    def on_credentials_accepted(self) -> None:
        """Record that the provider accepts the credentials."""
        self._is_noted, self._since = False, None

    def on_machines_listed(self) -> None:
        """Record that the provider lists workers, whatever else it refuses."""
        self._since = None

    def waiting_text(self, worker: str, reason: str) -> str:
        """Return why a silent worker is waited for while the provider, refusing the credentials, cannot list it."""
        self._record_first_refusal()
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(self._since))
        refusal = f"the provider does not accept the credentials since {since} ({' '.join(reason.split())[:LENGTH]})"
        return f"{worker} does not answer, and {refusal}, so it is unknown whether it exists: waiting; {RENEWAL}"

    def _record_first_refusal(self) -> None:
        self._since = self.state.executor.now() if self._since is None else self._since

    def on_credentials_refused(self, worker: Worker, reason: str) -> bool:
        """Record that the provider refused a worker by the credentials; return whether that stops the run."""
        self._record_first_refusal()
        builders = self.state.inventory.alive_builders
        if not builders or self._is_indispensable_to_pool(worker):
            hint = "see that the provider's variables or files hold valid ones, then run the same command again"
            self.state.stop = CredentialsRefused("the provider does not accept the credentials", why=reason, hint=hint)
        elif not self._is_noted and any(builder.record.provisioned is not None for builder in builders):
            self._is_noted = True
            LOGGER.warning(
                "note: the provider does not accept the credentials any more (%s): running builds go on and are"
                " collected, but no worker is replaced or terminated; %s",
                reason,
                RENEWAL,
            )
        return self.state.stop is not None

    def _is_indispensable_to_pool(self, worker: Worker) -> bool:
        """Return whether a refused worker is the server, or the last worker, of a pool that all builds need."""
        has_pool = self.state.run_config.pool is not None
        return has_pool and (worker.is_cache_worker or (worker.is_pool_worker and self.pool.size <= 1))
