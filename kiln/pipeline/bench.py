"""Where a cell's steps are worked on: the engine called with the right environment, network and patience."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kiln import build
from kiln.build.origins import Origins
from kiln.errors import BuildFailed, DownloadFailed, TestsFailed
from kiln.model.plan import BuildStep, CompileStep
from kiln.pipeline import compiling, offline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kiln.pipeline.jobs import BuildJob
    from kiln.pipeline.voice import Told

Result = TypeVar("Result")

EPOCH = "SOURCE_DATE_EPOCH"
ATTEMPTS, PAUSE = 3, 2.0  # for what the network spoils; seconds, doubled each time


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The work on one cell: ``granted`` are the steps whose scripts may use the network, by names or patterns.

    ``secrets`` are variables of the compile step alone, ``recipe_digest`` is a hash of the recipe's files.
    """

    job: BuildJob
    granted: tuple[str, ...]
    recipe_digest: str
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def execute(self, step: BuildStep | CompileStep, shown: Told) -> Path:
        """Have the engine make something, and return its package.

        Raises:
            KilnError: see `kiln.build.execute`.
        """
        secrets = self.secrets if isinstance(step, CompileStep) else {}
        title = f"build {step.output.name}" if isinstance(step, BuildStep) else "compile"
        with self.scripts_apart(title) as given:
            environment = {**self._environment(given), **secrets}

            def do() -> Path:
                return build.execute(step, environment=environment, log=None, on_line=shown.line, origins=self.origins)

            return persistent(do, shown)

    def prepare(self, step: BuildStep | CompileStep, shown: Told) -> Mapping[str, str]:
        """Have the engine make everything that a script needs; returns the places of it."""
        environment = self._environment(os.environ)
        return persistent(
            lambda: build.prepare(step, environment=environment, on_line=shown.line, origins=self.origins), shown
        )

    def inputs(self, step: BuildStep | CompileStep) -> dict[str, Any]:
        """What a step's result depends on."""
        return {
            "recipe": step.recipe,
            "files": self.recipe_digest,
            "channels": step.channels,
            "engine": version("py-rattler-build"),
            "folder": str(step.folder),
        }

    @property
    def origins(self) -> Origins:
        """Where archives of the sources may come from besides their own addresses."""
        folder = self.job.compile.get(compiling.DISTDIR)
        return Origins(folder=None if folder is None else Path(folder), mirror=self.job.mirror)

    def is_apart(self, step: str) -> bool:
        """Whether a step's script runs without the network."""
        cached = step == "compile" and bool(self.secrets)  # a cache elsewhere, which it is to use
        return self.job.queue is not None and not cached and not offline.is_granted(step, self.granted)

    @contextlib.contextmanager
    def scripts_apart(self, step: str) -> Iterator[Mapping[str, str]]:
        """Hand a step's script over to where there is no network, unless it is granted; yields its environment."""
        queue = self.job.queue
        if queue is None or not self.is_apart(step):
            yield os.environ
            return
        before = offline.handed_over(queue)
        try:
            yield offline.environment(queue, os.environ)
        except (BuildFailed, TestsFailed) as error:
            offline.explain(error, step)
            raise
        offline.require_handed_over(queue, before, step)

    def _environment(self, given: Mapping[str, str]) -> dict[str, str]:
        return {**given, "RATTLER_CACHE_DIR": str(self.job.cache), **moment()}


def moment() -> dict[str, str]:
    """Return the moment that packages are said to be of, in whole seconds: the caller's, else now.

    A package built again as of the same moment is the same; the variable is described at reproducible-builds.org.
    """
    return {EPOCH: os.environ.get(EPOCH) or str(int(time.time()))}


def persistent(do: Callable[[], Result], shown: Told) -> Result:
    """Do something, again after a pause when the network spoiled it, and return its result."""
    for attempt in range(1, ATTEMPTS):
        try:
            return do()
        except DownloadFailed as error:
            shown.note(f"attempt {attempt} of {ATTEMPTS}: {error.what}")
            shown.line(f"the network failed, attempt {attempt} of {ATTEMPTS}: {error.why or error.what}")
            time.sleep(PAUSE * 2 ** (attempt - 1))
    return do()
