"""The executor of a supervisor's commands on real machines: playbooks by ansible-runner, builds followed over ssh.

Each command is executed in its own thread and ends in an event. The processes started here carry the run's mark in
their environment, and secrets only there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kiln.fleet import collect, provider_playbook_runs, worker_preparation_and_build_commands
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
from kiln.fleet.supervisor_command_threads import CommandThreads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.fleet.executor_protocol import KeepPackages
    from kiln.fleet.playbook_runner import PlaybookSite
    from kiln.fleet.supervisor_command_threads import Handler

RESERVE = 8 << 20  # bytes kept for the tear-down, which writes into the run's folder, too
HANDLERS: Mapping[type, Handler] = {
    ProvisionWorkers: provider_playbook_runs.provision_workers,
    PrepareWorker: worker_preparation_and_build_commands.prepare_worker,
    WatchService: worker_preparation_and_build_commands.report_service_health,
    QueryJobs: worker_preparation_and_build_commands.query_jobs_of_worker,
    StartBuild: worker_preparation_and_build_commands.start_build_on_worker,
    StopBuild: worker_preparation_and_build_commands.stop_build,
    FollowBuild: worker_preparation_and_build_commands.follow_build,
    RenewLease: worker_preparation_and_build_commands.renew_lease,
    ProbeWorkers: provider_playbook_runs.probe_workers,
    TerminateWorker: provider_playbook_runs.terminate_worker,
    TearDownRun: provider_playbook_runs.tear_down_run,
}


class AnsibleExecutor(CommandThreads):
    """Executes commands on real machines; see `kiln.fleet.executor_protocol.WorkerExecutor`."""

    def __init__(self, site: PlaybookSite, *, keep: KeepPackages) -> None:
        """``keep`` moves the collected packages of a config to the folder of finished packages."""
        self.session = PlaybookSession.from_site(site)
        super().__init__(
            self.session, site.folder, {**HANDLERS, CollectResults: partial(collect.collect_build_results, keep=keep)}
        )
