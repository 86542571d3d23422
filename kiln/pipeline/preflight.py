"""Whether this machine has what a run needs, told before it begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import files
from kiln.errors import OutOfMemory, UsageError
from kiln.pipeline import done
from kiln.pipeline.choice import missing_size
from kiln.pipeline.workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kiln.ledger import Ledger
    from kiln.pipeline.choice import Means
    from kiln.pipeline.layout import Layout
    from kiln.pipeline.wishes import Wishes
    from kiln.resources import Resources

SPARED = 0.9  # of the machine's memory, the rest is the system's
LEAST_DISK = 500_000_000  # bytes a job, where nothing is known from earlier runs
MARGIN = 1.25  # over what a cell used before

# Bytes of room for each byte of a wheel, as measured: fetched, converted and unpacked; and while a package is made of
# upstream's, taken apart, staged and packed.
ROOM_FOR_WHEELS, ROOM_FOR_BUILD = 4, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What each of several builds at once may use: cores, bytes of memory."""

    cores: int
    memory: int


def share(resources: Resources, *, jobs: int, cores: int | None, memory: int | None) -> Share:
    """Divide a machine among jobs; ``cores`` and ``memory`` are what was asked for each.

    Raises:
        UsageError: when there are more jobs than cores, or none of something is asked for.
        OutOfMemory: when the jobs' memory is more than there is.
    """
    if jobs < 1:
        raise UsageError(f"-j {jobs} builds nothing", hint="-j 1")
    if cores is not None and cores < 1:
        raise UsageError(f"--cores {cores} leaves a cell none", hint=f"--cores {max(1, resources.cores // jobs)}")
    if memory == 0:
        raise UsageError("--memory 0 leaves a cell none", hint=f"--memory {files.size_text(resources.memory // jobs)}")
    if jobs * (cores or 1) > resources.cores:
        raise UsageError(
            f"{jobs} jobs of {cores or 1} cores each need {jobs * (cores or 1)} cores, this machine has "
            f"{resources.cores}",
            hint=f"-j {max(1, resources.cores // (cores or 1))}",
        )
    if memory is not None and jobs * memory > resources.memory:
        fitting = resources.memory // memory
        raise OutOfMemory(
            f"{jobs} jobs of {files.size_text(memory)} each need {files.size_text(jobs * memory)} of memory",
            why=f"this machine has {files.size_text(resources.memory)}",
            hint=f"-j {fitting}" if fitting else f"--memory {files.size_text(resources.memory)}",
        )
    return Share(cores=cores or max(1, resources.cores // jobs), memory=memory or int(SPARED * resources.memory / jobs))


def require_memory(peaks: Mapping[str, int], each: Share, *, jobs: int) -> None:
    """Refuse to begin with cells that held more memory before than each job may have now.

    Raises:
        OutOfMemory: naming the largest of them.
    """
    config, peak = max(peaks.items(), key=lambda item: item[1], default=("", 0))
    if peak > each.memory:
        raise OutOfMemory(
            f"{config} held {files.size_text(peak)} of memory when it was last built",
            why=f"each of {jobs} jobs may have {files.size_text(each.memory)}",
            hint="fewer jobs with -j, or more for each with --memory",
        )


def disk_needed(used: Mapping[str, int], configs: tuple[str, ...], *, jobs: int) -> int:
    """Return the bytes of disk that a run takes for a while, from what its cells used before."""
    largest = sorted((int(MARGIN * used.get(config, 0)) for config in configs), reverse=True)
    return sum(max(LEAST_DISK, size) for size in largest[:jobs])


def room_to_rehearse(missing: int, upstream: int, *, jobs: int) -> int:
    """Return the bytes of disk that rehearsals take: for the wheels that are missing, and for each job while it works.

    ``upstream`` is the size of the wheel that packages are made of.
    """
    return ROOM_FOR_WHEELS * missing + jobs * ROOM_FOR_BUILD * upstream


def require(
    configs: tuple[str, ...],
    wishes: Wishes,
    each: Share,
    *,
    ledger: Ledger,
    layout: Layout,
    means: Mapping[str, Means],
    caches: Collection[str],
) -> int:
    """Refuse to begin without enough memory and disk for these cells; returns the bytes of disk that the run takes.

    ``caches`` are the keys of the compile caches that cells of the run use: where the disk is short, the others go.

    Raises:
        OutOfMemory: naming the largest cell.
        DiskFull: with what is needed, and what is free.
    """
    peaks = ledger.peaks(rehearsal=wishes.rehearsal)
    require_memory({config: peaks[config] for config in configs if config in peaks}, each, jobs=wishes.jobs)
    if wishes.rehearsal:
        return _require_room_to_rehearse(layout, {config: means[config] for config in configs}, wishes.jobs)
    used = {step.config: int(step.detail.get("disk", 0)) for step in reversed(ledger.latest(done.TITLE))}
    disk = disk_needed(used, configs, jobs=wishes.jobs)
    if wishes.fetch:
        layout.compile_caches.make_room(disk, keep=set(caches))
    files.require_room(layout.root, disk, for_what=f"building {wishes.jobs} at a time")
    return disk


def _require_room_to_rehearse(layout: Layout, means: Mapping[str, Means], jobs: int) -> int:
    missing = missing_size(means, Workshop(cell=layout.work(min(means))).wheels)
    upstream = max(each.wheels.upstream.size for each in means.values())
    disk = room_to_rehearse(missing, upstream, jobs=min(jobs, len(means)))
    fetched = f" with {files.size_text(missing)} to fetch" if missing else ""
    files.require_room(layout.root, disk, for_what=f"rehearsing {', '.join(means)}{fetched}")
    return disk
