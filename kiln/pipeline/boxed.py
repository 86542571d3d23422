"""A cell's programs in containers: one for the engine, and beside it one without the network for scripts."""

from __future__ import annotations

import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import container
from kiln.build import conda_build
from kiln.container import Container, Engine, trial
from kiln.errors import MissingTool
from kiln.model.container import Limits, Mount, User
from kiln.pipeline import contract, done, lent, offline
from kiln.pipeline.outline import needs_network
from kiln.pipeline.site import Outcome, ended_badly
from kiln.pipeline.voice import Voice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.model.container import ContainerRun, Ended
    from kiln.pipeline.listen import Log
    from kiln.pipeline.task import Task

TIDYING = 30.0  # seconds that the loop over scripts may take to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxed:
    """A `kiln.pipeline.site.Site`: a container."""

    task: Task

    @property
    def on_host(self) -> bool:
        """It is not."""
        return False

    @property
    def cache(self) -> Path:
        """Bazel's cache for the cell's compile."""
        return contract.CACHE_INSIDE

    @property
    def distdir(self) -> Path | None:
        """The folder of downloads."""
        return None if self.task.distdir is None else contract.DISTDIR_INSIDE

    @property
    def queue(self) -> Path | None:
        """Where scripts are handed over; there where the engine needs the network, and they do not."""
        task, job = self.task, self.task.job
        if task.is_foreign or job.rehearsal or job.network == "always":
            return None
        return task.folder / "scripts" if needs_network(task.rendered) or task.secrets else None

    def seen(self, path: Path) -> Path:
        """Return a path of the feedstock's as it is in the container."""
        return contract.within(path, self.task.feedstock)

    def start(self, job_file: Path, module: str) -> tuple[str, ...]:
        """Return the program that does what a job file says, by whatever Python of the image can."""
        return contract.start(self.seen(job_file), module=module)

    def run(self, words: tuple[str, ...], log: Log) -> Outcome:
        """Run a program in a container to its end.

        Raises:
            MissingTool: when the engine is not in the image.
        """
        job = self.task.job
        assert job.found is not None, "the run has found an engine"
        engine = trial.trust(Engine.from_json(job.found, environment=os.environ))
        ended = self._ended(engine, self.plan(engine, words), log)
        if ended.exit_code == contract.NO_ENGINE and (python := lent.python_told(ended.tail)):
            ended = self._ended(engine, self.plan(engine, words, self._lent(python)), log)
        if ended.exit_code == contract.NO_ENGINE:
            package = conda_build.PACKAGES.get(job.engine, "py-rattler-build")
            raise no_engine(job.image, package, lendable=not self.task.is_foreign)
        error = None if ended.ok else ended_badly(self.task, "the container", ended.exit_code, ended.tail)
        return Outcome(error=error, peak_memory=ended.peak_memory, starved=ended.memory_kills > 0)

    def hand_over(self, words: tuple[str, ...], terminal: Mapping[str, str] | None) -> int:
        """Give a program in a container the terminal."""
        job = self.task.job
        engine = container.choose(job.container, env=os.environ, executable=job.executable).engine
        assert engine is not None, "an engine was asked for"
        plan = self.plan(engine, words)
        environment = {**plan.environment, **(terminal or {})}
        plan = dataclasses.replace(plan, interactive=True, terminal=terminal is not None, environment=environment)
        with Container(engine, plan) as box:
            return box.hand_over()

    def _ended(self, engine: Engine, plan: ContainerRun, log: Log) -> Ended:
        return self._both(engine, plan, log) if self.queue else run_in(Container(engine, plan), log)

    def _lent(self, python: str) -> Mount:
        """Return kiln's own engine for an image's Python as the container sees it."""
        layout = self.task.layout
        folder = lent.place(python, layout.engines)
        if not folder.is_dir():
            title = f"fetch the engine for Python {python}"
            with Voice().step(title) as shown, done.waiting(layout.lock("engines"), seconds=done.LONG):
                lent.bring(python, layout.engines, env=os.environ, on_line=shown.line)
        return Mount(source=folder, target=contract.ENGINE_INSIDE)

    def plan(self, engine: Engine, words: tuple[str, ...], *more: Mount) -> ContainerRun:
        """Return the container in which a program of the cell's runs, with ``more`` mounts."""
        task, job = self.task, self.task.job
        assert job.image is not None, "a container has an image"
        return contract.run_inside(
            task.feedstock,
            words,
            image_name=job.image,
            environment=job.variables,
            secrets={**task.scripted, **task.secrets},
            user=User(uid=os.getuid(), gid=os.getgid()),
            limits=Limits()
            if engine.lacks
            else Limits(cores=job.cores, memory=job.memory, processes=contract.PROCESSES),
            network=task.network,
            options=(*contract.NO_ENTRY, *job.options),
            mounts=(*self._compile_mounts(), *self._python_mounts(), *more),
        )

    def _compile_mounts(self) -> tuple[Mount, ...]:
        """Return what the container sees for its compile, of which a rehearsal has none."""
        task, key = self.task, self.task.job.cache_key
        if task.job.rehearsal:
            return ()
        caches = task.layout.compile_caches
        caches.prepare(key)
        return contract.compile_mounts(task.feedstock, caches, key, task.distdir)

    def _python_mounts(self) -> tuple[Mount, ...]:
        """Return the interpreter that a rehearsal is given."""
        home = self.task.job.python_home
        return (Mount(source=Path(home), target=home),) if home else ()

    def _both(self, engine: Engine, plan: ContainerRun, log: Log) -> Ended:
        """Run the engine's container, and beside it one without the network for the scripts."""
        queue = self.queue
        assert queue is not None, "scripts run apart"
        offline.open_queue(queue)
        quiet = Container(engine, dataclasses.replace(plan, network=False, argv=offline.argv(self.seen(queue))))
        with ThreadPoolExecutor(1) as beside:
            scripts = beside.submit(run_in, quiet)
            scripts.add_done_callback(lambda _: offline.close(queue))  # nobody would run what the engine waits for
            try:
                ended = run_in(Container(engine, plan), log)
                offline.close(queue)
                wait([scripts], timeout=TIDYING)
            finally:
                offline.close(queue)
                if not scripts.done():  # the engine has died, and a script goes on: it ends with its container
                    quiet.stop()
        return together(ended, scripts.result())


def together(engine: Ended, scripts: Ended) -> Ended:
    """Return how two containers of one build ended: as the engine's did, with the memory of both."""
    peaks = [each.peak_memory for each in (engine, scripts) if each.peak_memory is not None]
    kills = engine.memory_kills + scripts.memory_kills
    return dataclasses.replace(engine, peak_memory=max(peaks, default=None), memory_kills=kills)


def run_in(container: Container, log: Log | None = None) -> Ended:
    """Run a container to its end, and remove it."""
    with container as box:
        return box.run(on_line=None if log is None else log.hear)


def no_engine(image: str | None, package: str, *, lendable: bool) -> MissingTool:
    """Return the failure of an image that has no engine; ``lendable`` is one that kiln could have lent it."""
    lacking = "it has no Python from 3.10 on either, to which kiln could lend its own"
    return MissingTool(
        f"the image {image} has no {package}",
        why=lacking if lendable else "the engine that builds in a container must be in its image",
        hint="name an image that has it with DOCKER_IMAGE ('kiln image base' makes one with rattler-build alone), take "
        "another --engine, or --container none",
    )
