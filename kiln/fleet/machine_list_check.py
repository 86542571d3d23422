"""The audit of a run's machines: its provider is asked what exists, and that is compared with the run's workers.

It is asked at intervals where machines are charged for, soon after requests, and when a worker falls silent. What
follows is decided by `kiln.fleet.reconcile` alone, whatever the fault was.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import TYPE_CHECKING

from kiln.fleet.reconcile import ListedMachine, MachineAction, MachineActionKind, reconcile_machines
from kiln.model.fleet_run import MachineType, Offer, WorkerRecord, WorkerState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.fleet.executor_protocol import WorkersProbed
    from kiln.fleet.live_run_state import FleetState
    from kiln.fleet.worker_and_job_inventory import Worker

LOGGER = logging.getLogger(__name__)

CLOUDS = frozenset({"aws", "openstack"})  # elsewhere nothing is charged for, and an undisturbed run asks nobody
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
            patience = min(SILENCE, run_config.unreachable_timeout)
            silences = [worker.silent_since for worker in inventory.alive_workers if worker.silent_since is not None]
            times += [since + patience for since in silences if since + patience > self._began]
        return min(times)

    @property
    def _is_cloud(self) -> bool:
        return self.state.run_config.machine_type.provider in CLOUDS

    # What follows

    def apply_machine_list(self, event: WorkersProbed, *, is_probe: bool) -> dict[str, str]:
        """Terminate the machines that no worker needs; return the workers that are gone, with the reasons.

        These were missing or stopped in two lists one after the other, and did not answer. One that answers is kept,
        whatever the list says.
        """
        before, found = self.doubtful, {}
        if event.machines is not None and not self.state.run_config.is_scheduled:
            found = self._terminate_unwanted_find_missing(event.machines, event.answers)
        missing = {name: reason for name, reason in found.items() if name not in event.answers}
        gone = {name: reason for name, reason in missing.items() if is_probe and name in before}
        self.doubtful = {name: reason for name, reason in missing.items() if name not in gone}
        return gone

    def _terminate_unwanted_find_missing(
        self, machines: Iterable[ListedMachine], answers: frozenset[str]
    ) -> dict[str, str]:
        """Terminate the machines that no worker needs; return the workers without one, with the reasons.

        Where a worker answers whose machine is not listed, another of its name is not needed either.
        """
        run_config, inventory = self.state.run_config, self.state.inventory
        present = (worker for worker in inventory.present_workers if not worker.is_surplus_machine)
        workers = {worker.name: worker.record.id for worker in present}
        stopped: set[str] = set()
        missing: dict[str, str] = {}
        for action in reconcile_machines(workers, machines, owner=run_config.id):
            worker = inventory.workers.get(action.name)
            if action.step is MachineActionKind.TERMINATE:
                if worker is not None and self._is_stopped_worker(worker, action):
                    stopped.add(worker.name)
                else:
                    self._terminate_unwanted(action)
            elif action.step is MachineActionKind.PREPARE and action.name in answers:
                self._terminate_unwanted(action)
            elif (
                action.step in {MachineActionKind.CREATE, MachineActionKind.PREPARE}
                and worker is not None
                and worker.is_alive
            ):
                if worker.name in stopped:
                    missing[worker.name] = "its provider shows it as stopped"
                elif self._began >= worker.exists_since + SETTLING:
                    missing[worker.name] = "its provider does not list it"
        return missing

    def _is_stopped_worker(self, worker: Worker, action: MachineAction) -> bool:
        """Return whether a machine that has ended is that of a living worker, and not one of before its request."""
        machine = action.machine
        is_known = worker.is_alive and self._began >= worker.exists_since
        return is_known and machine is not None and machine.ended and machine.id == worker.record.id

    def _terminate_unwanted(self, action: MachineAction) -> None:
        machine = action.machine
        assert machine is not None, "only machines are terminated"
        record = self._unwanted_machine_record(machine)
        if record is None:
            return
        LOGGER.warning("note: %s (%s) is terminated: %s", machine.name, machine.id, action.reason)
        changes = {"state": WorkerState.LOST, "id": machine.id, "terminated": None, "reason": action.reason}
        unwanted = self.state.inventory.add_worker_record(dataclasses.replace(record, **changes))  # type: ignore[arg-type] # by name
        self.state.submit_command(unwanted.termination_command)

    def _unwanted_machine_record(self, machine: ListedMachine) -> WorkerRecord | None:
        """Return the record of an unwanted machine; None while its worker is being requested or terminated."""
        inventory = self.state.inventory
        surplus = next((each for each in inventory if each.is_surplus_machine and each.record.id == machine.id), None)
        worker = surplus or inventory.workers.get(machine.name)
        if worker is None:
            is_own = self.state.run_config.is_own_worker_name(machine.name)
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
        kind = self._known_machine_types().get(machine.type)
        if kind is None:
            record = WorkerRecord(name=name, type=machine.type, state=WorkerState.LOST, requested=begin)
        else:
            record = self.state.inventory.new_worker_record(name, Offer(machine_type=kind), now=begin)
        return dataclasses.replace(record, provisioned=begin)

    def _known_machine_types(self) -> dict[str, MachineType]:
        run_config = self.state.run_config
        kinds = [offer.machine_type for offer in run_config.all_offers]
        return {kind.type: kind for kind in (*kinds, run_config.cache, run_config.pool) if kind is not None}
