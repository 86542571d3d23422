"""The executor of a supervisor's commands on real machines: playbooks by ansible-runner, builds followed over ssh.

Each command is executed in its own thread and ends in an event. The processes started here carry the run's mark in
their environment, and secrets only there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.fleet import collect, provider_playbook_runs, worker_command_handlers
from kiln.fleet.command_handler_threads import CommandThreads
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
from kiln.fleet.executor_shared_state import PlaybookSession, packages_in_place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.fleet.command_handler_threads import Handler
    from kiln.fleet.executor_protocol import KeepPackages
    from kiln.fleet.playbook_runner import PlaybookSite

RESERVE = 8 << 20  # bytes kept for the tear-down, which writes into the run's folder, too
HANDLERS: Mapping[type, Handler] = {
    ProvisionWorkers: provider_playbook_runs.provision_workers,
    PrepareWorker: worker_command_handlers.prepare_worker,
    WatchService: worker_command_handlers.report_service_health,
    QueryJobs: worker_command_handlers.query_jobs_of_worker,
    StartBuild: worker_command_handlers.start_build_on_worker,
    StopBuild: worker_command_handlers.stop_build,
    FollowBuild: worker_command_handlers.follow_build,
    CollectResults: collect.collect_build_results,
    RenewLease: worker_command_handlers.renew_lease,
    ProbeWorkers: provider_playbook_runs.probe_workers,
    TerminateWorker: provider_playbook_runs.terminate_worker,
    TearDownRun: provider_playbook_runs.tear_down_run,
}


class AnsibleExecutor(CommandThreads):
    """Executes commands on real machines; see `kiln.fleet.executor_protocol.WorkerExecutor`."""

    def __init__(self, site: PlaybookSite, *, keep: KeepPackages = packages_in_place) -> None:
        """``keep`` moves the collected packages of a config to the folder of finished packages."""
        self.session = PlaybookSession.from_site(site, keep=keep)
        super().__init__(self.session, site.folder, HANDLERS)
