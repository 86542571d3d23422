"""The executor of a supervisor's commands on real machines, by playbooks and over ssh."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from kiln.base import files
from kiln.base.serialization import read_json_object
from kiln.fleet.ansible import collect, handlers
from kiln.fleet.ansible.playbooks import is_removal_confirmed, recorded_machine, removal_failure_reason
from kiln.fleet.ansible.sessions import CommandThreads, PlaybookSession, packages_in_place
from kiln.fleet.answers import AnswerKind, classify
from kiln.fleet.protocol import (
    CollectResults,
    CommandFailed,
    CommandUndelivered,
    FollowBuild,
    ListedMachine,
    PrepareWorker,
    ProbeWorkers,
    ProvisionFailed,
    ProvisionWorkers,
    QueryJobs,
    RenewLease,
    RunTornDown,
    StartBuild,
    StopBuild,
    TearDownFailed,
    TearDownRun,
    TerminateWorker,
    WatchService,
    WorkerProvisioned,
    WorkersProbed,
    WorkerTerminated,
)
from kiln.state.results import JobSize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.fleet.ansible.playbooks import PlaybookResult, PlaybookSite
    from kiln.fleet.ansible.sessions import Handler
    from kiln.fleet.protocol import Event, KeepPackages


PROBE_SECONDS = 30.0  # for the first answer of a worker
PROBED_AT_ONCE = 32
# Seconds for a list, of which there is one at a time, and for a change, which others wait for: openstacksdk alone waits
# for an answer for ever.
LISTING, CHANGE = 600.0, 3600.0


def provision_workers(session: PlaybookSession, command: ProvisionWorkers) -> None:
    """Create workers, or find existing ones."""
    workers = command.workers
    session.configs |= command.configs
    for name in workers:
        files.remove(session.site.folder / "refused" / f"{name}.json")  # of an earlier attempt
    with session.provider_lock:
        result = session.playbooks.run_playbook(
            "provision.yml",
            on_task=session.task_reporter("request", *workers),
            variables={"kiln_machines": [_provision_request(command, name) for name in workers]},
            seconds=CHANGE,
        )
    names = () if result.answer is None else result.answer["up"]
    for note in () if result.answer is None else result.answer.get("notes", ()):
        session.show_note_once(note)
    unreached = [
        name for name in workers if not _report_provisioning_result(session, name, result, provisioned=name in names)
    ]
    if unreached:
        again = dataclasses.replace(command, workers=tuple(unreached))
        reason = _refusal_of_worker(session, unreached[0]) or result.failure_reason("localhost")
        answered = classify(reason).kind is AnswerKind.TRANSIENT
        session.events.put(CommandUndelivered(command=again, reason=reason, answered=answered))


def _refusal_of_worker(session: PlaybookSession, name: str) -> str:
    """Return why the provider has refused a worker; empty when it has not, or was not asked."""
    return str(read_json_object(session.site.folder / "refused" / f"{name}.json").get("reason", ""))


def _report_provisioning_result(
    session: PlaybookSession, name: str, result: PlaybookResult, *, provisioned: bool
) -> bool:
    """Report whether a worker was provisioned; return False when the provider was unreachable, or at fault itself."""
    if provisioned:
        session.events.put(WorkerProvisioned(worker=name, id=str(recorded_machine(session.site.folder, name)["id"])))
        return True
    refusal = _refusal_of_worker(session, name)
    reason = refusal or result.failure_reason("localhost")
    if not refusal and session.stopped.is_set():
        return True  # it was not refused: the playbook was stopped
    answer = classify(reason)
    if answer.kind is AnswerKind.TRANSIENT or (answer.kind is AnswerKind.UNREACHABLE and not refusal):
        return False
    credentials, scarce = answer.refuses_credentials, answer.kind is AnswerKind.CAPACITY
    session.events.put(ProvisionFailed(worker=name, reason=reason, credentials=credentials, scarce=scarce))
    return True


def _provision_request(command: ProvisionWorkers, name: str) -> dict[str, Any]:
    kind, spot, zone = command.offers[name]
    request = {"name": name, "type": kind, "spot": spot, "zone": zone}
    needs = command.needs.get(name, JobSize())
    sizes = {key: getattr(needs, key) for key in ("cores", "memory", "disk", "gpus") if getattr(needs, key)}
    return {**request, "needs": sizes} if sizes else request


def probe_workers(session: PlaybookSession, command: ProbeWorkers) -> WorkersProbed:
    """Probe the workers and list the machines; if silent ones are listed, open the firewall and probe them again."""
    workers = command.workers
    answers = _answering_workers(session, workers)
    result = session.playbooks.run_playbook("list.yml", seconds=LISTING)
    machines, credentials, reason = None, False, ""
    if result.ok and result.answer is not None:
        machines = tuple(ListedMachine.from_row(row) for row in result.answer["machines"])
        listed = {machine.name for machine in machines if not machine.ended}
        if silent := tuple((listed & set(workers)) - answers):
            with session.provider_lock:
                session.playbooks.run_playbook("admit.yml", seconds=LISTING)
            answers |= _answering_workers(session, silent)
    else:
        reason = result.failure_reason("localhost")
        credentials = classify(reason).refuses_credentials
    return WorkersProbed(answers=answers, machines=machines, credentials=credentials, reason=reason)


def _answering_workers(session: PlaybookSession, workers: tuple[str, ...]) -> frozenset[str]:
    with ThreadPoolExecutor(PROBED_AT_ONCE) as pool:
        answers = pool.map(lambda worker: _is_worker_answering(session, worker), workers)
        return frozenset(name for name, answer in zip(workers, answers, strict=True) if answer)


def _is_worker_answering(session: PlaybookSession, worker: str) -> bool:
    unshared = ("-o", "ControlMaster=no", "-o", "ControlPath=none")
    if session.ssh(worker, "true", seconds=PROBE_SECONDS, options=unshared).ok:
        return True
    # ssh itself would notice only after a minute that the shared connection is dead.
    session.ssh(worker, "", seconds=PROBE_SECONDS, options=("-O", "exit"))
    return False


def terminate_worker(session: PlaybookSession, command: TerminateWorker) -> Event:
    """Terminate a worker, or only the machine of an id."""
    chosen = {"kiln_only_ids": [command.id]} if command.id else {"kiln_only": [command.worker]}
    with session.shared_removal_lock():
        result = session.playbooks.run_playbook("down.yml", variables=chosen, seconds=CHANGE)
    if is_removal_confirmed(result):
        return WorkerTerminated(worker=command.worker)
    return CommandFailed(worker=command.worker, reason=removal_failure_reason(result))


def tear_down_run(session: PlaybookSession, _: TearDownRun) -> Event:
    """Stop all other commands, and remove all that the run has."""
    session.stopped.set()
    session.playbooks.stop_all_playbooks()
    files.remove(session.site.disk_reserve_file)
    result = session.playbooks.run_playbook("down.yml", last=True)
    files.remove(session.site.folder / "runner")
    if is_removal_confirmed(result):
        return RunTornDown()
    reason = removal_failure_reason(result)
    credentials = classify(reason).refuses_credentials
    return TearDownFailed(reason=reason, unknown=result.answer is None, credentials=credentials)


RESERVE = 8 << 20  # bytes kept for the tear-down, which writes into the run's folder, too
HANDLERS: Mapping[type, Handler] = {
    ProvisionWorkers: provision_workers,
    PrepareWorker: handlers.prepare_worker,
    WatchService: handlers.report_service_health,
    QueryJobs: handlers.query_jobs_of_worker,
    StartBuild: handlers.start_build_on_worker,
    StopBuild: handlers.stop_build,
    FollowBuild: handlers.follow_build,
    CollectResults: collect.collect_build_results,
    RenewLease: handlers.renew_lease,
    ProbeWorkers: probe_workers,
    TerminateWorker: terminate_worker,
    TearDownRun: tear_down_run,
}


class AnsibleExecutor(CommandThreads):
    """Executes commands on real machines; see `kiln.fleet.protocol.WorkerExecutor`."""

    def __init__(self, site: PlaybookSite, *, keep: KeepPackages = packages_in_place) -> None:
        """``keep`` moves the collected packages of a config to the folder of finished packages."""
        self.session = PlaybookSession.from_site(site, keep=keep)
        super().__init__(self.session, site.folder, HANDLERS)
