"""The configuration of a fleet run: the configs to build, the workers, and the limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.fleet.leases import LEASE, LIFETIME
from kiln.model.fleet import WorkerState

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.fleet import FleetRun, JobEstimate, MachineType, Offer
    from kiln.model.run import ConfigRun

CACHE = "cache"  # the end of the name of the worker that holds the shared cache


def cache_of(run: FleetRun) -> str | None:
    """Return the type of the worker that holds a run's cache; None without one."""
    over = {WorkerState.TERMINATING, WorkerState.LOST, WorkerState.REFUSED, WorkerState.TERMINATED}
    caches = (worker for worker in run.workers if worker.name.endswith(CACHE) and worker.state not in over)
    return next((worker.type for worker in caches), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRunConfig:
    """The configuration of a fleet run: money is in the provider's currency, times are in seconds.

    ``max_workers`` run at a time. Each config is tried on up to ``attempts`` workers, or unless it ``is_strict``
    until its losses are more than those of the others explain; up to ``replacements`` workers are provisioned for lost
    ones. A worker shuts down ``lease`` seconds after its last lease renewal; one that has not
    answered for ``unreachable_timeout`` is probed. ``budget`` and ``time_limit`` stop the run. ``startup`` and
    ``teardown`` are the time that a worker takes to become ready and to be terminated, ``collect`` the time and
    ``packages`` the GB that a config takes to be collected. ``wait_for_cold`` makes warm builds wait for a cold build
    of their group; with ``is_scheduled`` they do so in the provider's own queue. ``key`` is a hash over the recipe and
    the options of the builds. With ``keep_going`` the others of a group are built after its compile has failed, too.
    Workers are requested by the first of ``offers`` that is not refused, by default of ``machine_type``; when all are
    refused and no worker is left, for ``capacity_timeout``. A worker ends ``lifetime`` after its request at the latest.
    ``cached_configs`` need no building, ``previous_run`` is the record of an earlier process of the same run, ``logs``
    the folder of the configs' logs.
    """

    id: str
    command: str
    machine_type: MachineType
    estimates: tuple[JobEstimate, ...]
    max_workers: int
    spot: bool = False
    cache: MachineType | None = None
    wait_for_cold: bool = True
    is_scheduled: bool = False
    attempts: int = 3
    is_strict: bool = True
    replacements: int = 3
    lease: float = LEASE
    unreachable_timeout: float = 180.0
    budget: float | None = None
    time_limit: float | None = None
    startup: float = 300.0
    teardown: float = 60.0
    collect: float = 60.0
    packages: float = 0.0
    key: str = ""
    keep_going: bool = False
    offers: tuple[Offer, ...] = ()
    capacity_timeout: float = 3600.0
    lifetime: float = LIFETIME
    cached_configs: tuple[ConfigRun, ...] = ()
    previous_run: FleetRun | None = None
    logs: Path | None = None

    def worker_name(self, number: int | None) -> str:
        """Return the name of a worker; without a number, that of the cache's."""
        return f"kiln-{self.id}-{CACHE if number is None else number}"

    def log(self, config: str, attempt: int) -> Path | None:
        """Return the path of the log of a config's build."""
        return None if self.logs is None else self.logs / f"{config}.{attempt}.log"
