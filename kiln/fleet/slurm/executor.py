"""The executor of a supervisor's commands on Slurm: a worker is the name of a job, and is neither made nor ended."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from kiln.fleet.executor_command_threads import CommandThreads
from kiln.fleet.executor_protocol import (
    Collect,
    FollowBuild,
    Prepare,
    Prepared,
    Probe,
    Provision,
    QueryJobs,
    Renew,
    Renewed,
    StartBuild,
    StopBuild,
    TearDown,
    Terminate,
    WatchService,
)
from kiln.fleet.slurm import follow, removal, submit
from kiln.fleet.slurm.executor_state import SlurmSession

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.fleet.executor_command_threads import Handler
    from kiln.fleet.executor_protocol import Command, KeepPackages
    from kiln.fleet.slurm.site import SlurmSite

HANDLERS: Mapping[type, Handler] = {
    Provision: submit.provision,
    Prepare: lambda _, command: Prepared(worker=command.worker),
    QueryJobs: follow.query_jobs,
    StartBuild: submit.start,
    FollowBuild: follow.follow,
    Renew: lambda _, command: Renewed(worker=command.worker),  # a job lives without its controller
    Probe: removal.probe,
    Terminate: removal.terminate,
    TearDown: removal.tear_down,
    WatchService: lambda *_: None,  # the cache is a folder
    StopBuild: lambda *_: None,  # Slurm has the jobs' time limits
}


class SlurmExecutor(CommandThreads):
    """Executes commands on a Slurm cluster; see `kiln.fleet.executor_protocol.WorkerExecutor`."""

    def __init__(self, site: SlurmSite, *, keep: KeepPackages) -> None:
        """``keep`` moves the collected packages of a config to the folder of finished packages."""
        self.session = SlurmSession.of(site)
        super().__init__(self.session, site.folder, {**HANDLERS, Collect: partial(follow.fetch_results, keep=keep)})

    def submit(self, command: Command) -> None:
        """Execute a command in its own thread; a job that depends on another waits for that one's number."""
        if isinstance(command, StartBuild):
            self.session.submitted[command.config] = Future()
        super().submit(command)
