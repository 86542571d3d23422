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
    CollectResults,
    FollowBuild,
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
)
from kiln.fleet.executor_shared_state import PlaybookSession

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.fleet.executor_command_threads import Handler
    from kiln.fleet.executor_protocol import KeepPackages
    from kiln.fleet.playbook_runner import PlaybookSite

RESERVE = 8 << 20  # bytes kept for the tear-down, which writes into the run's folder, too
HANDLERS: Mapping[type, Handler] = {
    ProvisionWorkers: provider_operations.provision_workers,
    PrepareWorker: worker_commands.prepare_worker,
    WatchService: worker_commands.report_service_health,
    QueryJobs: worker_commands.query_jobs_of_worker,
    StartBuild: worker_commands.start_build_on_worker,
    StopBuild: worker_commands.stop_build,
    FollowBuild: worker_commands.follow_build,
    RenewLease: worker_commands.renew_lease,
    ProbeWorkers: provider_operations.probe_workers,
    TerminateWorker: provider_operations.terminate_worker,
    TearDownRun: provider_operations.tear_down_run,
}


class AnsibleExecutor(CommandThreads):
    """Executes commands on real machines; see `kiln.fleet.executor_protocol.WorkerExecutor`."""

    def __init__(self, site: PlaybookSite, *, keep: KeepPackages) -> None:
        """``keep`` moves the collected packages of a config to the folder of finished packages."""
        self.session = PlaybookSession.from_site(site)
        super().__init__(
            self.session, site.folder, {**HANDLERS, CollectResults: partial(collect.collect_build_results, keep=keep)}
        )
