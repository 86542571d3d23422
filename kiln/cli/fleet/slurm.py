"""The site of runs with ``--provider slurm``, and Slurm's jobs."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.errors import UsageError
from kiln.base.system.machine import PACKAGE_ROOT
from kiln.cli.fleet.options import SLURM_CORES, SLURM_MEMORY
from kiln.cli.fleet.site import artifact_layout, executor_secret_variables, run_folder, worker_build_variables
from kiln.cli.options import container_client_variables, pip_variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.fleet.options import FleetOptions
    from kiln.fleet.slurm.site import SlurmSettings, SlurmSite
    from kiln.recipe.feedstock import Feedstock
    from kiln.state.results import JobSize


def slurm_run_site(options: FleetOptions, feedstock: Feedstock, run: str, sizes: Mapping[str, JobSize]) -> SlurmSite:
    """Return the site of a run that begins or is resumed, which stores its settings; ``sizes`` are those of configs."""
    from kiln.base import environment as base_environment
    from kiln.fleet.slurm.site import SlurmSettings

    base_environment.require_clone("kiln fleet", PACKAGE_ROOT)
    assert options.slurm is not None, "its provider is Slurm"
    stored = SlurmSettings.read_from_run_folder(run_folder(feedstock, run))
    folder = options.slurm.folder if stored is None else stored.folder
    if folder == Path():
        raise UsageError(
            "--provider slurm needs --slurm-folder",
            why="jobs read the feedstock there, and leave their packages there",
            hint="a folder on a filesystem that this computer and all nodes share, under the same path",
        )
    settings = dataclasses.replace(options.slurm, folder=folder)
    settings.store_in_run_folder(run_folder(feedstock, run))
    return dataclasses.replace(
        _site_with_settings(options, feedstock, run, settings),
        sizes=sizes,
        variables=worker_build_variables(feedstock, options.environment),
        secrets=executor_secret_variables(options),
        options=options.job_options,
        poll=options.poll,
    )


def slurm_site_of_stored_settings(options: FleetOptions, feedstock: Feedstock, run: str) -> SlurmSite:
    """Return the site of an earlier run; one whose settings are lost has no files to be removed."""
    from kiln.fleet.slurm.site import SlurmSettings

    folder = run_folder(feedstock, run)
    settings = SlurmSettings.read_from_run_folder(folder) or SlurmSettings(
        folder=folder / "no-shared-folder", cores=SLURM_CORES, memory=SLURM_MEMORY
    )
    return _site_with_settings(options, feedstock, run, settings)


def _site_with_settings(options: FleetOptions, feedstock: Feedstock, run: str, settings: SlurmSettings) -> SlurmSite:
    from kiln.fleet.slurm.site import SlurmSite

    return SlurmSite(
        run=run,
        folder=run_folder(feedstock, run),
        settings=settings,
        feedstock=feedstock.root.absolute(),
        project=PACKAGE_ROOT,
        python=Path(getattr(sys, "_base_executable", sys.executable)),
        ledger=artifact_layout(feedstock).ledger.absolute(),
        environment=slurm_program_environment(options.environment),
    )


def slurm_program_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Slurm's programs and of the set-up of kiln's environment; no job inherits it."""
    names = ("LOGNAME", "SLURM_CONF", "SLURM_CLUSTERS")
    slurm = {name: text for name, text in environment.items() if name in names or name.startswith("SBATCH_")}
    return {**container_client_variables(environment), **pip_variables(environment), **slurm}


def slurm_jobs_as_json(options: FleetOptions) -> str:
    """Return the jobs of all of the user's runs as JSON."""
    from kiln.fleet.slurm import jobs

    return json.dumps(jobs.jobs_as_json(slurm_program_environment(options.environment)), indent=4)


def cancel_abandoned_slurm_jobs(options: FleetOptions, *, everything: bool) -> None:
    """Cancel the jobs of runs that nobody will continue, or of all runs, and print them."""
    from kiln.fleet.slurm import jobs

    for run in jobs.sweep_abandoned_runs(slurm_program_environment(options.environment), everything=everything):
        print(f"{run}: all jobs are cancelled", file=sys.stderr)
