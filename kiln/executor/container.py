"""Run a config's programs in containers: one for the engine, and a second one without the network for scripts."""

from __future__ import annotations

import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from kiln.build import conda_build_command
from kiln.container import engine_workarounds
from kiln.container.container import Container
from kiln.container.engine import Engine, choose_engine
from kiln.errors import MissingTool
from kiln.executor import conda_forge_variables_and_paths, engine_wheels_for_images, mounts, network_isolation
from kiln.executor.build_process_outcome import ProcessOutcome, build_process_error, job_message_prefix
from kiln.executor.mounts import MountedFolders
from kiln.image.build_container_image import ENGINE_HOME
from kiln.job.messages import StepReporter
from kiln.job.required_channels_and_network import needs_network
from kiln.model.container import ContainerLimits, ContainerProgramResult, ContainerRun, ContainerUser, Mount
from kiln.operating_system import users
from kiln.store import build_cache
from kiln.store.rehearsal_layout import RehearsalLayout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.job.job_context import JobContext
    from kiln.job.log import BuildLog

TIDYING = 30.0  # seconds until the loop over scripts is stopped

# kiln's own environment in its base image, or the first Python of the image with the engine; loading it takes long.
# Without any, print the version of a Python that can use kiln's own engine.
START = f"""
for python in {ENGINE_HOME}/bin/python /opt/conda/bin/python python3; do
    if "$python" -c 'from importlib.util import find_spec as f; exit(not (f("rattler") and f("rattler_build")))' \\
        2>/dev/null; then
        export PATH="$(dirname "$(command -v "$python")"):$PATH"
        exec "$python" -c "$2" "$1"
    fi
done
for python in /opt/conda/bin/python python3; do
    "$python" -c '{engine_wheels_for_images.PRINT_OFFER}' 2>/dev/null && break
done
exit {conda_build_command.NO_ENGINE}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerExecutor:
    """Runs the programs of one config in containers."""

    task: JobContext
    on_host: ClassVar[bool] = False

    @property
    def package_cache(self) -> Path:
        """The cache of fetched packages: the config's own where scripts run in parallel, and could write it."""
        return (
            self.task.folder / "cache" if self.script_queue_folder is None else self.task.layout.container_package_cache
        )

    @property
    def compile_cache(self) -> Path:
        """Bazel's cache for the config's compile."""
        return conda_forge_variables_and_paths.CACHE_INSIDE

    @property
    def distdir(self) -> Path | None:
        """The folder of downloads."""
        return None if self.task.job.options.distdir is None else conda_forge_variables_and_paths.DISTDIR_INSIDE

    @property
    def script_queue_folder(self) -> Path | None:
        """The folder that passes on scripts, where the engine needs the network and scripts have none."""
        task, job = self.task, self.task.job
        if task.uses_other_engine or job.options.rehearsal or job.options.network == "always":
            return None
        return task.folder / "scripts" if needs_network(task.rendered) or task.compile_secrets else None

    def path_inside(self, path: Path) -> Path:
        """Return a path of the feedstock as the container sees it."""
        return conda_forge_variables_and_paths.container_path(path, self.task.feedstock)

    def job_command(self, job_file: Path) -> tuple[str, ...]:
        """Return the command that runs a job file, by the first Python of the image with the engine."""
        main = conda_forge_variables_and_paths.MAIN.format(module="builder.job_main")
        return ("sh", "-c", START, "kiln", str(self.path_inside(job_file)), main)

    def run_program(self, words: tuple[str, ...], log: BuildLog, *, reads: tuple[Path, ...] = ()) -> ProcessOutcome:
        """Run a program in a container to its end.

        Raises:
            MissingTool: when the engine is not in the image.
        """
        job = self.task.job
        assert job.engine_data is not None, "the run has chosen an engine"
        engine = engine_workarounds.mark_as_workable(Engine.from_json(job.engine_data, environment=os.environ))
        folders = self.mounted_folders(reads)
        outcome = self._run_containers(engine, self.plan_container(engine, words, folders), log)
        if outcome.exit_code == conda_build_command.NO_ENGINE and (
            python := engine_wheels_for_images.python_of_image(outcome.tail)
        ):
            outcome = self._run_containers(
                engine, self.plan_container(engine, words, folders, self._injected_engine_mount(python)), log
            )
        if outcome.exit_code == conda_build_command.NO_ENGINE:
            package = conda_build_command.PACKAGES.get(job.options.engine, "py-rattler-build")
            raise missing_engine_error(job.image, package, lendable=not self.task.uses_other_engine)
        error = None if outcome.ok else build_process_error(self.task, "the container", outcome.exit_code, outcome.tail)
        return ProcessOutcome(error=error, peak_memory=outcome.peak_memory, starved=outcome.memory_kills > 0)

    def run_on_terminal(self, words: tuple[str, ...], terminal: Mapping[str, str] | None) -> int:
        """Run a program in a container on the terminal."""
        job = self.task.job
        engine = choose_engine(job.container, env=os.environ, executable=job.options.executable).engine
        assert engine is not None, "an engine was requested"
        plan = self.plan_container(engine, words, self.mounted_folders())
        environment = {**plan.environment, **(terminal or {})}
        plan = dataclasses.replace(plan, interactive=True, terminal=terminal is not None, environment=environment)
        with Container(engine, plan) as running:
            return running.run_on_terminal()

    def _injected_engine_mount(self, python: str) -> Mount:
        """Return the mount of kiln's own engine for an image's Python, fetched if it is missing."""
        layout = self.task.layout
        subdir = self.task.rendered.config.build_platform
        folder = engine_wheels_for_images.engine_folder(python, layout.engines, subdir)
        if not folder.is_dir():
            title = f"fetch the engine for Python {python}"
            with (
                StepReporter().step(title) as step,
                build_cache.hold_lock(layout.common_lock_file("engines"), seconds=build_cache.LONG),
            ):
                engine_wheels_for_images.fetch_engine_wheels(
                    python, layout.engines, subdir, env=os.environ, on_line=step.pass_on_line
                )
        return Mount(source=folder, target=conda_forge_variables_and_paths.ENGINE_INSIDE)

    def plan_container(
        self, engine: Engine, words: tuple[str, ...], folders: MountedFolders, *more: Mount
    ) -> ContainerRun:
        """Return the container in which a program of the config's runs, with ``more`` mounts."""
        task, job = self.task, self.task.job
        assert job.image is not None, "a container has an image"
        return ContainerRun(
            image=job.image,
            argv=words,
            platform=job.image_platform,
            environment={**job.variables, **conda_forge_variables_and_paths.INSIDE},
            secrets={**task.caller_script_variables, **task.compile_secrets},
            user=ContainerUser(uid=users.uid(), gid=users.gid()),
            limits=ContainerLimits()
            if engine.lacks
            else ContainerLimits(
                cores=min(job.cores, engine.cores or job.cores),
                memory=None if job.memory is None else min(job.memory, engine.memory or job.memory),
                processes=conda_forge_variables_and_paths.PROCESSES,
            ),
            network=task.has_network,
            workdir=conda_forge_variables_and_paths.HOME,
            options=(*conda_forge_variables_and_paths.NO_ENTRY, *job.options.run_arguments),
            mounts=(
                *mounts.script_container_mounts(task.feedstock, task.rendered, folders),
                *mounts.engine_container_mounts(task.feedstock, task.rendered.config, folders),
                *((Mount(source=Path(home), target=home),) if (home := job.python_home) else ()),
                *more,
            ),
        )

    def mounted_folders(self, reads: tuple[Path, ...] = ()) -> MountedFolders:
        """Return the folders that the container uses, and create missing ones; a rehearsal has no compile cache."""
        task, key = self.task, self.task.job.cache_key
        if task.job.options.rehearsal:
            return MountedFolders(
                work=task.folder, packages=self.package_cache, wheels=RehearsalLayout(config=task.folder).wheels
            )
        caches = task.layout.compile_caches
        caches.create_folder(key)
        return MountedFolders(
            work=task.folder,
            packages=self.package_cache,
            compile_cache=caches.folder(key),
            distdir=task.job.options.distdir,
            shared_packages=reads,
        )

    def _run_containers(self, engine: Engine, plan: ContainerRun, log: BuildLog) -> ContainerProgramResult:
        """Run the engine's container, and with a queue for scripts in parallel one without the network for these."""
        queue, engine_container = self.script_queue_folder, Container(engine, plan)
        mark = job_message_prefix(self.task)
        if queue is None:
            return run_and_remove_container(engine_container, log, mark=mark)
        with network_isolation.shared_script_queue(queue) as close, ThreadPoolExecutor(1) as pool:
            script_container = Container(engine, self._script_container(plan, queue))
            scripts = pool.submit(run_and_remove_container, script_container)
            scripts.add_done_callback(lambda _: close())  # else the engine would wait forever for its script
            try:
                outcome = run_and_remove_container(engine_container, log, mark=mark)
                close()
                wait([scripts], timeout=TIDYING)
            finally:
                close()
                if not scripts.done():  # the engine has died while a script runs: the script ends with its container
                    script_container.stop()
            return combined_container_result(outcome, scripts.result())

    def _script_container(self, plan: ContainerRun, queue: Path) -> ContainerRun:
        """Return the container of the scripts: without the network, and without the engine's packages."""
        script_mounts = mounts.script_container_mounts(self.task.feedstock, self.task.rendered, self.mounted_folders())
        loop = network_isolation.script_loop_command(self.path_inside(queue))  # each script has its own variables
        return dataclasses.replace(plan, network=False, mounts=script_mounts, argv=loop, secrets={})


def combined_container_result(
    engine: ContainerProgramResult, scripts: ContainerProgramResult
) -> ContainerProgramResult:
    """Return the result of two containers of one build: the engine's, with the memory of both."""
    peaks = [result.peak_memory for result in (engine, scripts) if result.peak_memory is not None]
    kills = engine.memory_kills + scripts.memory_kills
    return dataclasses.replace(engine, peak_memory=max(peaks, default=None), memory_kills=kills)


def run_and_remove_container(
    container: Container, log: BuildLog | None = None, *, mark: str = ""
) -> ContainerProgramResult:
    """Run a container to its end, and remove it."""
    with container as running:
        return running.run(on_line=None if log is None else log.record_and_pass_on_line, own=mark)


def missing_engine_error(image: str | None, package: str, *, lendable: bool) -> MissingTool:
    """Return the error of an image without the engine; ``lendable`` when kiln's own could have been mounted."""
    no_python = "nor a Python from 3.10 on, for which kiln could mount its own"
    return MissingTool(
        f"the image {image} has no {package}",
        why=no_python if lendable else "the engine that builds in a container must be in its image",
        hint="name an image that has it with DOCKER_IMAGE ('kiln image base' makes one with rattler-build alone), use "
        "another --engine, or --container none",
    )
