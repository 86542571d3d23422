"""Run a config's programs on this host."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from kiln.base import process
from kiln.base.errors import MissingTool
from kiln.base.process_table import kill_descendants, oom_kill_count, process_tree_memory
from kiln.base.system import machine
from kiln.build.executor import conda_build
from kiln.build.executor.conda_build import ProcessOutcome, build_process_error, job_message_prefix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.build.job.job import JobContext
    from kiln.build.job.messages import BuildLog


LOOK = 1.0  # seconds between two measurements of memory


class MemoryLimitMonitor:
    """Measures the memory of this process's descendants every second, and kills them beyond ``limit`` bytes.

    It bounds memory where no container does; a build may exceed the limit for up to a second.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.most = 0
        self.limit = limit
        self.exceeded = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._kill_beyond_memory_limit, daemon=True)

    def _kill_beyond_memory_limit(self) -> None:
        while not self._over.wait(LOOK):
            size = process_tree_memory(os.getpid())
            self.most = max(self.most, size)
            if self.limit is not None and size > self.limit:
                self.exceeded = True
                kill_descendants(os.getpid())

    def __enter__(self) -> MemoryLimitMonitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostExecutor:
    """Runs the programs of one config on this host, where paths need no translation."""

    task: JobContext
    on_host: ClassVar[bool] = True
    script_queue_folder: ClassVar[None] = None  # all scripts run where the engine runs

    @property
    def package_cache(self) -> Path:
        """The cache of fetched packages."""
        return self.task.layout.package_cache

    @property
    def compile_cache(self) -> Path:
        """Bazel's cache for the config's compile."""
        return self.task.layout.compile_caches.folder(self.task.job.cache_key)

    @property
    def distdir(self) -> Path | None:
        """The folder of downloads."""
        return self.task.job.options.distdir

    def path_inside(self, path: Path) -> Path:
        """Return the path, which programs on the host see unchanged."""
        return path

    def job_command(self, job_file: Path) -> tuple[str, ...]:
        """Return the command that runs a job file."""
        return process.Program.BUILD.main_command(str(job_file))

    def run_program(self, words: tuple[str, ...], log: BuildLog, *, reads: tuple[Path, ...] = ()) -> ProcessOutcome:  # noqa: ARG002
        """Run a program to its end.

        Raises:
            MissingTool: when the engine is not on this machine.
        """
        environment = {**self.environment, **self.task.script_variables, **self.task.compile_secrets}
        kills = oom_kill_count()
        with MemoryLimitMonitor(self.task.job.memory) as monitor:
            result = process.run(
                words,
                env=environment,
                cwd=machine.PACKAGE_ROOT,
                on_line=log.record_and_pass_on_line,
                own=job_message_prefix(self.task),
            )
        if self.task.uses_other_engine and result.exit_code == conda_build.NO_ENGINE:
            raise missing_engine_error(self.task.job.options.engine, environment["PATH"])
        error = (
            None if result.ok else build_process_error(self.task, "the build's process", result.exit_code, result.tail)
        )
        starved = monitor.exceeded or oom_kill_count() > kills
        return ProcessOutcome(error=error, peak_memory=monitor.most or None, starved=starved)

    def run_on_terminal(self, words: tuple[str, ...], terminal: Mapping[str, str] | None) -> int:
        """Run a program on the terminal."""
        return process.run_on_terminal(
            words, env={**self.environment, **(terminal or {})}, cwd=self.task.feedstock.root
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a build, with kiln's own programs on the PATH."""
        environment = self.task.job.environment
        path = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
        return {**environment, **self.task.job.variables, "PATH": path}


def missing_engine_error(engine: str, path: str) -> MissingTool:
    """Return the error of a host without the engine."""
    return MissingTool(
        f"{conda_build.PROGRAMS[engine]} is not on this machine",
        why=f"PATH is {path!r}",
        hint=f"install the package {conda_build.PACKAGES[engine]}, or use another --engine",
    )
