"""Run a config's programs in containers, with kiln's own engine where the image has none."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from kiln.base import files, process
from kiln.base.environment import requirements_file
from kiln.base.errors import DownloadFailed, MissingTool, program_output_with_margin
from kiln.build.executor import conda_build
from kiln.build.executor import environment as executor_environment
from kiln.build.executor.conda_build import ProcessOutcome, build_process_error, job_message_prefix
from kiln.build.executor.environment import MountedFolders
from kiln.build.job.job import needs_network
from kiln.build.job.messages import StepReporter
from kiln.container.container import Container
from kiln.container.engine import Engine, choose_engine, mark_as_workable
from kiln.container.plan import ContainerLimits, ContainerProgramResult, ContainerRun, ContainerUser, Mount
from kiln.image.worker import ENGINE_HOME
from kiln.state.store import cache
from kiln.state.store.layout import RehearsalLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kiln.build.job.job import JobContext
    from kiln.build.job.messages import BuildLog


REQUIREMENTS = requirements_file("run.txt")
TAGS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")  # those of the wheels, PEP 600
MACHINES = {"64": "x86_64"}  # the machine's name, where it is not that in a subdir
WORDS = "no rattler-build in this image; kiln can mount its own for Python"
PRINT_OFFER = f'import sys; v = sys.version_info; v < (3, 10) and exit(1); print("{WORDS} %d.%d" % v[:2])'
OFFER = re.compile(rf"^{re.escape(WORDS)} (3\.\d+)$", re.MULTILINE)


def python_of_image(output: str) -> str | None:
    """Return the Python of an image without the engine, ``3.12``, from the output of the build's start."""
    match = OFFER.search(output)
    return match and match[1]


def wheel_machine_name(subdir: str) -> str:
    """Return the name of a platform's machine, as in the tags of wheels: ``aarch64``."""
    architecture = subdir.partition("-")[2]
    return MACHINES.get(architecture, architecture)


def lock_entries_for_python(lock: str, python: str, subdir: str) -> str:
    """Return the entries of a lock for a Python: pip would evaluate conditions for the Python that runs pip."""
    from packaging.markers import Marker  # most images have the engine

    from kiln.build.rehearsal.packages import PackageTarget

    values = PackageTarget(python=python).marker_environment()  # the image's, not this machine's
    environment = {**values, "platform_machine": wheel_machine_name(subdir)}
    entries = []
    for entry in re.split(r"\n(?=[^\s#])", lock):
        name, _, rest = entry.partition(" \\\n")
        spec, _, condition = name.partition(" ; ")
        if not condition or Marker(condition).evaluate(environment):
            entries.append(f"{spec} \\\n{rest}" if rest else spec)
    return "\n".join(entries)


