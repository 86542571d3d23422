"""Unreachable workers: whether they are gone or this computer is cut off, and what the provider lists."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import time
from typing import TYPE_CHECKING

from kiln.fleet.model import Offer, WorkerRecord, WorkerState
from kiln.fleet.options import CLOUDS
from kiln.fleet.protocol import ListedMachine, ProbeWorkers, WorkersProbed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.fleet.inventory import Worker
    from kiln.fleet.state import FleetState
    from kiln.fleet.workers import WorkerManager


LOGGER = logging.getLogger(__name__)

INTERVAL = 300.0  # seconds between two listings at most
AFTER_REQUEST = 60.0  # seconds until a request's machines are listed
SILENCE = 30.0  # seconds of a worker's silence after which its provider is asked whether it exists
SETTLING = 120.0  # seconds in which a provider may not list a new machine yet, or may list a terminated one still


class MachineListAuditor:
    """Decides when the provider is asked for the run's machines, and what follows from its list.

    ``doubtful`` are the workers that the last list lacks or shows as stopped, with the reasons: they are probed.
    """

    def __init__(self, state: FleetState) -> None:
        self.state = state
        self.doubtful: Mapping[str, str] = {}
        self._began = state.executor.now()
        self._soon = math.inf

    # When

    def schedule_listing(self) -> None:
        """List the machines soon: a request that failed may have left one."""
        if not self.state.run_config.is_scheduled:
            self._soon = min(self._soon, self.state.executor.now() + AFTER_REQUEST)

    def on_workers_provisioned(self) -> None:
        """List the machines soon after workers were provisioned: one may have been created twice."""
        if self._is_cloud:
            self.schedule_listing()

    def record_listing_start(self, now: float) -> None:
        """Record that the machines are being listed."""
        self._began, self._soon = now, math.inf

    def next_listing_time(self) -> float:
        """Return when the machines are to be listed next."""
        run_config, inventory = self.state.run_config, self.state.inventory
        times = [self._soon]
        if self._is_cloud and inventory.present_workers:
            times.append(self._began + INTERVAL)
        if not run_config.is_scheduled and run_config.machine_type.provider != "static":
            patience = min(SILENCE, run_config.options.unreachable_timeout)
            silences = [worker.silent_since for worker in inventory.alive_workers if worker.silent_since is not None]
            times += [since + patience for since in silences if since + patience > self._began]
        return min(times)

    @property
    def _is_cloud(self) -> bool:
        # Elsewhere nothing is charged for, and an undisturbed run asks nobody.
        return self.state.run_config.machine_type.provider in CLOUDS

    # What follows

    def apply_machine_list(self, event: WorkersProbed, *, is_probe: bool) -> dict[str, str]:
        """Terminate the machines that no worker needs; return the workers that are gone, with the reasons.

        These were missing or stopped in two lists one after the other, and did not answer. One that answers is kept,
        whatever the list says.
        """
        before, self.doubtful = self.doubtful, {}
        if event.machines is None or self.state.run_config.is_scheduled:
            return {}
        present = self.state.inventory.present_workers
        workers = {worker.name: worker for worker in present if not worker.is_surplus_machine}
        ids = {(worker.name, worker.record.id) for worker in workers.values()}
        found: set[str] = set()
        kept: set[str] = set()
        stopped: set[str] = set()
        # Of two machines of a name, the one with the worker's id is kept.
        for machine in sorted(event.machines, key=lambda machine: (machine.name, machine.id) not in ids):
            worker = workers.get(machine.name)
            if machine.owner not in {"", self.state.run_config.id}:
                continue
            if machine.ended:
                is_known = worker is not None and worker.is_alive and self._began >= worker.exists_since
                if is_known and (machine.name, machine.id) in ids:  # not one of before the worker's request
                    stopped.add(machine.name)
                else:
                    self._terminate_unwanted(machine, "it has ended")
            elif worker is None or machine.name in found:
                self._terminate_unwanted(machine, "it is not wanted" if worker is None else "it exists twice")
            else:
                found.add(machine.name)
                if worker.record.id in {"", machine.id}:
                    kept.add(machine.name)
                elif machine.name in event.answers:  # its worker answers, so another of its name is not needed
                    self._terminate_unwanted(machine, "it is a new machine")
        missing = {
            name: f"its provider {'shows it as stopped' if name in stopped else 'does not list it'}"
            for name, worker in workers.items()
            if name not in kept | event.answers and worker.is_alive
            if name in stopped or self._began >= worker.exists_since + SETTLING
        }
        gone = {name: reason for name, reason in missing.items() if is_probe and name in before}
        self.doubtful = {name: reason for name, reason in missing.items() if name not in gone}
        return gone

    def _terminate_unwanted(self, machine: ListedMachine, reason: str) -> None:
        record = self._unwanted_machine_record(machine)
        if record is None:
            return
        LOGGER.warning("note: %s (%s) is terminated: %s", machine.name, machine.id, reason)
        changes = {"state": WorkerState.LOST, "id": machine.id, "terminated": None, "reason": reason}
        unwanted = self.state.inventory.add_worker_record(dataclasses.replace(record, **changes))  # type: ignore[arg-type] # by name
        self.state.submit_command(unwanted.termination_command)

    def _unwanted_machine_record(self, machine: ListedMachine) -> WorkerRecord | None:
        """Return the record of an unwanted machine; None while its worker is being requested or terminated."""
        inventory = self.state.inventory
        surplus = next((each for each in inventory if each.is_surplus_machine and each.record.id == machine.id), None)
        worker = surplus or inventory.workers.get(machine.name)
        if worker is None:
            # The name is a tag, which others might write.
            is_own = re.fullmatch(rf"kiln-{re.escape(self.state.run_config.id)}-[a-z0-9-]+", machine.name) is not None
            name = machine.name if is_own else inventory.new_surplus_machine_name()
            return self._record_of_unknown_machine(machine, name)
        if worker in inventory.present_workers:
            is_other = worker is not surplus and worker.is_alive and self._began >= worker.exists_since
            return self._record_of_unknown_machine(machine, inventory.new_surplus_machine_name()) if is_other else None
        if worker.record.id not in {"", machine.id}:
            return self._record_of_unknown_machine(machine, inventory.new_surplus_machine_name())
        has_ended = worker.record.state is WorkerState.TERMINATED
        is_late = has_ended and self._began < (worker.record.terminated or 0.0) + SETTLING
        return None if is_late else worker.record

    def _record_of_unknown_machine(self, machine: ListedMachine, name: str) -> WorkerRecord:
        """Return the record of an unknown machine, charged for since it was created, as far as that is known."""
        now = self.state.executor.now()
        begin = machine.expires - self.state.run_config.lifetime if machine.expires else now
        begin = min(now, max(self.state.started, begin))
        run_config = self.state.run_config
        kinds = (*(offer.machine_type for offer in run_config.all_offers), run_config.cache)
        kind = next((kind for kind in kinds if kind is not None and kind.type == machine.type), None)
        if kind is None:
            record = WorkerRecord(name=name, type=machine.type, state=WorkerState.LOST, requested=begin)
        else:
            record = self.state.inventory.new_worker_record(name, Offer(machine_type=kind), now=begin)
        return dataclasses.replace(record, provisioned=begin)


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
        timeout = self.state.run_config.options.unreachable_timeout
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
        timeout = self.state.run_config.options.unreachable_timeout
        alive = self.state.inventory.alive_workers
        times = [worker.silent_since + timeout for worker in alive if worker.silent_since is not None]
        if self._command is not None:
            return []
        return [max(time, self._next) if time <= now else time for time in times] + [self.audit.next_listing_time()]

    def on_worker_silent(self, worker: Worker) -> None:
        """Record that a worker does not answer, and show it with its config."""
        if worker.silent_since is None:
            worker.silent_since = self.state.executor.now()
            moment = time.strftime("%H:%M:%S", time.localtime(worker.silent_since))
            self._explain_running_build(worker, f"{worker.name} has not answered since {moment}")

    def _explain_running_build(self, worker: Worker, reason: str) -> None:
        if worker.assignment is not None and worker.is_building:
            self.state.update_config(worker.assignment.config, reason=reason)

    def on_worker_answered(self, worker: Worker) -> None:
        """Record that a worker answers."""
        if worker.silent_since is not None:
            self._explain_running_build(worker, "")
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
        self._next = now + min(BETWEEN, self.state.run_config.options.unreachable_timeout)
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
        patience = ALONE * self.state.run_config.options.unreachable_timeout
        if not (worker.is_building or worker.uncollected) or worker.has_witness or now < since + patience:
            return
        run_config, inventory, queue = self.state.run_config, self.state.inventory, self.state.queue
        kinds = list(run_config.max_workers_by_type)
        kind = next((kind for kind in kinds if kind.type == queue.worker_machine_type(worker.name)), kinds[0])
        offer = self.workers.offers.first_available_offer(now, run_config.type_offers[kind])
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
        lease = self.state.run_config.options.lease
        if _is_new_worker(worker):
            return (worker.silent_since or 0.0) + max(self.state.run_config.options.unreachable_timeout, lease / NEW)
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
