"""Recover a fleet run that the ledger has lost, from its folder, its provider's list and the jobs of its workers."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from kiln import files
from kiln.container.owner_labels import OwnerProcess, has_ended
from kiln.errors import AlreadyRunning, BudgetSpent, MachinesUnknown
from kiln.fleet.executor_shared_state import PlaybookSession
from kiln.fleet.log_stream import job_state_and_result
from kiln.fleet.playbook_runner import PlaybookSite, read_json_object, ssh_config_file
from kiln.fleet.reconcile import ListedMachine, MachineActionKind, reconcile_machines
from kiln.fleet.worker_command_handlers import job_states_of_same_inputs
from kiln.model.fleet_run import FleetRun, JobRecord, JobState, WorkerRecord, WorkerState
from kiln.serialization import from_json_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


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
                raise _run_owned_elsewhere_error(note, owner, here, path)
            yield note


def _run_owned_elsewhere_error(note: FleetRun, owner: OwnerProcess, here: OwnerProcess, path: Path) -> AlreadyRunning:
    """Return the error for the folder of a run that a living process has, or one of another computer may have."""
    where = "in another process" if owner.machine == here.machine else f"on the computer {owner.machine}"
    return AlreadyRunning(
        f"the fleet run {note.id} was started {where}, and the ledger here does not have it",
        why=f"{path} is a copy: the workers belong to that run",
        hint=f"continue it there, and move {path.parent} to another folder here; if the other one no longer exists,"
        f" kiln fleet down {note.id} --provider {note.provider} terminates the workers",
    )


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
    actions = reconcile_machines({}, machines, owner=note.id, adoptable=jobs)
    steps = {action.name: action for action in actions}
    for action in actions:
        LOGGER.warning("note: %s, of a run that the ledger does not have: %s", action.name, action.step.value)
    return _recovered_run(
        note, [each for each in machines if steps[each.name].step is not MachineActionKind.LEAVE], jobs, keys, hourly
    )


def _jobs_reported_by_workers(session: PlaybookSession, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return the jobs of the workers that answer."""

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


def _recovered_run(
    note: FleetRun,
    machines: list[ListedMachine],
    jobs: Mapping[str, Mapping[str, Any]],
    keys: Mapping[str, str],
    hourly: Mapping[str, float],
) -> FleetRun:
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
        for machine in machines
    )
    records: dict[str, JobRecord] = {}
    for worker in workers:
        if worker.state is WorkerState.READY:
            for record in _records_of_resumable_jobs(worker.name, jobs[worker.name], keys, now):
                records.setdefault(record.config, record)
    return dataclasses.replace(note, workers=workers, jobs=tuple(records.values()))


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
    """Return a time of a worker's answer; now, if it is none."""
    return float(value) if isinstance(value, int | float) else now
