"""Check that this machine has the resources of a run, before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import files
from kiln.console.text import count_text
from kiln.errors import OutOfMemory, UsageError
from kiln.operating_system.machine_resources import MachineResources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.builder.rehearsal_config_and_inputs import RehearsalInputs
    from kiln.ledger import Ledger
    from kiln.run.plan_inputs import RunInputs
    from kiln.store.layout import ArtifactLayout

SPARED = 0.9  # of the machine's memory, the rest is the system's
LEAST_DISK = 500_000_000  # bytes for each job, without earlier runs
MARGIN = 1.25  # over a config's earlier use


def divide_resources_among_jobs(
    resources: MachineResources, *, jobs: int, cores: int | None, memory: int | None
) -> MachineResources:
    """Divide a machine among jobs, and return the part of each; ``cores`` and ``memory`` are requested for each.

    Raises:
        UsageError: when there are more jobs than cores, or zero of something is requested.
        OutOfMemory: when the jobs' memory exceeds the machine's.
    """
    if jobs < 1:
        raise UsageError(f"invalid number of jobs: -j {jobs}", hint="-j 1")
    if cores is not None and cores < 1:
        raise UsageError(f"invalid number of cores: --cores {cores}", hint=f"--cores {max(1, resources.cores // jobs)}")
    if memory == 0:
        raise UsageError(
            "invalid amount of memory: --memory 0",
            hint=f"--memory {files.human_readable_size(resources.memory // jobs)}",
        )
    if jobs * (cores or 1) > resources.cores:
        raise UsageError(
            f"{count_text(jobs, 'job')} of {count_text(cores or 1, 'core')} each: "
            f"{jobs * (cores or 1)} needed, this machine has {resources.cores}",
            hint=f"-j {max(1, resources.cores // (cores or 1))}",
        )
    if memory is not None and jobs * memory > resources.memory:
        fitting = resources.memory // memory
        raise OutOfMemory(
            f"{count_text(jobs, 'job')} of {files.human_readable_size(memory)} each: "
            f"{files.human_readable_size(jobs * memory)} needed",
            why=f"this machine has {files.human_readable_size(resources.memory)}",
            hint=f"-j {fitting}" if fitting else f"--memory {files.human_readable_size(resources.memory)}",
        )
    return MachineResources(
        cores=cores or max(1, resources.cores // jobs), memory=memory or int(SPARED * resources.memory / jobs)
    )


def require_memory_of_earlier_builds(peaks: Mapping[str, int], share: MachineResources, *, jobs: int) -> None:
    """Refuse configs that used more memory before than each job may use now.

    Raises:
        OutOfMemory: with the largest of them.
    """
    config, peak = max(peaks.items(), key=lambda item: item[1], default=("", 0))
    if peak > share.memory:
        raise OutOfMemory(
            f"{config} used {files.human_readable_size(peak)} of memory when it was last built",
            why=f"each of {count_text(jobs, 'job')} may have {files.human_readable_size(share.memory)}",
            hint="fewer jobs with -j, or more for each with --memory",
        )


def estimated_disk_use(used: Mapping[str, int], configs: tuple[str, ...], *, jobs: int) -> int:
    """Return the bytes of disk that a run takes temporarily, from its configs' earlier use."""
    largest = sorted((int(MARGIN * used.get(config, 0)) for config in configs), reverse=True)
    return sum(max(LEAST_DISK, size) for size in largest[:jobs])


def require_memory_and_disk(
    configs: tuple[str, ...], run_inputs: RunInputs, *, ledger: Ledger, layout: ArtifactLayout
) -> int:
    """Require enough memory and disk for these configs; return the bytes of disk that the run takes.

    Compile caches that the run does not use are removed when the disk is full.

    Raises:
        OutOfMemory: with the largest config.
        DiskFull: with the needed and the free space.
    """
    options = run_inputs.options
    peaks = ledger.last_build_peak_memory_by_config(rehearsal=options.build.rehearsal)
    require_memory_of_earlier_builds(
        {config: peaks[config] for config in configs if config in peaks}, run_inputs.share, jobs=options.jobs
    )
    if options.build.rehearsal:
        return _require_rehearsal_disk(
            layout, {config: run_inputs.rehearsals[config] for config in configs}, options.jobs
        )
    used = ledger.last_build_disk_use()
    disk = estimated_disk_use(used, configs, jobs=options.jobs)
    if options.fetch:
        layout.compile_caches.remove_caches_to_free_space(disk, keep=set(run_inputs.caches.values()))
    files.require_disk_space(layout.root, disk, for_what=f"building {options.jobs} at a time")
    return disk


def _require_rehearsal_disk(layout: ArtifactLayout, rehearsals: Mapping[str, RehearsalInputs], jobs: int) -> int:
    # A build needs neither, and they import much.
    from kiln.builder.rehearsal_config_and_inputs import missing_wheels_size, rehearsal_disk_bytes
    from kiln.store.rehearsal_layout import RehearsalLayout

    missing_bytes = missing_wheels_size(rehearsals, RehearsalLayout(config=layout.work_folder(min(rehearsals))).wheels)
    upstream = max(
        0 if rehearsal.wheels.upstream is None else rehearsal.wheels.upstream.size for rehearsal in rehearsals.values()
    )
    jobs = min(jobs, len(rehearsals))
    disk = rehearsal_disk_bytes(missing_bytes, upstream, jobs=jobs) + (0 if upstream else jobs * LEAST_DISK)
    fetched = f" with {files.human_readable_size(missing_bytes)} to fetch" if missing_bytes else ""
    files.require_disk_space(layout.root, disk, for_what=f"rehearsing {', '.join(rehearsals)}{fetched}")
    return disk
