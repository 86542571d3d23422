"""``kiln fleet down``: terminate the workers of runs, and remove all else that they have at their providers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kiln.cli import fleet_detached_runs, fleet_slurm_options_and_jobs
from kiln.cli.fleet_run_folder_and_variables import artifact_layout, playbook_site
from kiln.errors import KilnError, UsageError, raise_all

if TYPE_CHECKING:
    import argparse

    from kiln.ledger.fleet import FleetLedger
    from kiln.model.feedstock import Feedstock


def tear_down_runs(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Remove all that runs have at their providers."""
    from kiln import files, signals
    from kiln.ledger.fleet import FleetLedger

    layout = artifact_layout(feedstock)
    with (
        files.held_lock_file(layout.common_lock_file("fleet")),
        FleetLedger(layout.ledger) as ledger,
        signals.termination_as_interrupt(),
    ):
        providers = {run.id: run.provider for run in ledger.fleet_runs()}
        ids = options.runs or [run.id for run in ledger.fleet_runs() if run.finished is None]
        errors: list[KilnError] = []
        for run_id in ids:
            try:
                tear_down_run(options, feedstock, ledger, run_id, options.provider or providers.get(run_id))
            except KilnError as error:  # the workers of the others are paid for, too
                errors.append(error)
        raise_all(errors)
    if not options.runs:
        fleet_detached_runs.print_remaining_detached_runs(feedstock, is_alone=not ids)
    return 0


def tear_down_run(
    options: argparse.Namespace, feedstock: Feedstock, ledger: FleetLedger, run: str, provider: str | None
) -> None:
    """Remove all that a run has, which may be detached."""
    from kiln.fleet.detached import attach_key

    if fleet_detached_runs.is_detached(feedstock, run):
        fleet_detached_runs.tear_down_detached_run(options, feedstock, attach_key.key_of_run(feedstock, run))
        return
    if provider is None:
        raise UsageError(
            f"fleet run {run!r} not found in the ledger",
            hint=f"name its provider: kiln fleet down {run} --provider aws",
        )
    tear_down_at_provider(options, feedstock, ledger, run, provider)


def tear_down_at_provider(
    options: argparse.Namespace, feedstock: Feedstock, ledger: FleetLedger, run: str, provider: str
) -> None:
    """Remove all that a run has at its provider, and store that."""
    from kiln.fleet import run_and_removal as fleet

    site = (
        fleet_slurm_options_and_jobs.slurm_site_of_stored_settings(feedstock, run)
        if provider == fleet_slurm_options_and_jobs.SLURM
        else playbook_site(options, feedstock, run, provider)
    )
    fleet.tear_down_run(site, run)
    ledger.end_fleet(run)
    print(f"{run}: all workers are terminated", file=sys.stderr)
