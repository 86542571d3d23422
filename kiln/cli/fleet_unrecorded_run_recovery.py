"""Runs of a fleet that the ledger does not have: resumed or ended before other workers are started."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from kiln.cli.fleet_planning import priced_machine_types
from kiln.cli.fleet_run_folder_and_variables import artifact_layout, playbook_site
from kiln.cli.fleet_run_terms_from_options import CLOUDS
from kiln.cli.fleet_slurm_options_and_jobs import SLURM
from kiln.errors import AlreadyRunning, CredentialsRefused, MachinesUnknown

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from kiln.ledger.fleet import FleetLedger
    from kiln.model.feedstock import Feedstock
    from kiln.model.fleet_run import FleetRun
    from kiln.store.configs_built_on_workers import RemoteConfig


def recover_or_end_unrecorded_runs(
    options: argparse.Namespace, feedstock: Feedstock, configs: Sequence[RemoteConfig], ledger: FleetLedger
) -> FleetRun | None:
    """Return the run to resume whose ledger was lost; end those that have other inputs, or nothing left.

    Raises:
        MachinesUnknown: when a provider could not be asked for the workers of such a run.
        TeardownIncomplete: when workers of such a run remain.
        AlreadyRunning: when another computer has started workers for the same builds.
    """
    from kiln.fleet import run_and_removal as fleet
    from kiln.fleet import unrecorded_run_recovery

    key, known = configs[0].inputs.shared, [run.id for run in ledger.fleet_runs()]
    for note in unrecorded_run_recovery.notes_of_unrecorded_runs(
        artifact_layout(feedstock).safe_path("fleet").absolute(), known=known
    ):
        if note.provider == SLURM:
            continue
        site = playbook_site(options, feedstock, note.id, note.provider)
        keys = {config.config: config.inputs.key for config in configs}
        run = None
        if (note.provider, note.key) == (options.provider, key):
            hourly = {kind.type: kind.hourly_price(spot=options.spot) for kind in priced_machine_types(options, [])}
            run = unrecorded_run_recovery.recover_run(site, note, keys=keys, hourly=hourly)
        if run is not None:
            ledger.begin_fleet(run)
            print(f"the ledger does not have the fleet run {run.id}, whose workers exist", file=sys.stderr)
            return run
        print(f"the ledger does not have the fleet run {note.id}; its workers are terminated", file=sys.stderr)
        fleet.tear_down_run(site, note.id)
    if options.provider in CLOUDS and not options.additional:
        _require_no_workers_elsewhere(options, feedstock, key, known)
    return None


def require_no_run_of_same_build(
    options: argparse.Namespace, feedstock: Feedstock, configs: Sequence[RemoteConfig], ledger: FleetLedger
) -> None:
    """Refuse to detach a second run of the same recipe and build options, before it gets a machine.

    Raises:
        AlreadyRunning: when one is detached from here and not collected, is unfinished here, or has workers elsewhere.
    """
    from kiln.fleet.detached import attach_key

    if options.additional:
        return
    shared, runs = configs[0].inputs.shared, ledger.fleet_runs()
    for key in attach_key.find_run_keys(feedstock):
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
                hint=f"the same command without --detach resumes it, kiln fleet down {run.id} ends it",
            )
    if options.provider in CLOUDS:
        _require_no_workers_elsewhere(options, feedstock, shared, [run.id for run in runs])


def _require_no_workers_elsewhere(
    options: argparse.Namespace, feedstock: Feedstock, key: str, known: Sequence[str]
) -> None:
    """Refuse to start workers where another computer has some for the same builds."""
    from kiln.fleet import run_and_removal as fleet
    from kiln.fleet import unrecorded_run_recovery

    machines: Sequence[Mapping[str, Any]] = ()
    with contextlib.suppress(MachinesUnknown, CredentialsRefused):  # the run itself will say so
        machines = fleet.list_existing_workers(playbook_site(options, feedstock, "look", options.provider))
    for run, count in unrecorded_run_recovery.count_machines_of_unrecorded_runs(machines, key=key, known=known).items():
        raise AlreadyRunning(
            f"{count} workers of the same recipe and build options exist, of the fleet run {run}",
            why="another computer has started them, or the ledger here is lost, with the run's folder",
            hint=f"'kiln fleet down {run} --provider {options.provider}' terminates them; --additional starts others",
        )
