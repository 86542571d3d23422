"""A cell's programs on this machine itself."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import command
from kiln.build import conda_build
from kiln.errors import MissingTool
from kiln.pipeline import contract
from kiln.pipeline.listen import Watched
from kiln.pipeline.process import memory_kills
from kiln.pipeline.site import Outcome, ended_badly

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.pipeline.listen import Log
    from kiln.pipeline.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A `kiln.pipeline.site.Site`: this machine."""

    task: Task

    @property
    def on_host(self) -> bool:
        """It is."""
        return True

    @property
    def cache(self) -> Path:
        """Bazel's cache for the cell's compile."""
        return self.task.layout.compile_caches.folder(self.task.job.cache_key)

    @property
    def distdir(self) -> Path | None:
        """The folder of downloads."""
        return self.task.distdir

    @property
    def queue(self) -> None:
        """All scripts run where the engine runs."""
        return

    def seen(self, path: Path) -> Path:
        """Return the path."""
        return path

    def start(self, job_file: Path, module: str) -> tuple[str, ...]:
        """Return the program that does what a job file says."""
        return (sys.executable, "-c", contract.MAIN.format(module=module), str(job_file))

    def run(self, words: tuple[str, ...], log: Log) -> Outcome:
        """Run a program to its end.

        Raises:
            MissingTool: when the engine is not on this machine.
        """
        environment = {**self.environment, **self.task.scripted, **self.task.secrets}
        secrets = tuple(self.task.secrets.values())
        kills = memory_kills()
        with Watched(self.task.job.memory) as watched:
            ended = command.run(words, env=environment, cwd=contract.HOUSE, on_line=log.hear, secrets=secrets)
        if self.task.is_foreign and ended.exit_code == contract.NO_ENGINE:
            raise no_engine(self.task.job.engine, environment["PATH"])
        error = None if ended.ok else ended_badly(self.task, "the build's process", ended.exit_code, ended.tail)
        starved = watched.exceeded or memory_kills() > kills
        return Outcome(error=error, peak_memory=watched.most or None, starved=starved)

    def hand_over(self, words: tuple[str, ...], terminal: Mapping[str, str] | None) -> int:
        """Give a program the terminal."""
        return command.hand_over(words, env={**self.environment, **(terminal or {})}, cwd=self.task.feedstock.root)

    @property
    def environment(self) -> dict[str, str]:
        """What a build finds in its environment, kiln's own programs among them."""
        given = self.task.job.environment
        path = f"{Path(sys.executable).parent}{os.pathsep}{given.get('PATH', os.defpath)}"
        return {**given, **self.task.job.variables, "PATH": path}


def no_engine(engine: str, path: str) -> MissingTool:
    """Return the failure of a machine that has no engine."""
    return MissingTool(
        f"{conda_build.PROGRAMS[engine]} is not on this machine",
        why=f"PATH is {path!r}",
        hint=f"install the package {conda_build.PACKAGES[engine]}, or take another --engine",
    )
