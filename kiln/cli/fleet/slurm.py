"""The options of ``kiln fleet --provider slurm``, and the site of its runs."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.errors import UsageError
from kiln.base.system.machine import PACKAGE_ROOT
from kiln.base.text import duration_seconds
from kiln.cli.fleet import site
from kiln.cli.fleet.site import artifact_layout, run_folder, worker_build_variables, worker_job_options
from kiln.cli.options import container_client_variables, pip_variables

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from kiln.fleet.slurm.site import SlurmSettings, SlurmSite
    from kiln.recipe.feedstock import Feedstock
    from kiln.state.results import JobSize

SLURM = "slurm"
CORES, MEMORY = 16, 32_000_000_000  # of a job: those of compute-16
OPTIONS = ("folder", "cores", "memory", "time", "partition", "account", "qos", "option")
# Options of other providers: a cluster has its own accounting, and jobs share a compile in the shared folder.
FOREIGN = ("types", "cache", "spot", "budget", "image", "gpu_tests")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@+-]*")


def check_options(options: argparse.Namespace) -> None:
    """Refuse options of Slurm for other providers, and those of others for Slurm.

    Raises:
        UsageError: with the option.
    """
    if options.provider == SLURM:
        names = [name for name in FOREIGN if getattr(options, name, None)]
        hint = "sizes are --slurm-cores and --slurm-memory; nothing is charged; jobs share compiles in --slurm-folder"
    else:
        names = [f"slurm-{name}" for name in OPTIONS if getattr(options, f"slurm_{name}", None)]
        hint = "--provider slurm"
    if names:
        option = names[0].replace("types", "type").replace("_", "-")
        raise UsageError(f"--{option} is not an option of --provider {options.provider}", hint=hint)


def slurm_job_settings(options: argparse.Namespace, folder: Path) -> SlurmSettings:
    """Return the settings of a run's jobs.

    Raises:
        UsageError: when one is invalid.
    """
    from kiln.fleet.slurm.site import SlurmSettings, check_sbatch_options

    for name in ("partition", "account", "qos"):
        value = getattr(options, f"slurm_{name}")
        if value and not NAME.fullmatch(value):
            raise UsageError(f"invalid name {value!r} in --slurm-{name}")
    if options.slurm_cores is not None and options.slurm_cores < 1:
        raise UsageError(f"--slurm-cores is {options.slurm_cores}", hint="a job needs at least one core")
    return SlurmSettings(
        folder=folder,
        cores=options.slurm_cores or CORES,
        memory=options.slurm_memory or MEMORY,
        partition=options.slurm_partition or "",
        account=options.slurm_account or "",
        qos=options.slurm_qos or "",
        time=math.ceil(duration_seconds(options.slurm_time) / 60) if options.slurm_time else None,
        extra=check_sbatch_options(options.slurm_option),
    )


def slurm_run_site(
    options: argparse.Namespace, feedstock: Feedstock, run: str, sizes: Mapping[str, JobSize]
) -> SlurmSite:
    """Return the site of a run that begins or is resumed, which stores its settings; ``sizes`` are those of configs.

    Raises:
        UsageError: when the shared folder is not known.
    """
    from kiln.base import environment as base_environment
    from kiln.fleet.slurm.site import SlurmSettings

    base_environment.require_clone("kiln fleet", PACKAGE_ROOT)
    stored = SlurmSettings.read_from_run_folder(run_folder(feedstock, run))
    folder = options.slurm_folder if stored is None else stored.folder
    if folder is None:
        raise UsageError(
            "--provider slurm needs --slurm-folder",
            why="jobs read the feedstock there, and leave their packages there",
            hint="a folder on a filesystem that this computer and all nodes share, under the same path",
        )
    settings = slurm_job_settings(options, folder)
    settings.store_in_run_folder(run_folder(feedstock, run))
    return dataclasses.replace(
        _site_with_settings(feedstock, run, settings),
        sizes=sizes,
        variables=worker_build_variables(feedstock),
        secrets=site.executor_secret_variables(options, os.environ),
        options=worker_job_options(options),
        poll=duration_seconds(options.poll),
    )


def slurm_site_of_stored_settings(feedstock: Feedstock, run: str) -> SlurmSite:
    """Return the site of an earlier run; one whose settings are lost has no files to be removed."""
    from kiln.fleet.slurm.site import SlurmSettings

    folder = run_folder(feedstock, run)
    settings = SlurmSettings.read_from_run_folder(folder) or SlurmSettings(
        folder=folder / "no-shared-folder", cores=CORES, memory=MEMORY
    )
    return _site_with_settings(feedstock, run, settings)


def _site_with_settings(feedstock: Feedstock, run: str, settings: SlurmSettings) -> SlurmSite:
    from kiln.fleet.slurm.site import SlurmSite

    return SlurmSite(
        run=run,
        folder=run_folder(feedstock, run),
        settings=settings,
        feedstock=feedstock.root.absolute(),
        project=PACKAGE_ROOT,
        python=Path(getattr(sys, "_base_executable", sys.executable)),
        ledger=artifact_layout(feedstock).ledger.absolute(),
        environment=slurm_program_environment(os.environ),
    )


def slurm_program_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Slurm's programs and of the set-up of kiln's environment; no job inherits it."""
    names = ("LOGNAME", "SLURM_CONF", "SLURM_CLUSTERS")
    slurm = {name: text for name, text in environment.items() if name in names or name.startswith("SBATCH_")}
    return {**container_client_variables(environment), **pip_variables(environment), **slurm}


def slurm_jobs_as_json() -> str:
    """Return the jobs of all of the user's runs as JSON."""
    from kiln.fleet.slurm import jobs

    return json.dumps(jobs.jobs_as_json(slurm_program_environment(os.environ)), indent=4)


def cancel_abandoned_slurm_jobs(*, everything: bool) -> None:
    """Cancel the jobs of runs that nobody will continue, or of all runs, and print them."""
    from kiln.fleet.slurm import jobs

    for run in jobs.sweep_abandoned_runs(slurm_program_environment(os.environ), everything=everything):
        print(f"{run}: all jobs are cancelled", file=sys.stderr)
