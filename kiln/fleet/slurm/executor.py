"""The executor of a supervisor's commands on Slurm: a worker is the name of a job, and is neither made nor ended."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln.fleet.command_handler_threads import CommandThreads
from kiln.fleet.executor_protocol import (
    CollectResults,
    FollowBuild,
    LeaseRenewed,
    PrepareWorker,
    ProbeWorkers,
    ProvisionWorkers,
    QueryJobs,
    RenewLease,
    StartBuild,
    StopBuild,
    TearDownRun,
    TerminateWorker,
    WatchService,
    WorkerPrepared,
)
from kiln.fleet.executor_shared_state import EventSession
from kiln.fleet.slurm import follow_and_collect, job_removal_and_listing, submit
from kiln.fleet.slurm.client import SlurmClient, program_environment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.fleet.command_handler_threads import Handler
    from kiln.fleet.executor_protocol import Command, KeepPackages
    from kiln.fleet.slurm.site import SlurmSite

QUERIES = 3  # of the states of files for one of squeue, which burdens Slurm's controller
HANDLERS: Mapping[type, Handler] = {
    ProvisionWorkers: submit.prepare_cluster_for_jobs,
    PrepareWorker: lambda _, command: WorkerPrepared(worker=command.worker),
    QueryJobs: follow_and_collect.query_jobs_of_run,
    StartBuild: submit.submit_build_job,
    FollowBuild: follow_and_collect.follow_build,
    CollectResults: follow_and_collect.fetch_results,
    RenewLease: lambda _, command: LeaseRenewed(worker=command.worker),  # a job lives without its controller
    ProbeWorkers: job_removal_and_listing.probe_slurm,
    TerminateWorker: job_removal_and_listing.cancel_jobs_of_worker,
    TearDownRun: job_removal_and_listing.tear_down_run,
    WatchService: lambda *_: None,  # the cache is a folder
    StopBuild: lambda *_: None,  # Slurm has the jobs' time limits
}


@dataclass(slots=True, kw_only=True)
class SlurmSession(EventSession):
    """The state of an executor on Slurm.

    ``project`` is kiln's folder on the shared filesystem, once it is there. ``submitted`` has the number of each
    config's latest job, as soon as it is known; ``reasons`` say why configs failed without a report, ``ended`` are
    those whose end was reported. ``submitting`` is held while a job is submitted, so that the tear-down misses none.
    """

    site: SlurmSite
    client: SlurmClient
    project: Path | None = None
    submitted: dict[str, Future[str]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    submitting: threading.Lock = field(default_factory=threading.Lock)


class SlurmExecutor(CommandThreads):
    """Executes commands on a Slurm cluster; see `kiln.fleet.executor_protocol.WorkerExecutor`."""

    def __init__(self, site: SlurmSite, *, keep: KeepPackages) -> None:
        """``keep`` moves the collected packages of a config to the folder of finished packages."""
        client = SlurmClient(program_environment(site.environment), interval=QUERIES * site.poll)
        self.session = SlurmSession(site=site, client=client, keep=keep)
        super().__init__(self.session, site.folder, HANDLERS)

    def submit(self, command: Command) -> None:
        """Execute a command in its own thread; a job that depends on another waits for that one's number."""
        if isinstance(command, StartBuild):
            self.session.submitted[command.config] = Future()
        super().submit(command)
