"""The recipe's own build step, hours of it: run at most once, its Bazel watched, its work directory kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import bazel, build, files
from kiln.errors import BuildFailed
from kiln.pipeline import compiling, offline
from kiln.pipeline.building import tidied

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.model.plan import CompileStep
    from kiln.model.rendered import Rendered
    from kiln.pipeline.bench import Bench
    from kiln.pipeline.memo import Made, Memo
    from kiln.pipeline.voice import Told


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """The compile of one cell, which all its outputs share; ``sources`` are the channels that it needs."""

    rendered: Rendered
    sources: tuple[str, ...]
    bench: Bench
    memo: Memo[Told]

    def run(self) -> Made | None:
        """Run the step, or find what it left: its work directory stays for the outputs.

        None for a recipe that is a single package.
        """
        step = self.plan(self.folder)
        if step is None:
            return None

        def do(shown: Told) -> tuple[Iterable[Path], dict[str, Any]]:
            package = self._watched(step, shown)
            return [package], {"work": (step.folder / "work_directory").read_text().strip()}

        made = self.memo.once("compile", self.bench.inputs(step), do)
        if not Path(made.detail["work"]).is_dir():
            if made.outdated or "compile" in self.memo.settled:
                raise self.memo.unfinished("compile")
            files.remove(step.folder)  # the package alone is left, which will not be found then
            return self.run()
        return made

    @property
    def folder(self) -> Path:
        """Where the step runs."""
        return self.bench.job.folder / "compile"

    def plan(self, folder: Path) -> CompileStep | None:
        """Plan the step in a folder; None for a recipe that is a single package."""
        return build.plan_compile(
            self.rendered,
            recipe_folder=self.bench.job.recipe,
            folder=folder,
            channels=self.sources,
            settings=self.bench.job.folder / "compile.env",
            secrets=tuple(self.bench.secrets),
        )

    def write_settings(self) -> Path:
        """Tell the step of its place, and return where its Bazel is to write its events."""
        job = self.bench.job
        events = job.folder / "bazel-events.json"
        files.remove(events)
        files.write_text(job.folder / "compile.env", compiling.settings({**job.compile, compiling.EVENTS: str(events)}))
        return events

    def _watched(self, step: CompileStep, shown: Told) -> Path:
        """Run the step, its Bazel followed by the events that it writes."""
        job, events = self.bench.job, self.write_settings()
        with (
            tidied(job, step.folder),
            bazel.watched(events, tell=shown.progress, stall=job.stall, beside=job.queue is None) as watch,
        ):
            try:
                package = self.bench.execute(step, shown)
            except BuildFailed as error:
                told = watch.explained(error)
                if self.bench.is_apart("compile"):
                    offline.explain(told, "compile")
                raise told from error
            if report := watch.report():
                shown.compiled(report)
            return package
