"""The state of a fleet run, shared by everything that decides for it; all its commands and changes go through here.

All decisions are made in one thread, from events and the time alone. A request to a provider or a worker is in the
ledger before it is sent, so a run that was killed can be resumed from there.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from kiln import __version__
from kiln.fleet.inventory import Inventory
from kiln.fleet.model import TYPES_SEPARATOR, FleetRun
from kiln.fleet.protocol import Command, ProvisionWorkers, WorkerExecutor
from kiln.run.queue import BuildQueue
from kiln.state.results import ConfigRun, ConfigState, JobSize, MatrixReport, RunCost

if TYPE_CHECKING:
    from kiln.base.errors import KilnError
    from kiln.fleet.records import RunRecorder
    from kiln.fleet.run_config import FleetRunConfig

RETRY = 20.0  # seconds before a failed command is retried
FAULTS = 6  # requests to a provider whose own faults pass: after 20 s, then twice as long each, ten minutes in all
TRIES = 3  # of the tear-down, of the preparation of a worker, and of the collection of a config


class FleetState:
    """The state of a run: ``stop`` is the reason for its early end, ``errors`` are those of failed configs.

    ``disk_full_since`` is set while this computer's disk is full; ``postponed`` are commands with the times from which
    they may be retried.
    """

    def __init__(self, run_config: FleetRunConfig, *, executor: WorkerExecutor, recorder: RunRecorder) -> None:
        previous = run_config.previous_run
        self.run_config = run_config
        self.executor = executor
        self.recorder = recorder
        self.inventory = Inventory(run_config, recorder)
        self.queue = BuildQueue(
            (),
            cache=run_config.cache is not None,
            wait_for_cold=run_config.wait_for_cold,
            dependent=run_config.is_scheduled,
        )
        self.estimates = {estimate.config: estimate for estimate in run_config.estimates}
        waiting = (
            ConfigRun(config=job.config, state=ConfigState.WAITING, group=job.group, estimate=job.cold)
            for job in run_config.estimates
        )
        self.configs = {entry.config: entry for entry in (*run_config.cached_configs, *waiting)}
        self.errors: dict[str, KilnError] = {}
        self.stop: KilnError | None = None
        self.number = 0
        self.disk_full_since: float | None = None
        self.postponed: list[tuple[float, Command]] = []
        self.started = executor.now() if previous is None else previous.started
        self.cost: RunCost | None = None
        self.moves = 0  # of configs to another state or worker

    def run_report(self, finished: float | None = None) -> MatrixReport:
        """Return the report of the run as it stands."""
        kinds, workers = self.run_config.max_workers_by_type, self.run_config.max_workers
        return MatrixReport(
            run=self.number,
            command=self.run_config.command,
            started=self.started,
            finished=finished,
            machine=self._machines_text(),
            cores=sum(kind.cores * count for kind, count in kinds.items()),
            jobs=workers,
            engine="rattler-build",
            container=f"fleet {self.run_config.id}",
            kiln_version=__version__,
            cost=self.cost,
            configs=tuple(self.configs.values()),
            **self.run_config.origin,  # type: ignore[arg-type] # fields by name
        )

    def _machines_text(self) -> str:
        """Return which machines were taken, how many of each kind at a time if all are of the planned one."""
        kinds, provider = self.run_config.max_workers_by_type, self.run_config.machine_type.provider
        offers = Counter(worker.record.offer_key for worker in self.inventory if worker.record.provisioned is not None)
        if set(offers) <= {(kind.type, self.run_config.options.spot, "") for kind in kinds}:
            return ", ".join(f"{count} x {kind.name} ({provider})" for kind, count in kinds.items())
        names = {offer.key: str(offer) for offer in self.run_config.all_offers}
        counts = [f"{count} x {names.get(offer, offer[0])}" for offer, count in offers.most_common()]
        return f"{', '.join(counts)} ({provider})"

    def fleet_run_record(self) -> FleetRun:
        """Return the run as the ledger begins it."""
        return FleetRun(
            id=self.run_config.id,
            provider=self.run_config.machine_type.provider,
            type=TYPES_SEPARATOR.join(kind.type for kind in self.run_config.max_workers_by_type),
            started=self.started,
            finished=None,
            number=self.number,
            lives=True,
            key=self.run_config.key,
        )

    def submit_command(self, command: Command) -> None:
        """Have a command carried out; a request for workers gets what their configs need, an empty one is dropped."""
        if not isinstance(command, ProvisionWorkers):
            self.executor.submit(command)
        elif command.workers:
            builders = [name for name in command.workers if not self.inventory.workers[name].is_cache_worker]
            types = {name: self.queue.worker_machine_type(name) for name in builders}
            sizes = {machine_type: self._largest_job_size(machine_type) for machine_type in set(types.values())}
            needs = {name: sizes[machine_type] for name, machine_type in types.items()}
            self.executor.submit(dataclasses.replace(command, needs=needs))

    def _largest_job_size(self, machine_type: str) -> JobSize:
        """Return the size that holds each config of a machine type."""
        sizes = [job.size for job in self.run_config.estimates if job.type in {"", machine_type}]
        return JobSize(
            cores=max((size.cores for size in sizes), default=0),
            memory=max((size.memory for size in sizes), default=0.0),
            disk=max((size.disk for size in sizes), default=0.0),
            gpus=max((size.gpus for size in sizes), default=0),
        )

    def update_cost(self, cost: RunCost) -> None:
        """Store the cost of the run, and show it."""
        self.cost = cost
        self.recorder.update_cost(self.number, cost)

    def update_config(self, name: str, **changes: object) -> None:
        """Change and store the state of a config, and show it."""
        before = self.configs[name]
        self.configs[name] = config = dataclasses.replace(before, **changes)  # type: ignore[arg-type] # fields by name
        self.moves += (config.state, config.worker) != (before.state, before.worker)
        self.recorder.update_config(self.number, config)
