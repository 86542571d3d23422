"""Unreachable workers: decides whether they are gone, or this computer is cut off from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.fleet.executor_protocol import ProbeWorkers, WorkersProbed
from kiln.fleet.machine_list_check import MachineListAuditor
from kiln.model.fleet_run import WorkerState

if TYPE_CHECKING:
    from kiln.fleet.live_run_state import FleetState
    from kiln.fleet.worker_and_job_inventory import Worker
    from kiln.fleet.worker_manager import WorkerManager

BETWEEN = 60.0  # seconds between two probes, at most
ENDING = 60.0  # seconds that a worker may take to notice that its lease is over
ALONE = 3  # timeouts of silence after which a new worker is to show whether the last one alone does not answer
NEW = 4  # a worker that never answered is waited for a quarter of a lease: it builds nothing yet


class SilentWorkerManager:
    """Decides about workers that were silent for longer than the timeout; ``cut_off`` while no worker answers."""

    def __init__(self, state: FleetState, workers: WorkerManager) -> None:
        self.state = state
        self.workers = workers
        self.cut_off = False
        self.audit = MachineListAuditor(state)
        self._command: ProbeWorkers | None = None  # that is not answered yet
        self._next = 0.0

    def workers_silent_too_long(self, now: float) -> list[Worker]:
        """Return the workers that were silent for too long."""
        timeout = self.state.run_config.unreachable_timeout
        return [
            worker
            for worker in self.state.inventory.alive_workers
            if worker.silent_since is not None and now >= worker.silent_since + timeout
        ]

    def probe_when_due(self, now: float) -> None:
        """Probe the workers, repeatedly while some are silent; or only list the machines, when that is due."""
        is_probe = bool(self.audit.doubtful) or (now >= self._next and bool(self.workers_silent_too_long(now)))
        if self._command is not None or not (is_probe or now >= self.audit.next_listing_time()):
            return
        alive = self.state.inventory.alive_workers if is_probe else ()
        names = [worker.name for worker in alive if worker.record.state is not WorkerState.REQUESTED]
        self._command = ProbeWorkers(workers=tuple(names))
        self.audit.record_listing_start(now)
        self.state.submit_command(self._command)

    def next_probe_times(self, now: float) -> list[float]:
        """Return the times of the next probes."""
        timeout = self.state.run_config.unreachable_timeout
        alive = self.state.inventory.alive_workers
        times = [worker.silent_since + timeout for worker in alive if worker.silent_since is not None]
        if self._command is not None:
            return []
        return [max(time, self._next) if time <= now else time for time in times] + [self.audit.next_listing_time()]

    def on_worker_answered(self, worker: Worker) -> None:
        """Record that a worker answers."""
        worker.silent_since = None
        self.cut_off = False
        if worker.has_witness:
            worker.has_witness = False
            self._release_witness_workers()

    def on_workers_probed(self, event: WorkersProbed) -> None:
        """Give up the workers that are gone; wait for the others as long as they may live.

        One that is silent while others answer is given up. When several are silent at once, the likely cause is the
        network between them and this computer.
        """
        now = self.state.executor.now()
        is_probe, self._command = self._command is not None and bool(self._command.workers), None
        if event.machines is not None:
            self.workers.credentials.on_machines_listed()
        gone = self.audit.apply_machine_list(event, is_probe=is_probe)
        if not is_probe:
            return
        self._next = now + min(BETWEEN, self.state.run_config.unreachable_timeout)
        for worker in [worker for worker in self.state.inventory.present_workers if worker.name in event.answers]:
            self.on_worker_answered(worker)
        lost = [
            *(worker for worker in self.state.inventory.alive_workers if worker.name in gone),
            *(worker for worker in self._workers_to_give_up(event, now) if worker.name not in gone),
        ]
        for worker in lost:
            seconds = 0.0 if worker.silent_since is None else now - worker.silent_since
            reason = gone.get(worker.name, f"no answer for {seconds:.0f} s")
            self.workers.give_up_worker(worker, reason, together=len(lost) > 1 and not _is_new_worker(worker))
            if worker.has_witness:
                self._release_witness_workers()
        if lost:
            self.workers.report_outage(now)
        suspects = self.workers_silent_too_long(now)
        self._request_witness_worker(suspects, event, now)
        self.cut_off = bool(suspects) and not event.answers
        self._report_waiting_for_workers(suspects, event)

    def _request_witness_worker(self, suspects: list[Worker], event: WorkersProbed, now: float) -> None:
        """Request another worker where the last one is silent: if that one answers, the network is not at fault.

        Then the rule for one silent worker among others applies; until then, or if it does not answer, the lease is
        waited for. It builds what the silent one has, so it is not requested where its config could not be.
        """
        if (
            len(suspects) != 1
            or event.listed_names is None
            or event.answers
            or len(self.state.inventory.alive_workers) > 1
        ):
            return
        (worker,) = suspects
        if not self.workers.may_request_again(worker):
            return
        since = now if worker.silent_since is None else worker.silent_since
        patience = ALONE * self.state.run_config.unreachable_timeout
        if not (worker.is_building or worker.uncollected) or worker.has_witness or now < since + patience:
            return
        run_config, inventory, queue = self.state.run_config, self.state.inventory, self.state.queue
        kinds = list(run_config.max_workers_by_type)
        kind = next((kind for kind in kinds if kind.type == queue.worker_machine_type(worker.name)), kinds[0])
        offer = self.workers.offers.first_available_offer(now, run_config.offers_of_machine_type(kind))
        if offer is None or self.workers.builder_count() >= self.workers.max_workers:
            return
        self.workers.request_count = inventory.next_free_worker_number(self.workers.request_count + 1)
        witness = inventory.add_requested_worker(run_config.worker_name(self.workers.request_count), offer, now=now)
        witness.is_witness = worker.has_witness = True
        queue.set_worker_machine_type(witness.name, kind.type)
        self.state.submit_command(inventory.provision_command([witness.name]))
        if worker.assignment is not None:
            text = f"{worker.name} does not answer, and no other worker is left to compare: requesting {witness.name}"
            self.state.recorder.show_output_line(worker.assignment.config, text, "")

    def _release_witness_workers(self) -> None:
        """Let witnesses be as other workers: they build, or are terminated if nothing is left to build."""
        for worker in self.state.inventory.alive_workers:
            if worker.is_witness:
                worker.is_witness = False
                self.workers.jobs.assign_to_unready_worker(worker, self.state.executor.now())

    def _workers_to_give_up(self, event: WorkersProbed, now: float) -> list[Worker]:
        suspects = self.workers_silent_too_long(now)
        if event.listed_names is None:
            # This computer is not cut off: its workers are, or they are gone.
            is_connected = event.credentials or event.answers
            return [worker for worker in suspects if is_connected and now >= self._shutdown_time(worker)]
        gone = [worker for worker in suspects if worker.name not in event.listed_names]
        listed = [worker for worker in suspects if worker.name in event.listed_names]
        alone = len(listed) == 1 and event.answers
        return gone + [worker for worker in listed if alone or now >= self._shutdown_time(worker)]

    def _shutdown_time(self, worker: Worker) -> float:
        """Return when a silent worker will have shut down; a new one has nothing to lose."""
        lease = self.state.run_config.lease
        if _is_new_worker(worker):
            return (worker.silent_since or 0.0) + max(self.state.run_config.unreachable_timeout, lease / NEW)
        return worker.renewed_at + lease + ENDING

    def _report_waiting_for_workers(self, workers: list[Worker], event: WorkersProbed) -> None:
        reason = (
            "the provider and the workers do not answer" if event.listed_names is None else "no answer, but it exists"
        )
        for worker in workers:
            if worker.assignment is not None:
                text = f"{reason}: waiting, in case this computer's network is at fault"
                if event.credentials:
                    text = self.workers.credentials.waiting_text(worker.name, event.reason)
                self.state.recorder.show_output_line(worker.assignment.config, text, "")


def _is_new_worker(worker: Worker) -> bool:
    return worker.record.state is WorkerState.PREPARING
