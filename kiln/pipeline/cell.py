"""One cell in a process of its own, started by the run over the matrix.

It holds the cell's lock, has the cell built on the host or in a container, puts the packages of a cell that is finished
into the channel, and writes the cell down. It ends with the run that started it, and what it started ends with it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import command, files
from kiln import rehearse as parts
from kiln.errors import BuildFailed, KilnError, OutOfMemory
from kiln.ledger import Ledger, records
from kiln.model.run import CellState
from kiln.pipeline import done, errand, foreign, rehearsal
from kiln.pipeline.boxed import Boxed
from kiln.pipeline.choice import python_of
from kiln.pipeline.cuda import cuda_of
from kiln.pipeline.done import Inputs
from kiln.pipeline.failures import end_of_cell, error_from
from kiln.pipeline.host import Host
from kiln.pipeline.jobs import CellJob
from kiln.pipeline.listen import Log
from kiln.pipeline.process import end_orphans
from kiln.pipeline.task import Task
from kiln.pipeline.voice import MARK, Voice, say
from kiln.pipeline.wishes import HOST
from kiln.pipeline.workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.model.artifact import PackageReport
    from kiln.pipeline.site import Outcome, Site

TIDYING = 30.0  # seconds that the processes of a killed run may take to end


def main(job_file: str) -> None:
    """Build the cell that a job file names, and tell what became of it as the last line."""
    job = CellJob.read(Path(job_file))
    command.die_with_parent(signal.SIGTERM, parent=job.parent)
    say("hello", pid=os.getpid())
    with command.termination_as_interrupt():
        try:
            with files.no_room_as_disk_full(Path(job.root)):
                told = CellBuild.of(job).run()
        except KeyboardInterrupt:
            told = {"state": CellState.INTERRUPTED.value, "reason": "stopped"}
        except KilnError as error:
            told = end_of_cell(error)
    say("result", **told)
    os._exit(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellBuild:
    """A cell under way in this process, and where its programs run."""

    task: Task
    site: Site
    ledger: Ledger

    @classmethod
    def of(cls, job: CellJob) -> CellBuild:
        """Find the feedstock and open the ledger."""
        task = Task.of(job)
        site: Site = Host(task=task) if job.container == HOST else Boxed(task=task)
        return cls(task=task, site=site, ledger=Ledger(task.layout.ledger))

    def run(self) -> dict[str, Any]:
        """Build the cell, alone: nobody else builds it meanwhile."""
        job, folder = self.task.job, self.task.folder

        def is_abandoned() -> bool:
            return self.ledger.abandoned(job.config, rehearsal=job.rehearsal)

        with done.waiting(self.task.lock, while_true=is_abandoned, seconds=TIDYING):
            end_orphans(folder)
            try:
                return self.build()
            finally:
                end_orphans(folder)

    def build(self) -> dict[str, Any]:
        """Build the cell and put its packages into the channel."""
        task, start = self.task, time.monotonic()
        if task.job.debug is None and not task.job.rehearsal:
            files.remove(task.layout.canary(task.job.config))
        if task.job.rebuild:
            files.remove(task.folder)
        result, outcome = self.made()
        common = {"steps": result["steps"], "peak_memory": outcome.peak_memory}
        if (error := error_of(result, outcome, task.job)) is not None:
            if task.is_foreign and not task.job.keep_failed:
                files.remove(task.folder)
            return {**end_of_cell(error), **common}
        good = {"state": CellState.DONE.value, "reason": "", **common}
        if task.job.debug is not None:
            return {**good, "debug": result["debug"]}
        packages = self.publish(result["packages"], time.monotonic() - start, outdated=result.get("outdated", False))
        return {**good, "packages": [records.package_as_json(package) for package in packages]}

    def made(self) -> tuple[dict[str, Any], Outcome]:
        """Run the building process to its end; returns what it told of what it made, and how it ended."""
        task, job = self.task, self.task.job
        file = task.folder / "result.json"
        files.remove(file)
        what_for = f"{job.group}, {job.image or 'this machine'}"
        with task.layout.compile_caches.using(job.cache_key, what_for), Log(Path(job.log)) as log:
            if job.rehearsal:
                self.fetch()
            if task.is_foreign:
                log.hear(f"{MARK}{json.dumps({'kind': 'step', 'title': job.engine})}")
            outcome = self.site.run(errand.program(task, self.site, self.ledger), log)
            if task.is_foreign:
                foreign.share_fetched(task.folder, task.layout.cache)
                for line in foreign.last_words(outcome.error):
                    log.hear(line)
        return self.result(file, outcome), outcome

    def fetch(self) -> None:
        """Bring the wheels of a rehearsal here, by pip with its own settings, which nothing else gets to see."""
        shop, cell = Workshop(cell=self.task.folder), self.task.rendered.cell
        shop.open()
        wheels = parts.plan(python=python_of(cell), cuda=cuda_of(cell))
        rehearsal.fetch(wheels, shop, env=os.environ, log=Path(self.task.job.log), voice=Voice())

    def result(self, file: Path, outcome: Outcome) -> dict[str, Any]:
        """Return what the building process told of what it made; of another engine's, what it left."""
        if file.is_file():
            found: dict[str, Any] = json.loads(file.read_text())
            return found
        ended_well = self.task.is_foreign and outcome.error is None
        left = foreign.made(self.task.folder, self.task.job.config) if ended_well else []
        if ended_well and not left:
            job = self.task.job
            raise BuildFailed(f"{job.engine} has ended well, but left no package", hint=f"read {job.log}")
        return {"steps": [], "error": None, "packages": left}

    def publish(self, packages: list[dict[str, Any]], seconds: float, *, outdated: bool) -> tuple[PackageReport, ...]:
        """Put the packages into the channel, write the cell down, and clear up.

        What is ``outdated`` in part is not what the recipe says now: it is written down under a key that no cell ever
        asks for, so the next run builds it anew, and its folder stays for another ``--from-step``.
        """
        job, layout, folder = self.task.job, self.task.layout, self.task.folder
        made = [(folder / told["artifact"]["path"], told) for told in packages]
        wanted = Inputs(shared=job.shared, key=job.key)
        if job.rehearsal:
            return done.remember(self.ledger, layout, job.config, made, wanted, seconds=seconds)
        if outdated:
            never = f"outdated {secrets.token_hex(16)}"
            wanted = Inputs(shared=never, key=never)
        disk = files.size_on_disk(folder)
        placed = done.publish(self.ledger, layout, job.config, made, wanted, seconds=seconds, disk=disk)
        layout.canary(job.config).touch()
        if not outdated:
            files.remove(folder)
        return placed


def error_of(result: Mapping[str, Any], outcome: Outcome, job: CellJob) -> KilnError | None:
    """Return why a cell failed: for want of memory when processes of it were ended for that."""
    error = outcome.error if result["error"] is None else error_from(result["error"])
    if error is None or not outcome.starved:
        return error
    limit = "this machine" if job.memory is None else files.size_text(job.memory)
    return OutOfMemory(
        f"{job.config} needed more memory than {limit}",
        why=error.what,
        hint="give it more with --memory, run fewer at once with -j, or lower CPU_COUNT",
    )
