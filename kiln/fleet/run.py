"""Run a fleet on real machines, remove what runs have left behind, and recover runs that the ledger has lost."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from kiln.base import files
from kiln.base.errors import (
    AlreadyRunning,
    BudgetSpent,
    MachinesUnknown,
    TeardownIncomplete,
    UsageError,
)
from kiln.base.serialization import from_json_values, read_json_object
from kiln.container.images import OwnerProcess, has_ended
from kiln.fleet.ansible import playbooks as ansible_playbooks
from kiln.fleet.ansible.executor import RESERVE, AnsibleExecutor
from kiln.fleet.ansible.handlers import job_state_and_result, job_states_of_same_inputs
from kiln.fleet.ansible.playbooks import (
    PlaybookRunner,
    PlaybookSite,
    is_removal_confirmed,
    removal_failure_reason,
    ssh_config_file,
)
from kiln.fleet.ansible.sessions import PlaybookSession, packages_in_place
from kiln.fleet.answers import classify, credentials_error
from kiln.fleet.model import FleetRun, JobRecord, JobState, WorkerRecord, WorkerState
from kiln.fleet.protocol import ListedMachine
from kiln.fleet.slurm import jobs as slurm_jobs
from kiln.fleet.slurm.executor import SlurmExecutor
from kiln.fleet.slurm.site import SlurmSite
from kiln.fleet.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kiln.base.errors import KilnError
    from kiln.fleet.ansible.playbooks import PlaybookResult
    from kiln.fleet.protocol import KeepPackages, WorkerExecutor
    from kiln.fleet.records import RunRecorder
    from kiln.fleet.run_config import FleetRunConfig
    from kiln.state.results import MatrixReport


LOGGER = logging.getLogger(__name__)
FILE = "run.json"  # in the folder of a run, from its first command until nothing of it remains
NOTED = ("id", "provider", "type", "key", "started")  # the fields of a run that the file has
ASKED_AT_ONCE = 32
WORKER = re.compile(r"kiln-[a-z0-9-]+")  # the names of workers, which are tags that others might write


def write_run_note(run: FleetRun, folder: Path) -> None:
    """Write what a run's folder says about it, should the ledger be lost, and which process has the run."""
    data = {**{name: getattr(run, name) for name in NOTED}, "owner": str(OwnerProcess.of_this_process())}
    files.write_text(folder / FILE, json.dumps(data))


def notes_of_unrecorded_runs(folder: Path, *, known: Iterable[str]) -> Iterator[FleetRun]:
    """Yield the runs of the notes that have not ended and are not in the ledger, without workers.

    ``folder`` has a folder for each run.

    Raises:
        MachinesUnknown: a note is damaged.
        AlreadyRunning: another process, or another computer, has the run.
    """
    ids, here = set(known), OwnerProcess.of_this_process()
    for path in sorted(folder.glob(f"*/{FILE}")):
        data = read_json_object(path)
        if path.parent.name not in ids and data.get("id") == path.parent.name:
            owner = OwnerProcess.parse(str(data.pop("owner", "")))
            try:
                note = from_json_values(FleetRun, {**data, "finished": None, "number": 0, "lives": False})
            except TypeError as error:
                name = path.parent.name
                raise MachinesUnknown(
                    f"{path} is damaged, and the ledger does not have the fleet run {name}",
                    why=str(error),
                    hint=f"run 'kiln fleet down {name} --provider PROVIDER', which terminates its workers",
                ) from error
            if owner is not None and owner != here and not has_ended(owner, here, OwnerProcess.of_process(owner.pid)):
                where = "in another process" if owner.machine == here.machine else f"on the computer {owner.machine}"
                raise AlreadyRunning(
                    f"the fleet run {note.id} was started {where}, and the ledger here does not have it",
                    why=f"{path} is a copy: the workers belong to that run",
                    hint=f"continue it there, and move {path.parent} to another folder here; if the other one no longer"
                    f" exists, kiln fleet down {note.id} --provider {note.provider} terminates the workers",
                )
            yield note


def remove_run_note(folder: Path) -> None:
    """Remove a run's note: nothing of it remains."""
    files.remove(folder / FILE)


def inputs_tag(key: str) -> str:
    """Return the tag by which the workers of a run are found from another computer; ``key`` is the run's."""
    return key[:16] or "unknown"


def count_machines_of_unrecorded_runs(
    machines: Iterable[Mapping[str, Any]], *, key: str, known: Iterable[str]
) -> dict[str, int]:
    """Return the runs of the same inputs that are not in the ledger, each with the number of its machines."""
    ids = set(known)
    runs = [str(row["run"]) for row in machines if row.get("inputs") == inputs_tag(key) and not row["ended"]]
    return dict(Counter(run for run in runs if run not in ids))


