"""The interface of executors, which run a config's programs on this host or in a container."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kiln.build import engine_failures
from kiln.errors import with_margin
from kiln.executor import conda_build_run
from kiln.job.messages import MARK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.errors import KilnError
    from kiln.job.job_context import Task
    from kiln.job.log import BuildLog


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOutcome:
    """The outcome of a build process: ``error`` is None when it wrote its result, ``peak_memory`` is in bytes.

    ``starved`` when the kernel killed processes of it because memory ran out.
    """

    error: KilnError | None
    peak_memory: int | None
    starved: bool


class Executor(Protocol):
    """Runs the programs of one config."""

    @property
    def on_host(self) -> bool:
        """True on this host, where paths need no translation."""

    @property
    def packages(self) -> Path:
        """The cache of fetched packages, as this process sees it."""

    @property
    def compile_cache(self) -> Path:
        """Bazel's cache for the config's compile, as the programs see it."""

    @property
    def distdir(self) -> Path | None:
        """The folder of downloads, as the programs see it."""

    @property
    def queue(self) -> Path | None:
        """The folder that passes on scripts to run without the network, seen from this process; None without one."""

    def inside(self, path: Path) -> Path:
        """Return a path of the feedstock as the programs see it."""

    def start(self, job_file: Path, module: str) -> tuple[str, ...]:
        """Return the command that runs the ``main`` of a module with a job file."""

    def run(self, words: tuple[str, ...], log: BuildLog, *, reads: tuple[Path, ...] = ()) -> ProcessOutcome:
        """Run a program to its end; it reads these files of the channel.

        Raises:
            MissingTool: when the engine is missing.
        """

    def run_on_terminal(self, words: tuple[str, ...], terminal: Mapping[str, str] | None) -> int:
        """Run a program on the terminal, None without one, and return its exit code."""


def message_mark(task: Task) -> str:
    """Return the first character of the build process's messages; empty for another engine, which sends none."""
    return "" if task.is_foreign else MARK


def process_failure(task: Task, name: str, exit_code: int, tail: str) -> KilnError:
    """Return the error of a build process that ended without a result: on a full disk, for example.

    For another engine it is that engine's own error.
    """
    if task.is_foreign and exit_code > 0:
        return conda_build_run.failure(task.job.options.engine, exit_code, tail, Path(task.job.log))
    kind = engine_failures.kind("", tail)
    return kind.error(f"{name} ended with exit code {exit_code}", why=f"it said\n{with_margin(tail)}", hint=kind.hint)
