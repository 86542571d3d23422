"""``kiln fleet down`` and ``sweep``: workers of runs terminated, also of runs that the ledger has lost."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from kiln.base import files, process_table
from kiln.base.errors import AlreadyRunning, CredentialsRefused, KilnError, MachinesUnknown, UsageError, raise_all
from kiln.base.process import Program
from kiln.base.system.machine import PACKAGE_ROOT
from kiln.base.text import table
from kiln.cli.fleet import detached, resume, slurm
from kiln.cli.fleet.site import artifact_layout, playbook_site, provider_variables_without_secrets
from kiln.fleet import run as fleet_run
from kiln.fleet import run_config
from kiln.fleet.detached import controller
from kiln.fleet.options import CLOUDS, SLURM
from kiln.fleet.plan.run import priced_machine_types
from kiln.fleet.records import FleetLedger

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from kiln.fleet.model import FleetRun
    from kiln.fleet.options import FleetOptions
    from kiln.recipe.feedstock import Feedstock
    from kiln.state.store.cache import RemoteConfig


def tear_down_runs(options: FleetOptions, feedstock: Feedstock, runs: Sequence[str]) -> int:
    """Remove all that runs have at their providers."""
    layout = artifact_layout(feedstock)
    with (
        files.held_lock_file(layout.common_lock_file("fleet")),
        FleetLedger(layout.ledger) as ledger,
        process_table.termination_as_interrupt(),
    ):
        providers = {run.id: run.provider for run in ledger.fleet_runs()}
        ids = runs or [run.id for run in ledger.fleet_runs() if run.finished is None]
        errors: list[KilnError] = []
        for run_id in ids:
            try:
                own = resume.options_of_run(options, feedstock, run_id)
                provider = options.provider or providers.get(run_id) or own.provider
                if detached.is_detached(feedstock, run_id):
                    detached.tear_down_detached_run(own, feedstock, controller.key_of_run(feedstock, run_id))
                elif provider:
                    tear_down_at_provider(own, feedstock, ledger, run_id, provider)
                else:
                    raise UsageError(
                        f"fleet run {run_id!r} not found in the ledger",
                        hint=f"name its provider: kiln fleet down {run_id} --provider aws",
                    )
            except KilnError as error:  # the workers of the others are paid for, too
                errors.append(error)
        raise_all(errors)
    if not runs:
        detached.print_remaining_detached_runs(feedstock, is_alone=not ids)
    return 0


def tear_down_at_provider(
    options: FleetOptions, feedstock: Feedstock, ledger: FleetLedger, run: str, provider: str
) -> None:
    """Remove all that a run has at its provider, and store that."""
    site = (
        slurm.slurm_site_of_stored_settings(options, feedstock, run)
        if provider == SLURM
        else playbook_site(options, feedstock, run, provider)
    )
    fleet_run.tear_down_run(site, run)
    ledger.end_fleet(run)
    print(f"{run}: all workers are terminated", file=sys.stderr)


def sweep(options: FleetOptions, feedstock: Feedstock, namespace: argparse.Namespace) -> int:
    """Remove the user's expired workers of all runs, or print a timer that does; with ``--all`` everybody's."""
    user: str | None = namespace.user
    if user is not None and options.provider == SLURM:
        raise UsageError("--user is not for Slurm", hint="leave it out: Slurm cancels your own jobs only")
    if namespace.print_timer:
        more = [word for path in options.vars for word in ("--vars", str(path.absolute()))]
        more += [] if user is None else ["--user", user]
        argv = Program.KILN.script_command("-C", str(feedstock.root.absolute()), "fleet", "sweep")
        script = run_config.sweep_timer_script(
            options.provider,
            (*argv, "--provider", options.provider, *more),
            folder=str(PACKAGE_ROOT),
            environment=provider_variables_without_secrets(options.environment),
            every=namespace.every,
        )
        print(script, end="")
        return 0
    if options.provider == SLURM:
        slurm.cancel_abandoned_slurm_jobs(options, everything=namespace.all)
        print("no jobs of abandoned runs remain", file=sys.stderr)
        return 0
    site = playbook_site(options, feedstock, "sweep", options.provider)
    ids = None
    if namespace.all and not namespace.yes:
        workers = workers_of_user(user, fleet_run.list_existing_workers(site))
        if not confirm_termination(workers):
            return 0
        ids = [str(worker["id"]) for worker in workers]  # a run may have created others since they were listed
    remaining = fleet_run.sweep_leftover_workers(site, everything=namespace.all, user=user, ids=ids)
    print("no workers remain" if namespace.all else "no expired workers remain", file=sys.stderr)
    if remaining:
        print("still there:", file=sys.stderr)
        print(worker_table(remaining), file=sys.stderr)
    return 0


def workers_of_user(user: str | None, workers: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the workers of a user, with those that name none; all of them for no user."""
    return [worker for worker in workers if not user or worker["account_user"] in {"", user}]


