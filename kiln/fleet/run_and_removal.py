"""Run a fleet on real machines, and remove what runs have left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln import files
from kiln.errors import AlreadyRunning, CredentialsRefused, MachinesUnknown, TeardownIncomplete, UsageError
from kiln.fleet import local_processes_of_killed_run, unrecorded_run_recovery
from kiln.fleet.ansible_executor import RESERVE, AnsibleExecutor
from kiln.fleet.executor_shared_state import packages_in_place
from kiln.fleet.playbook_runner import PlaybookRunner, is_removal_confirmed, removal_failure_reason
from kiln.fleet.provider_playbook_runs import CREDENTIALS
from kiln.fleet.run_event_loop import Supervisor
from kiln.fleet.slurm import job_removal_and_listing
from kiln.fleet.slurm.executor import SlurmExecutor
from kiln.fleet.slurm.site import SlurmSite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kiln.errors import KilnError
    from kiln.fleet.executor_protocol import KeepPackages, WorkerExecutor
    from kiln.fleet.fleet_run_settings import FleetRunConfig
    from kiln.fleet.playbook_runner import PlaybookResult, PlaybookSite
    from kiln.fleet.run_recorders import RunRecorder
    from kiln.model.fleet_run import FleetRun
    from kiln.model.run import MatrixReport


def execute_fleet_run(
    run_config: FleetRunConfig,
    site: PlaybookSite | SlurmSite,
    recorder: RunRecorder,
    *,
    keep: KeepPackages = packages_in_place,
    executor: WorkerExecutor | None = None,
) -> tuple[MatrixReport, Mapping[str, KilnError]]:
    """Build the configs of a run; return the state of every config, and the errors of those that failed.

    The processes that a killed process of the same run left on this computer are ended first. ``executor`` is by
    default that of the site's builds, which hands packages to ``keep``. Raises the errors of `Supervisor.execute_run`.
    """
    site.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    local_processes_of_killed_run.end_processes_of_run(site.folder)
    files.create_reserve_file(site.disk_reserve_file, RESERVE)
    if executor is None:
        executor = SlurmExecutor(site, keep=keep) if isinstance(site, SlurmSite) else AnsibleExecutor(site, keep=keep)
    supervisor = Supervisor(run_config, executor=executor, recorder=recorder)
    unrecorded_run_recovery.write_run_note(supervisor.state.fleet_run_record(), site.folder)
    try:
        return supervisor.execute_run(), supervisor.state.errors
    finally:
        run = recorder.fleet_run(run_config.id)
        if run is not None and run.finished is not None:
            unrecorded_run_recovery.remove_run_note(site.folder)


def run_to_resume(runs: Sequence[FleetRun], *, provider: str, key: str) -> FleetRun | None:
    """Return the run that a new one has to resume; None without one.

    Raises:
        AlreadyRunning: when another process runs it.
        UsageError: when it has another provider, recipe or build options: its workers cannot be used.
    """
    open_runs = [run for run in runs if run.finished is None]
    if not open_runs:
        return None
    run = open_runs[0]
    if run.lives:
        raise AlreadyRunning(f"the fleet run {run.id} is running in another process", hint="kiln fleet status")
    if (run.provider, run.key) != (provider, key):
        why = "it has another provider" if run.provider != provider else "its recipe or build options differ"
        raise UsageError(
            f"the fleet run {run.id} was not ended, and cannot be resumed",
            why=why,
            hint=f"run 'kiln fleet down {run.id}', which terminates its workers, then this command again",
        )
    return run


def tear_down_run(site: PlaybookSite | SlurmSite, run: str) -> None:
    """Remove all that a run has at its provider, and end its processes on this computer.

    Raises:
        TeardownIncomplete: when something remains.
        MachinesUnknown: when the provider could not be asked whether something remains.
        CredentialsRefused: when the provider does not accept the credentials.
    """
    site.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if isinstance(site, SlurmSite):
        job_removal_and_listing.cancel_and_require_run_removed(site)
        unrecorded_run_recovery.remove_run_note(site.folder)
        return
    playbooks = PlaybookRunner(site)
    playbooks.stop_all_playbooks()
    files.remove(site.disk_reserve_file)
    result = playbooks.run_playbook("down.yml", last=True)
    if not is_removal_confirmed(result):
        raise _removal_error(f"workers of the fleet run {run}", result)
    unrecorded_run_recovery.remove_run_note(site.folder)


def sweep_leftover_workers(
    site: PlaybookSite, *, everything: bool, user: str | None = None, ids: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Remove the user's expired workers of all runs, or with ``everything`` all workers; return those that remain.

    ``user`` is another user, whose workers alone are removed; empty for those of all users. ``everything`` is narrowed
    to the workers of ``ids``, if they are given.

    Raises:
        TeardownIncomplete: when something remains.
        MachinesUnknown: when the provider could not be asked whether something remains.
        CredentialsRefused: when the provider does not accept the credentials.
    """
    given = {"kiln_sweep_user": user, "kiln_sweep_ids": ids}
    more = {name: value for name, value in given.items() if value is not None}
    result = _run_provider_playbook(site, "sweep.yml", kiln_sweep_all=everything, **more)
    if result.answer is None or not is_removal_confirmed(result):
        raise _removal_error("workers of earlier runs", result)
    return list(result.answer["machines"])


def list_existing_workers(site: PlaybookSite) -> list[dict[str, Any]]:
    """Return the workers of all runs and users that the provider lists.

    Raises:
        MachinesUnknown: when it could not be asked.
        CredentialsRefused: when it does not accept the credentials.
    """
    result = _run_provider_playbook(site, "list.yml", kiln_everywhere=True)
    if not result.ok or result.answer is None:
        raise _removal_error("workers", result)
    return list(result.answer["machines"])


def _run_provider_playbook(site: PlaybookSite, name: str, **variables: Any) -> PlaybookResult:
    site.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return PlaybookRunner(site).run_playbook(name, variables=variables)


def _removal_error(what: str, result: PlaybookResult) -> KilnError:
    reason, hint = removal_failure_reason(result), "run the same command again, or look into the provider's own console"
    if CREDENTIALS.search(reason):
        return CredentialsRefused("the provider does not accept the credentials", why=reason)
    if result.answer is None:
        return MachinesUnknown(f"the provider could not be asked: {what} may be left running", why=reason, hint=hint)
    return TeardownIncomplete(f"{what}, or resources of theirs, remain", why=reason, hint=hint)
