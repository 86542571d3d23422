"""What the program that builds a cell is told of it, written where it is seen from the place in which that runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import render
from kiln.ledger import records
from kiln.pipeline import compiling, contract, done, foreign
from kiln.pipeline.done import Inputs
from kiln.pipeline.jobs import BuildJob

if TYPE_CHECKING:
    from kiln.ledger import Ledger
    from kiln.pipeline.site import Site
    from kiln.pipeline.task import Task


def program(task: Task, site: Site, ledger: Ledger) -> tuple[str, ...]:
    """Write what the building program reads, and return the program."""
    if task.is_foreign:
        return script(task, site)
    task.folder.mkdir(parents=True, exist_ok=True)
    task.layout.cache.mkdir(parents=True, exist_ok=True)
    file = task.folder / "job.json"
    build_job(task, site, taken(task, ledger)).write(file)
    return site.start(file, task.module)


def script(task: Task, site: Site) -> tuple[str, ...]:
    """Write the script of another engine, and return the program that runs it."""
    file = foreign.prepare(
        task.feedstock,
        task.rendered,
        task.folder,
        task.layout.cache,
        engine=task.job.engine,
        variables=task.job.variables,
        seen=site.seen,
        debug=task.job.debug,
    )
    return ("bash", str(site.seen(file)))


def build_job(task: Task, site: Site, taken: list[dict[str, Any]]) -> BuildJob:
    """Return the building process's own job, with paths as it sees them."""
    job, seen = task.job, site.seen
    return BuildJob(
        root=seen(task.feedstock.root),
        recipe=task.feedstock.recipe if site.on_host else contract.RECIPE,
        config=job.config,
        folder=seen(task.folder),
        cache=seen(task.layout.cache),
        result=seen(task.folder / "result.json"),
        extra={name: job.variables[name] for name in contract.EXTRA if name in job.variables},
        keep_failed=job.keep_failed,
        compile=compile_settings(task, site),
        stall=job.stall,
        taken=taken,
        channel=seen(task.layout.root),
        network=site.on_host or task.network,
        from_step=job.from_step,
        parent=os.getpid() if site.on_host else None,
        python=Path(job.python) if job.python and (site.on_host or job.python_home) else None,
        image=job.image,
        debug=job.debug,
        queue=None if site.queue is None else seen(site.queue),
        mirror=job.mirror,
    )


def compile_settings(task: Task, site: Site) -> dict[str, str]:
    """Return what the compile step is told of its place."""
    return {
        compiling.DISK_CACHE: str(site.cache),
        compiling.CACHE_KEY: task.job.cache_key,
        compiling.CPUS: str(task.job.cores),
        compiling.MEMORY: str(task.job.share // 10**6),
        **({} if site.distdir is None else {compiling.DISTDIR: str(site.distdir)}),
    }


def taken(task: Task, ledger: Ledger) -> list[dict[str, Any]]:
    """Return the packages that another cell has made, as JSON values; to --rebuild, a leader makes them anew."""
    job = task.job
    if job.rehearsal or (job.rebuild and job.leader):
        return []
    wanted = Inputs(shared=job.shared, key=job.key)
    found = done.taken(ledger, task.layout, render.finalise(task.rendered).outputs, wanted, job.config)
    return [records.package_as_json(report) for report in found]
