"""The executor of a supervisor's commands on real machines: playbooks by ansible-runner, builds followed over ssh.

Each command is executed in its own thread and ends in an event. The processes started here carry the run's mark in
their environment, and secrets only there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.fleet import collect, provider_operations, worker_commands
from kiln.fleet.executor_command_threads import CommandThreads
from kiln.fleet.executor_protocol import (
    Collect,
    FollowBuild,
    Prepare,
    Probe,
    Provision,
    QueryJobs,
    Renew,
    StartBuild,
    StopBuild,
    TearDown,
    Terminate,
    WatchService,
)
from kiln.fleet.executor_shared_state import PlaybookSession

if TYPE_CHECKING:
    from kiln.fleet.executor_protocol import Command, KeepPackages
    from kiln.fleet.playbook_runner import PlaybookSite

RESERVE = 8 << 20  # bytes kept for the tear-down, which writes into the run's folder, too


class AnsibleExecutor(CommandThreads):
    """Executes commands on real machines; see `kiln.fleet.executor_protocol.WorkerExecutor`."""

    def __init__(self, site: PlaybookSite, *, keep: KeepPackages) -> None:
        """``keep`` moves the collected packages of a config to the folder of finished packages."""
        self.keep = keep
        self.session = PlaybookSession.of(site)
        super().__init__(self.session, site.folder, self._carry_out)

    def _carry_out(self, command: Command) -> None:  # noqa: C901, PLR0912 - one line for each command
        session = self.session
        match command:
            case Provision():
                provider_operations.provision(session, command)
            case Prepare():
                worker_commands.prepare(session, command)
            case WatchService():
                worker_commands.watch_service(session, command.worker)
            case QueryJobs():
                worker_commands.query_jobs(session, command)
            case StartBuild():
                worker_commands.start(session, command)
            case StopBuild():
                worker_commands.stop(session, command)
            case FollowBuild():
                worker_commands.follow(session, command)
            case Collect():
                session.events.put(collect.collect(session, command, keep=self.keep))
            case Renew():
                worker_commands.renew(session, command)
            case Probe():
                provider_operations.probe(session, command.workers)
            case Terminate():
                provider_operations.terminate(session, command)
            case TearDown():
                provider_operations.tear_down(session)
