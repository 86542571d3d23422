"""Run a build step that outputs share at most once, monitor its Bazel, and keep its work directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import files
from kiln.bazel import interrupt_script
from kiln.build import bazel_external_repository_record
from kiln.build.plan import plan_compile
from kiln.build.run_exports_unknown_to_engine import run_exports_of_package
from kiln.builder.job_main import remove_folders_on_failure
from kiln.errors import BuildFailed, SystemFault
from kiln.executor import network_isolation
from kiln.model.build_and_test_steps import CompileStep, StagedFiles
from kiln.recipe_script_launch_commands import export_lines
from kiln.store import bazel_variables_of_compile_scripts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.builder.config_build import ConfigBuilder
    from kiln.builder.step_cache import StepResult
    from kiln.job.messages import ReportedStep
    from kiln.model.rendered import Staging


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileStepRunner:
    """A build step of one config, which outputs share."""

    builder: ConfigBuilder
    staging: Staging

    def run(self) -> StepResult:
        """Run the step, or reuse its result; its work directory is kept for the outputs."""
        step, title = self.plan(self.folder), self.staging.title

        def run_step(display: ReportedStep) -> tuple[Iterable[Path], dict[str, Any]]:
            package = self._run_with_retry(step, display)
            work = (step.folder / "work_directory").read_text(encoding="utf-8").strip()
            return [package], {
                "work": work,
                "repositories": bazel_external_repository_record.read_repository_record(step.folder),
            }

        result = self.builder.step_cache.run_or_reuse(title, self.cache_key_inputs(step), run_step)
        if not Path(result.detail["work"]).is_dir():
            if result.outdated or title in self.builder.step_cache.settled:
                raise self.builder.step_cache.unfinished_step_error(title)
            files.remove(step.folder)  # removes the package too, so that the step runs again
            return self.run()
        return result

    @property
    def folder(self) -> Path:
        """The folder of the step."""
        return self.builder.job.folder / self.staging.title.replace(" ", "-")

    def staged_files(self, result: StepResult) -> StagedFiles:
        """Return what outputs take over from the step."""
        (package,) = result.paths
        inherited = run_exports_of_package(package) if self.staging.copied else ()
        return StagedFiles(folder=self.folder, run_exports=inherited)

    def plan(self, folder: Path) -> CompileStep:
        """Plan the step in a folder."""
        return plan_compile(
            self.builder.rendered,
            self.staging,
            recipe_folder=self.builder.job.recipe,
            folder=folder,
            channels=self.builder.sources,
            settings=self.builder.job.folder / "compile.env",
            secrets=tuple(self.builder.engine.secrets),
            forge=self.builder.job.packages,
        )

    def cache_key_inputs(self, step: CompileStep) -> dict[str, Any]:
        """Return the inputs that decide the step's result."""
        return {**self.builder.engine.inputs_that_decide_result(step), **self.builder.rehearsal_packages_as_inputs}

    def write_compile_settings(self) -> Path:
        """Write the step's settings, and return the file for its Bazel's events."""
        from kiln.bazel.watch import EVENTS, PROFILE, earlier_event_files  # most configs have no compile step

        job = self.builder.job
        events, profile = job.folder / f"bazel-{EVENTS}", job.folder / f"bazel-{PROFILE}"
        for path in (events, profile, *earlier_event_files(events), *earlier_event_files(profile)):
            files.remove(path)
        variables = {
            bazel_variables_of_compile_scripts.EVENTS: str(events),
            bazel_variables_of_compile_scripts.PROFILE: str(profile),
        }
        text = "".join(f"{line}\n" for line in export_lines({**job.compile, **variables}))
        watcher = (
            interrupt_script.interrupt_bazel_lines(job.folder / interrupt_script.NAME) if job.options.has_budget else ""
        )
        files.write_text(job.folder / "compile.env", text + watcher)
        return events

    def _run_with_retry(self, step: CompileStep, display: ReportedStep) -> Path:
        """Run the step, once more where the machine was too busy for Bazel's server to start."""
        try:
            return self._run_attempt(step, display)
        except SystemFault as error:
            if not isinstance(error.__cause__, BuildFailed):  # not what the script has met
                raise
            display.add_note("Bazel's server did not start in time, attempt 2 of 2")
            display.pass_on_line(f"attempt 2 of 2, as nothing of the recipe has failed: {error.what}")
            files.remove(step.folder)
            return self._run_attempt(step, display)

    def _run_attempt(self, step: CompileStep, display: ReportedStep) -> Path:
        """Run the step, and monitor its Bazel by the events that it writes."""
        from kiln.bazel.watch import earlier_event_files

        events = self.write_compile_settings()
        try:
            with remove_folders_on_failure(self.builder.job, step.folder):
                return self._build_while_monitored(step, display, events)
        finally:
            if self.builder.engine.secrets:  # Bazel writes all of its flags into the events
                for path in (events, *earlier_event_files(events)):
                    files.remove(path)

    def _build_while_monitored(self, step: CompileStep, display: ReportedStep, events: Path) -> Path:
        from kiln.bazel.watch import watch_build

        job = self.builder.job
        on_host = job.queue is None
        with watch_build(
            events, on_progress=display.report_progress, stall=job.options.stall, same_container=on_host
        ) as watch:
            try:
                package = self.builder.engine.build_package_with_retries(step, display)
            except BuildFailed as error:
                self.builder.step_cache.require_budget_left()
                failure = watch.explained_error(error)
                if self.builder.engine.runs_without_network(step.title):
                    network_isolation.add_network_hint(failure, step.title)
                raise failure from error
            if report := watch.compile_report():
                display.record_compile_report(report)
            return package
