"""The executor of a supervisor's commands on real machines: playbooks by ansible-runner, builds followed over ssh.

Each command is executed in its own thread and ends in an event. The processes started here carry the run's mark in
their environment, and secrets only there.
"""

from __future__ import annotations

from functools import partial
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
    from collections.abc import Mapping

    from kiln.fleet.executor_command_threads import Handler
    from kiln.fleet.executor_protocol import KeepPackages
    from kiln.fleet.playbook_runner import PlaybookSite

RESERVE = 8 << 20  # bytes kept for the tear-down, which writes into the run's folder, too
HANDLERS: Mapping[type, Handler] = {
    Provision: provider_operations.provision,
    Prepare: worker_commands.prepare,
    WatchService: worker_commands.watch_service,
    QueryJobs: worker_commands.query_jobs,
    StartBuild: worker_commands.start,
    StopBuild: worker_commands.stop,
    FollowBuild: worker_commands.follow,
    Renew: worker_commands.renew,
    Probe: provider_operations.probe,
    Terminate: provider_operations.terminate,
    TearDown: provider_operations.tear_down,
}


class AnsibleExecutor(CommandThreads):
    """Executes commands on real machines; see `kiln.fleet.executor_protocol.WorkerExecutor`."""

    def __init__(self, site: PlaybookSite, *, keep: KeepPackages) -> None:
        """``keep`` moves the collected packages of a config to the folder of finished packages."""
        self.session = PlaybookSession.from_site(site)
        super().__init__(self.session, site.folder, {**HANDLERS, Collect: partial(collect.collect, keep=keep)})
