"""What the places have in common in which a cell's programs run: this machine itself, and a container."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kiln.build import faults
from kiln.errors import excerpt
from kiln.pipeline import foreign

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.errors import KilnError
    from kiln.pipeline.listen import Log
    from kiln.pipeline.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a building process ended: ``error`` is None when it wrote its result, ``peak_memory`` in bytes.

    ``starved`` is whether processes of it were ended for want of memory.
    """

    error: KilnError | None
    peak_memory: int | None
    starved: bool


class Site(Protocol):
    """A place in which programs of one cell run."""

    @property
    def on_host(self) -> bool:
        """Whether it is this machine itself, where paths are what they are."""

    @property
    def cache(self) -> Path:
        """Bazel's cache for the cell's compile, as programs there see it."""

    @property
    def distdir(self) -> Path | None:
        """The folder of downloads, as programs there see it."""

    @property
    def queue(self) -> Path | None:
        """Where scripts are handed over that run without the network, as this process sees it; None where all may."""

    def seen(self, path: Path) -> Path:
        """Return a path of the feedstock's as programs there see it."""

    def start(self, job_file: Path, module: str) -> tuple[str, ...]:
        """Return the program that does what a job file says, by the ``main`` of one of this package's modules."""

    def run(self, words: tuple[str, ...], log: Log) -> Outcome:
        """Run a program there to its end.

        Raises:
            MissingTool: when the engine is missing there.
        """

    def hand_over(self, words: tuple[str, ...], terminal: Mapping[str, str] | None) -> int:
        """Give a program there the terminal, whose variables are given, None when it is none; returns its exit code."""


def ended_badly(task: Task, who: str, exit_code: int, tail: str) -> KilnError:
    """Return the failure of a building process that could not even say why it failed: on a full disk, for one.

    Of another engine it is what that says.
    """
    if task.is_foreign and exit_code > 0:
        return foreign.failure(task.job.engine, exit_code, tail, Path(task.job.log))
    kind = faults.kind("", tail)
    return kind.error(f"{who} ended with exit code {exit_code}", why=f"it said\n{excerpt(tail)}", hint=kind.hint)