def pip_install_command(python: str, target: Path, lock: Path, subdir: str) -> tuple[str, ...]:
    """Return the command line of kiln's own pip, for wheels of another Python, perhaps of another platform."""
    return (
        *(sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar=off"),
        *("--no-deps", "--require-hashes", "--only-binary=:all:", "--no-compile", "--implementation=cp"),
        f"--python-version={python}",
        *(f"--platform={tag}_{wheel_machine_name(subdir)}" for tag in TAGS),
        *("--target", str(target), "--requirement", str(lock)),
    )


def engine_folder(python: str, engines: Path, subdir: str) -> Path:
    """Return the folder of the engine for a Python of a platform; each lock of the wheels has its own."""
    machine = "" if subdir == "linux-64" else f"-{wheel_machine_name(subdir)}"
    return engines / f"cp{python.replace('.', '')}{machine}-{files.sha256(REQUIREMENTS)[:16]}"


def fetch_engine_wheels(
    python: str, engines: Path, subdir: str, *, env: Mapping[str, str], on_line: Callable[[str], None]
) -> None:
    """Fetch the engine for a Python of a platform, once for all configs and runs; ``env`` is pip's.

    Callers hold a lock.
    """
    folder = engine_folder(python, engines, subdir)
    if folder.is_dir():
        return
    engines.mkdir(parents=True, exist_ok=True)
    files.remove_part_files(engines)
    lock = engines / f"{folder.name}.txt"
    files.write_text(lock, lock_entries_for_python(REQUIREMENTS.read_text(encoding="utf-8"), python, subdir))
    with files.full_disk_as_kiln_error(engines), files.atomic_replacement(folder) as part:
        result = process.run(pip_install_command(python, part, lock, subdir), env=env, on_line=on_line)
        if not result.ok:
            raise DownloadFailed(
                f"kiln's own engine for Python {python}, which the image lacks, cannot be fetched",
                why=f"pip said\n{program_output_with_margin(result.tail)}",
                hint="check that pip's index can be reached, name an image that has the engine with DOCKER_IMAGE "
                "('kiln image base' makes one), or --container none",
            )


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
    "$python" -c '{PRINT_OFFER}' 2>/dev/null && break
done
exit {conda_build.NO_ENGINE}
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
        return executor_environment.CACHE_INSIDE

    @property
    def distdir(self) -> Path | None:
        """The folder of downloads."""
        return None if self.task.job.options.distdir is None else executor_environment.DISTDIR_INSIDE

    @property
    def script_queue_folder(self) -> Path | None:
        """The folder that passes on scripts, where the engine needs the network and scripts have none."""
        task, job = self.task, self.task.job
        if task.uses_other_engine or job.options.rehearsal or job.options.network == "always":
            return None
        return task.folder / "scripts" if needs_network(task.rendered) or task.compiles_remotely else None

    def path_inside(self, path: Path) -> Path:
        """Return a path of the feedstock as the container sees it."""
        return executor_environment.container_path(path, self.task.feedstock)

    def job_command(self, job_file: Path) -> tuple[str, ...]:
        """Return the command that runs a job file, by the first Python of the image with the engine."""
        return ("sh", "-c", START, "kiln", str(self.path_inside(job_file)), process.Program.BUILD.main_text)

    def run_program(self, words: tuple[str, ...], log: BuildLog, *, reads: tuple[Path, ...] = ()) -> ProcessOutcome:
        """Run a program in a container to its end.

        Raises:
            MissingTool: when the engine is not in the image.
        """
        job = self.task.job
        assert job.engine_data is not None, "the run has chosen an engine"
        engine = mark_as_workable(Engine.from_json(job.engine_data, environment=self.task.environment))
        folders = self.mounted_folders(reads)
        outcome = self._run_containers(engine, self.plan_container(engine, words, folders), log)
        if outcome.exit_code == conda_build.NO_ENGINE and (python := python_of_image(outcome.tail)):
            outcome = self._run_containers(
                engine, self.plan_container(engine, words, folders, self._injected_engine_mount(python)), log
            )
        if outcome.exit_code == conda_build.NO_ENGINE:
            package = conda_build.PACKAGES.get(job.options.engine, "py-rattler-build")
            raise missing_engine_error(job.image, package, lendable=not self.task.uses_other_engine)
        error = None if outcome.ok else build_process_error(self.task, "the container", outcome.exit_code, outcome.tail)
        return ProcessOutcome(error=error, peak_memory=outcome.peak_memory, starved=outcome.memory_kills > 0)

    def run_on_terminal(self, words: tuple[str, ...], terminal: Mapping[str, str] | None) -> int:
        """Run a program in a container on the terminal."""
        job = self.task.job
        engine = choose_engine(job.container, env=self.task.environment, executable=job.options.executable).engine
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
        folder = engine_folder(python, layout.engines, subdir)
        if not folder.is_dir():
            title = f"fetch the engine for Python {python}"
            with (
                StepReporter().step(title) as step,
                cache.hold_lock(layout.common_lock_file("engines"), seconds=cache.LONG),
            ):
                fetch_engine_wheels(
                    python, layout.engines, subdir, env=self.task.environment, on_line=step.pass_on_line
                )
        return Mount(source=folder, target=executor_environment.ENGINE_INSIDE)

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
            environment={**job.variables, **executor_environment.INSIDE},
            secrets={**task.script_variables, **task.compile_secrets},
            user=ContainerUser(uid=os.getuid(), gid=os.getgid()),
            limits=ContainerLimits()
            if engine.lacks
            else ContainerLimits(
                cores=min(job.cores, engine.cores or job.cores),
                memory=job.memory,
                processes=executor_environment.PROCESSES,
            ),
            network=task.has_network,
            workdir=executor_environment.HOME,
            options=(*executor_environment.NO_ENTRY, *job.options.run_arguments),
            mounts=(
                *executor_environment.script_container_mounts(task.feedstock, task.rendered, folders),
                *executor_environment.engine_container_mounts(task.feedstock, task.rendered.config, folders),
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
        with executor_environment.shared_script_queue(queue) as close, ThreadPoolExecutor(1) as pool:
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
        script_mounts = executor_environment.script_container_mounts(
            self.task.feedstock, self.task.rendered, self.mounted_folders()
        )
        loop = executor_environment.script_loop_command(self.path_inside(queue))  # each script has its own variables
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
