"""The end of a fleet run, whatever its cause: finished packages are collected, and all workers are terminated."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING

from kiln.base.errors import CredentialsRefused, MachinesUnknown, TeardownIncomplete
from kiln.build.job.collected import ResultsCollected
from kiln.fleet.model import WorkerState
from kiln.fleet.protocol import (
    BuildFinished,
    CollectFailed,
    CollectResults,
    CommandUndelivered,
    ControllerDiskFull,
    Event,
    LogLine,
    ProvisionFailed,
    RunTornDown,
    TearDownFailed,
    TearDownRun,
    WorkerTerminated,
)
from kiln.fleet.state import TRIES, FleetState
from kiln.state.results import ConfigState, RunCost

if TYPE_CHECKING:
    from collections.abc import Callable

    from kiln.fleet.workers import WorkerManager

LOGGER = logging.getLogger(__name__)

BETWEEN = 60.0  # seconds between two attempts of the tear-down while the provider cannot be asked
COLLECTING = 300.0  # seconds in which finished packages are still collected when a run is stopped
ATTEMPT = 900.0  # seconds that one attempt of the tear-down may take


class TearDownPhase:
    """The end of a run: ``handle`` handles an event as during the run.

    It ``is_patient`` with a provider that cannot be asked, unless the run was interrupted.
    """

    def __init__(self, state: FleetState, workers: WorkerManager, *, handle: Callable[[Event], None]) -> None:
        self.state = state
        self.workers = workers
        self._handle = handle
        self.is_patient = False

    def finish_run(self) -> None:
        """Collect what is finished, terminate all workers, and store the end of the run."""
        state = self.state
        try:
            self._wait_for_collections()
        finally:
            failure = self._tear_down_with_retries()
            now = state.executor.now()
            for name in [name for name, config in state.configs.items() if config.state is ConfigState.RUNNING]:
                state.update_config(name, state=ConfigState.INTERRUPTED, finished=now)
            cost, controller = state.inventory.total_cost_until(now), state.run_config.options.own_charge
            currency = state.run_config.currency
            state.update_cost(RunCost(spent=cost, expected=cost, currency=currency, end=now, controller=controller))
            state.recorder.end_run(state.run_report(finished=now))
            if failure is not None and self._was_never_authorized():
                for worker in state.inventory:
                    state.inventory.update_worker(worker, state=WorkerState.REFUSED)
                state.recorder.end_fleet(state.run_config.id)
            elif failure is not None:
                raise self._remaining_workers_error(failure)

    def _was_never_authorized(self) -> bool:
        """Return whether the provider never accepted the credentials: it has made nothing, and will not say so."""
        workers = self.state.inventory
        fresh = self.state.run_config.previous_run is None and all(w.record.provisioned is None for w in workers)
        return fresh and isinstance(self.state.stop, CredentialsRefused)

    def _wait_for_collections(self) -> None:
        executor = self.state.executor
        until = executor.now() + COLLECTING
        while self._is_collecting() and executor.now() < until:
            # Nothing else that is due is done here, such as a list of the machines: it would not be waited for.
            retries = [time for worker in self.state.inventory for time in worker.retries.values()]
            event = executor.next_event(min([*retries, until]))
            if isinstance(
                event,
                LogLine | BuildFinished | ResultsCollected | CollectFailed | ControllerDiskFull | CommandUndelivered,
            ):
                self._handle(event)
            for worker in self.state.inventory:
                self.workers.retry_due_commands(worker, executor.now())

    def _is_collecting(self) -> bool:
        """Return whether configs are being collected; those for which the disk has no space do not count."""
        stuck = {command.config for _, command in self.state.postponed if isinstance(command, CollectResults)}
        return any(config not in stuck for worker in self.state.inventory for config in worker.uncollected)

    def _tear_down_with_retries(self) -> TearDownFailed | None:
        """Terminate everything; return why something may remain, None when nothing does."""
        until = self.state.executor.now() + (self.state.run_config.options.lease if self.is_patient else 0.0)
        for attempt in itertools.count(1):
            failure = self._attempt_tear_down(until=self.state.executor.now() + ATTEMPT)
            if failure is None:
                state, now = self.state, self.state.executor.now()
                for worker in state.inventory.present_workers:
                    state.inventory.update_worker(worker, state=WorkerState.TERMINATED, terminated=now)
                state.recorder.end_fleet(state.run_config.id)
            if failure is None or self._was_never_authorized():
                return failure
            can_wait = failure.unknown and not failure.credentials  # refused ones do not become valid again
            if attempt == TRIES and self.is_patient and can_wait:
                LOGGER.warning("note: all is done, but the provider cannot be asked to terminate the workers: waiting")
            if attempt >= TRIES and not (can_wait and self._wait_for_provider(until)):
                return failure
        raise AssertionError

    def _wait_for_provider(self, until: float) -> bool:
        """Wait before a provider is asked again that could not be; return False when it was waited for long enough.

        By then the leases are over. An interrupt ends the wait.
        """
        executor = self.state.executor
        again = executor.now() + BETWEEN
        if again > until:
            return False
        try:
            while executor.now() < again:
                self._handle_late_event(executor.next_event(again))
        except KeyboardInterrupt:
            return False
        return True

    def _attempt_tear_down(self, until: float) -> TearDownFailed | None:
        executor = self.state.executor
        self.state.submit_command(TearDownRun())
        while executor.now() < until:
            try:
                event = executor.next_event(until)
            except KeyboardInterrupt:
                continue  # the tear-down is what an interrupt asks for
            if isinstance(event, RunTornDown):
                return None
            if isinstance(event, TearDownFailed):
                return event
            self._handle_late_event(event)
        return TearDownFailed(reason="the tear-down did not end", unknown=True)

    def _handle_late_event(self, event: Event | None) -> None:
        """Record an event that arrives during the tear-down: a refused or terminated worker, or a collected config."""
        workers = self.state.inventory.workers
        if isinstance(event, ProvisionFailed) and event.worker in workers:
            now = self.state.executor.now()
            self.state.inventory.update_worker(
                workers[event.worker], state=WorkerState.REFUSED, reason=event.reason, terminated=now
            )
        elif isinstance(event, ResultsCollected | WorkerTerminated):
            self._handle(event)

    def _remaining_workers_error(self, failure: TearDownFailed) -> TeardownIncomplete | MachinesUnknown:
        run, hint = self.state.run_config.id, "or the provider's own console"
        if failure.credentials:
            lease = self.state.run_config.options.lease / 60
            hint = f"with valid credentials; without, leases that nobody renews end after {lease:.0f} min"
        kind, verb = (MachinesUnknown, "may be") if failure.unknown else (TeardownIncomplete, "are")
        return kind(
            f"workers of the fleet run {run} {verb} left running, and cost money",
            why=failure.reason,
            hint=f"kiln fleet down {run}, {hint}",
            others=() if self.state.stop is None else (self.state.stop,),
        )
