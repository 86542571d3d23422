"""The executor of a supervisor's commands on Slurm: a worker is the name of a job, and is neither made nor ended."""

from __future__ import annotations

from concurrent.futures import Future
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
    from kiln.fleet.executor_protocol import Command, KeepPackages
    from kiln.fleet.slurm.site import SlurmSite


class SlurmExecutor(CommandThreads):
    """Executes commands on a Slurm cluster; see `kiln.fleet.executor_protocol.WorkerExecutor`."""

    def __init__(self, site: SlurmSite, *, keep: KeepPackages) -> None:
        """``keep`` moves the collected packages of a config to the folder of finished packages."""
        self.keep = keep
        self.session = SlurmSession.of(site)
        super().__init__(self.session, site.folder, self._carry_out)

    def submit(self, command: Command) -> None:
        """Execute a command in its own thread; a job that depends on another waits for that one's number."""
        if isinstance(command, StartBuild):
            self.session.submitted[command.config] = Future()
        super().submit(command)

    def _carry_out(self, command: Command) -> None:  # noqa: C901, PLR0912 - one line for each command
        session = self.session
        match command:
            case Provision():
                submit.provision(session, command.workers)
            case Prepare():
                session.events.put(Prepared(worker=command.worker))
            case QueryJobs():
                follow.query_jobs(session, command)
            case StartBuild():
                submit.start(session, command)
            case FollowBuild():
                follow.follow(session, command)
            case Collect():
                session.events.put(follow.fetch_results(session, command, keep=self.keep))
            case Renew():
                session.events.put(Renewed(worker=command.worker))  # a job lives without its controller
            case Probe():
                removal.probe(session, command.workers)
            case Terminate():
                removal.terminate(session, command.worker)
            case TearDown():
                removal.tear_down(session)
            case WatchService() | StopBuild():
                pass  # the cache is a folder; Slurm has the jobs' time limits
