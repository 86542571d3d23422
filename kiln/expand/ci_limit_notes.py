"""Notes on configs that take more time or disk than their CI service allows, by the last builds on this machine.

The workflow depends on the settings alone, so that every machine writes the same one; what this machine knows becomes
a note.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kiln.expand import ci_limits, github_workflow_writer, matrix_settings
from kiln.expand.actions_settings import GITHUB, SKIP, ActionsSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kiln.expand.github_workflow_writer import WorkflowJob
    from kiln.model.feedstock import Feedstock
    from kiln.model.matrix_config import BuildConfig

JOB_MINUTES, DISK = "job minutes", "disk"  # limits of a service
GB = 10**9


def limit_excess_notes(feedstock: Feedstock, configs: Iterable[BuildConfig]) -> list[str]:
    """Return for each service and limit a line about the config that exceeds it most."""
    place, settings = feedstock.artifacts / "ledger.sqlite", ActionsSettings(feedstock.conda_forge_yml)
    configs = list(configs)
    if not configs or not place.is_file():  # opening a ledger creates it
        return []
    jobs = {job.config: job for job in github_workflow_writer.workflow_jobs(feedstock, configs, settings)}
    services = {
        job.platform_name: job.provider for job in matrix_settings.read_matrix_settings(feedstock.conda_forge_yml).jobs
    }
    from kiln.ledger import Ledger

    with Ledger(place) as ledger:
        seconds, disk = ledger.last_build_seconds(), ledger.last_build_disk_use()
    worst: dict[tuple[str, str], tuple[float, str]] = {}
    for config in configs:
        job, service = jobs.get(config.name), services.get(config.platform.replace("-", "_"), "")
        if job is None and service == GITHUB:
            continue  # by conda-smithy's workflow
        for limit, amount, note in _exceeded_limits(
            config.name, job, service, settings, seconds.get(config.name, 0.0), disk.get(config.name, 0)
        ):
            worst[service, limit] = max(worst.get((service, limit), (0.0, "")), (amount, note))
    return [note for _, note in worst.values()]


def _exceeded_limits(
    config: str, job: WorkflowJob | None, service: str, settings: ActionsSettings, seconds: float, disk: int
) -> Iterator[tuple[str, float, str]]:
    """Yield the limits that a config exceeds, each with what it took, and a note."""
    limits = ci_limits.all_limits()
    if job is not None:
        if seconds > 60 * settings.chain_build_minutes(job.links):
            yield JOB_MINUTES, seconds, _build_hours_note(config, seconds)
    elif (minutes := limits.get((service, JOB_MINUTES))) is not None and seconds > 60 * minutes.value:
        took = f"{config} took {math.ceil(seconds / 60)} min when it was last built here, and {service} allows"
        note = f"{took} {minutes.value} {minutes.unit}: build it over several, with --budget and --handover"
        yield JOB_MINUTES, seconds, note
    room = limits.get((service, DISK))
    of_service = job is None or job.runner in github_workflow_writer.RUNNERS.values()
    if room is not None and of_service and disk > GB * room.value:
        took = f"{config} took {math.ceil(disk / GB)} GB of disk when it was last built here, and {service} has"
        yield DISK, disk, f"{took} {room.value} {room.unit}: {_disk_space_hint(job)}"


def _build_hours_note(config: str, seconds: float) -> str:
    hours = math.ceil(seconds / 3600)
    took = f"{config} took {hours} h when it was last built here, longer than its jobs in the workflow may"
    return f"{took}: set kiln: build_hours in conda-forge.yml ({hours}, or more for fewer cores)"


def _disk_space_hint(job: WorkflowJob | None) -> str:
    """Return what gives a job more room on the disk."""
    another = "another runner (the variant key github_actions_labels)"
    if job is None:
        return "build it on a machine with more"
    return f"set workflow_settings: free_disk_space: max, or use {another}" if job.free == SKIP else f"use {another}"