def confirm_termination(workers: Sequence[Mapping[str, Any]]) -> bool:
    """Say whose workers would be terminated, and ask; return True at once when there are none."""
    if not workers:
        return True
    users = {worker["account_user"] for worker in workers}
    print(worker_table(workers), file=sys.stderr)
    if not sys.stdin.isatty():
        raise UsageError(
            f"--all would terminate these {len(workers)} workers of {len(users)} users, runs in progress included",
            why="nobody can be asked here",
            hint="--yes answers beforehand, --user NAME narrows it to a user",
        )
    print(f"Terminate these {len(workers)} workers of {len(users)} users? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def worker_table(workers: Iterable[Mapping[str, Any]]) -> str:
    """Return a table of workers, a line for each: its user, run, name, type and state."""
    rows = sorted(
        tuple(str(worker[key]) for key in ("account_user", "run", "name", "type", "state")) for worker in workers
    )
    return table(("user", "run", "worker", "type", "state"), [(row[0] or "unknown", *row[1:]) for row in rows])


def recover_or_end_unrecorded_runs(
    options: FleetOptions, feedstock: Feedstock, configs: Sequence[RemoteConfig], ledger: FleetLedger
) -> FleetRun | None:
    """Return the run to resume whose ledger was lost; end those that have other inputs, or nothing left."""
    key, known = configs[0].inputs.shared, [run.id for run in ledger.fleet_runs()]
    for note in fleet_run.notes_of_unrecorded_runs(
        artifact_layout(feedstock).safe_path("fleet").absolute(), known=known
    ):
        if note.provider == SLURM:
            continue
        site = playbook_site(options, feedstock, note.id, note.provider)
        keys = {config.config: config.inputs.key for config in configs}
        run = None
        if (note.provider, note.key) == (options.provider, key):
            hourly = {kind.type: kind.hourly_price(spot=options.spot) for kind in priced_machine_types(options, [])}
            run = fleet_run.recover_run(site, note, keys=keys, hourly=hourly)
        if run is not None:
            ledger.begin_fleet(run)
            print(f"the ledger does not have the fleet run {run.id}, whose workers exist", file=sys.stderr)
            return run
        print(f"the ledger does not have the fleet run {note.id}; its workers are terminated", file=sys.stderr)
        fleet_run.tear_down_run(site, note.id)
    if options.provider in CLOUDS and not options.additional:
        _require_no_workers_elsewhere(options, feedstock, key, known)
    return None


def require_no_run_of_same_build(
    options: FleetOptions, feedstock: Feedstock, configs: Sequence[RemoteConfig], ledger: FleetLedger
) -> None:
    """Refuse to detach a second run of the same recipe and build options, before it gets a machine."""
    if options.additional:
        return
    shared, runs = configs[0].inputs.shared, ledger.fleet_runs()
    for key in controller.find_run_keys(feedstock):
        if shared in {inputs.shared for inputs in key.inputs.values()}:
            other = "; --additional starts another" if options.provider in CLOUDS else ""
            raise AlreadyRunning(
                f"the fleet run {key.run} of the same recipe and build options is detached on {key.address}",
                hint=f"kiln fleet attach {key.run} shows and collects it, kiln fleet down {key.run} ends it{other}",
            )
    for run in runs:
        if run.finished is None and run.key == shared:
            raise AlreadyRunning(
                f"the fleet run {run.id} of the same recipe and build options has not ended",
                hint=f"kiln fleet resume {run.id} continues it, kiln fleet down {run.id} ends it",
            )
    if options.provider in CLOUDS:
        _require_no_workers_elsewhere(options, feedstock, shared, [run.id for run in runs])


def _require_no_workers_elsewhere(options: FleetOptions, feedstock: Feedstock, key: str, known: Sequence[str]) -> None:
    """Refuse to start workers where another computer has some for the same builds."""
    machines: Sequence[Mapping[str, Any]] = ()
    with contextlib.suppress(MachinesUnknown, CredentialsRefused):  # the run itself will say so
        machines = fleet_run.list_existing_workers(playbook_site(options, feedstock, "look", options.provider))
    for run, count in fleet_run.count_machines_of_unrecorded_runs(machines, key=key, known=known).items():
        raise AlreadyRunning(
            f"{count} workers of the same recipe and build options exist, of the fleet run {run}",
            why="another computer has started them, or the ledger here is lost, with the run's folder",
            hint=f"'kiln fleet down {run} --provider {options.provider}' terminates them; --additional starts others",
        )