def recover_run(
    site: PlaybookSite, note: FleetRun, *, keys: Mapping[str, str], hourly: Mapping[str, float]
) -> FleetRun | None:
    """Return a run as its ledger had it, as far as that can be known; None when none of its machines exists.

    Machines that answer are adopted with their jobs, those of other inputs (``keys`` by config) aside. The others are
    lost workers, which a resumed run terminates. ``hourly`` are the prices of one by machine type.

    Raises:
        MachinesUnknown: when the provider could not be asked.
    """
    session = PlaybookSession.from_site(site)
    result = session.playbooks.run_playbook("list.yml")
    if not result.ok or result.answer is None:
        raise MachinesUnknown(
            f"the ledger does not have the fleet run {note.id}, and its provider could not be asked for its workers",
            why=result.failure_reason("localhost"),
            hint=f"run the same command again, or 'kiln fleet down {note.id} --provider {note.provider}'",
        )
    rows = result.answer["machines"]
    machines = [
        ListedMachine.from_row(row) for row in rows if row["state"] != "unreachable" and WORKER.fullmatch(row["name"])
    ]
    if not machines:
        return None
    jobs = _jobs_reported_by_workers(session, [machine.name for machine in machines if not machine.ended])
    if not jobs:
        session.playbooks.run_playbook("admit.yml")  # this computer may have another address than the lost controller
        jobs = _jobs_reported_by_workers(session, [machine.name for machine in machines if not machine.ended])
    own = [machine for machine in machines if machine.owner in {"", note.id}]
    for machine in own:
        step = "adopt" if machine.name in jobs and not machine.ended else "terminate"
        LOGGER.warning("note: %s, of a run that the ledger does not have: %s", machine.name, step)
    now = time.time()
    workers = tuple(
        WorkerRecord(
            name=machine.name,
            type=machine.type,
            state=WorkerState.READY if machine.name in jobs and not machine.ended else WorkerState.LOST,
            requested=note.started,
            provisioned=note.started,
            hourly=hourly.get(machine.type, 0.0),
            id=machine.id,
            reason="" if machine.name in jobs else "it did not answer when its run was recovered",
        )
        for machine in own
    )
    records: dict[str, JobRecord] = {}
    for worker in workers:
        if worker.state is WorkerState.READY:
            for record in _records_of_resumable_jobs(worker.name, jobs[worker.name], keys, now):
                records.setdefault(record.config, record)
    return dataclasses.replace(note, workers=workers, jobs=tuple(records.values()))


def _jobs_reported_by_workers(session: PlaybookSession, names: list[str]) -> dict[str, dict[str, Any]]:

    def query_jobs_of_worker(name: str) -> dict[str, Any] | None:
        if not ssh_config_file(session.site.folder, name).exists():
            return None
        result = session.ssh(name, "sudo kiln-job status")
        try:
            jobs = json.loads(result.stdout) if result.ok else None
        except ValueError:
            return None
        if not isinstance(jobs, dict):
            return None
        return {config: job for config, job in jobs.items() if isinstance(job, dict) and "state" in job}

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        answers = zip(names, pool.map(query_jobs_of_worker, names), strict=True)
        return {name: jobs for name, jobs in answers if jobs is not None}


def _records_of_resumable_jobs(
    worker: str, status: Mapping[str, Any], keys: Mapping[str, str], now: float
) -> Iterator[JobRecord]:
    """Yield the jobs of a worker that still count: those that run or have ended, of the same inputs."""
    for config in job_states_of_same_inputs(status, keys):
        state, result, code = job_state_and_result(status[config])
        has_ended = state == "ended" and code not in {None, BudgetSpent.exit_code}  # or it was stopped unfinished
        if config in keys and (state == "running" or has_ended):
            over = state == "ended"
            yield JobRecord(
                config=config,
                worker=worker,
                attempt=1,
                state=JobState.FINISHED if over else JobState.RUNNING,
                started=_time_or_now(status[config].get("started"), now),
                cold=True,
                finished=_time_or_now(status[config].get("ended"), now) if over else None,
                exit_code=code if over else None,
                reason=result if code else "",
            )


def _time_or_now(value: object, now: float) -> float:
    return float(value) if isinstance(value, int | float) else now


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
    ansible_playbooks.end_processes_of_run(site.folder)
    files.create_reserve_file(site.disk_reserve_file, RESERVE)
    if executor is None:
        executor = SlurmExecutor(site, keep=keep) if isinstance(site, SlurmSite) else AnsibleExecutor(site, keep=keep)
    supervisor = Supervisor(run_config, executor=executor, recorder=recorder)
    write_run_note(supervisor.state.fleet_run_record(), site.folder)
    try:
        return supervisor.execute_run(), supervisor.state.errors
    finally:
        run = recorder.fleet_run(run_config.id)
        if run is not None and run.finished is not None:
            remove_run_note(site.folder)


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
            hint=f"'kiln fleet resume {run.id}' continues it with the options that it began with; or run"
            f" 'kiln fleet down {run.id}', which terminates its workers, then this command again",
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
        slurm_jobs.cancel_and_require_run_removed(site)
        remove_run_note(site.folder)
        return
    playbooks = PlaybookRunner(site)
    playbooks.stop_all_playbooks()
    files.remove(site.disk_reserve_file)
    result = playbooks.run_playbook("down.yml", last=True)
    if not is_removal_confirmed(result):
        raise _removal_error(f"workers of the fleet run {run}", result)
    remove_run_note(site.folder)


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
    if classify(reason).refuses_credentials:
        return credentials_error(reason)
    if result.answer is None:
        return MachinesUnknown(f"the provider could not be asked: {what} may be left running", why=reason, hint=hint)
    return TeardownIncomplete(f"{what}, or resources of theirs, remain", why=reason, hint=hint)
