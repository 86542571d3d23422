"""Run the recipe's own build step at most once, monitor its Bazel, and keep its work directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import bazel, build, files
from kiln.builder.process import tidied
from kiln.errors import BuildFailed
from kiln.executor import network_isolation
from kiln.store import compile_cache

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.builder.engine_calls import EngineCalls
    from kiln.job.messages import ReportedStep
    from kiln.model.plan import CompileStep
    from kiln.model.rendered import Rendered
    from kiln.store.step_cache import StepCache, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """The compile of one config, which all its outputs share; ``sources`` are the channels that it needs."""

    rendered: Rendered
    sources: tuple[str, ...]
    engine: EngineCalls
    step_cache: StepCache[ReportedStep]

    def run(self) -> StepResult | None:
        """Run the step, or reuse its result; its work directory is kept for the outputs.

        None for a recipe that is a single package.
        """
        step = self.plan(self.folder)
        if step is None:
            return None

        def do(display: ReportedStep) -> tuple[Iterable[Path], dict[str, Any]]:
            package = self._watched(step, display)
            return [package], {"work": (step.folder / "work_directory").read_text().strip()}

        result = self.step_cache.once("compile", self.engine.inputs(step), do)
        if not Path(result.detail["work"]).is_dir():
            if result.outdated or "compile" in self.step_cache.settled:
                raise self.step_cache.unfinished("compile")
            files.remove(step.folder)  # removes the package too, so that the step runs again
            return self.run()
        return result

    @property
    def folder(self) -> Path:
        """The folder of the step."""
        return self.engine.job.folder / "compile"

    def plan(self, folder: Path) -> CompileStep | None:
        """Plan the step in a folder; None for a recipe that is a single package."""
        return build.plan_compile(
            self.rendered,
            recipe_folder=self.engine.job.recipe,
            folder=folder,
            channels=self.sources,
            settings=self.engine.job.folder / "compile.env",
            secrets=tuple(self.engine.secrets),
        )

    def write_settings(self) -> Path:
        """Write the step's settings, and return the file for its Bazel's events."""
        job = self.engine.job
        events = job.folder / "bazel-events.json"
        files.remove(events)
        files.write_text(
            job.folder / "compile.env", compile_cache.settings({**job.compile, compile_cache.EVENTS: str(events)})
        )
        return events

    def _watched(self, step: CompileStep, display: ReportedStep) -> Path:
        """Run the step, and monitor its Bazel by the events that it writes."""
        job, events = self.engine.job, self.write_settings()
        on_host = job.queue is None
        with (
            tidied(job, step.folder),
            bazel.watched(
                events, on_progress=display.progress, stall=job.options.stall, same_container=on_host
            ) as watch,
        ):
            try:
                package = self.engine.execute(step, display)
            except BuildFailed as error:
                failure = watch.explained(error)
                if self.engine.is_apart("compile"):
                    network_isolation.explain(failure, "compile")
                raise failure from error
            if report := watch.report():
                display.compiled(report)
            return package
