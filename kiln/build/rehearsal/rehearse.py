"""Rehearse a config in a separate process: all steps of a build, with packages made of wheels and of this machine.

With upstream's wheel instead of the compile where the plan has one. The config's process has fetched the wheels and the
sources: this one, in a container or on the host, needs no network.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln.base import files
from kiln.base.errors import RecipeFault, UnsupportedPython
from kiln.base.serialization import from_json_values
from kiln.build.config_build import ConfigBuilder, render_job_config
from kiln.build.engine.plan import outputs_in_build_order, plan_rehearsal
from kiln.build.engine_calls import EngineCalls, StepCache
from kiln.build.job.job import mask_build_secrets
from kiln.build.rehearsal import wheel_download
from kiln.build.rehearsal.inputs import rehearsal_disk_bytes
from kiln.build.rehearsal.python_package import foreign_python_metadata, write_python_packages
from kiln.build.rehearsal.python_search import Interpreter, find_interpreter
from kiln.build.rehearsal.substitutes import outputs_for_python
from kiln.build.rehearsal.wheel_download import upstream_wheel_gaps
from kiln.build.rehearsal.wheels import RehearsalPlan
from kiln.conda.package_writer import SUBDIR, write_metadata_only_package
from kiln.conda.solve import machine_virtual_packages
from kiln.feedstock import sources
from kiln.state.ledger.ledger import Ledger
from kiln.state.store import cache
from kiln.state.store.layout import RehearsalLayout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kiln.build.job.job import BuildJob, Job
    from kiln.build.job.messages import StepReporter
    from kiln.recipe.rendered import Output, OutputTest, RenderedConfig


_MOST_WORKERS = (
    4  # packages at the same moment: each takes 1 GB of memory, and five is all that TensorFlow's wheel fills
)


def rehearse_config(job: BuildJob, reporter: StepReporter, environment: Mapping[str, str]) -> dict[str, Any]:
    """Rehearse a config; return the packages as JSON values. Until it is complete, the earlier channel stays."""
    rehearsal = Rehearsal.from_job(job, reporter, environment)
    result = rehearsal.run()
    rehearsal.layout.remove_earlier_channel()
    return result


def fetch_wheels_and_sources(
    wheels: RehearsalPlan, layout: RehearsalLayout, *, env: Mapping[str, str], log: Path, reporter: StepReporter
) -> None:
    """Fetch a config's wheels and sources, one config at a time; ``env`` is pip's.

    Raises:
        KilnError: DownloadFailed, HashMismatch, DiskFull.
    """
    size = sum(wheel.size for wheel in wheel_download.missing_wheels(wheels.wheels, layout.wheels))
    title = f"fetch wheels, {files.human_readable_size(size)}" if size else "verify the fetched wheels"
    with reporter.step(title) as step, cache.hold_lock(layout.wheels_lock_file, seconds=cache.LONG):
        wheel_download.fetch_wheels(
            wheels.wheels, layout.wheels, env=env, log=log, on_line=step.pass_on_line, on_received=step.report_received
        )
    if not wheels.sources:
        return
    size = sum(source.size for source in sources.missing_sources(wheels.sources, layout.sources))
    title = f"fetch sources, {files.human_readable_size(size)}" if size else "verify the fetched sources"
    with reporter.step(title) as step, cache.hold_lock(layout.wheels_lock_file, seconds=cache.LONG):
        sources.fetch_sources(
            wheels.sources, layout.sources, env=env, on_line=step.pass_on_line, on_received=step.report_received
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The rehearsal of a config; its methods are its steps, in their order."""

    job: BuildJob
    rendered: RenderedConfig
    wheels: RehearsalPlan
    layout: RehearsalLayout
    step_cache: StepCache
    reporter: StepReporter
    environment: Mapping[str, str] = field(repr=False)

    @classmethod
    def from_job(cls, job: BuildJob, reporter: StepReporter, environment: Mapping[str, str]) -> Rehearsal:
        """Render the config and open its folders."""
        rendered = render_job_config(job, reporter, environment)
        mask_build_secrets(rendered, environment, {})
        wheels = rehearsal_plan_of_job(job)
        if wheels.upstream is not None:
            rendered = config_without_unfillable_outputs(rendered, reporter)
            # The wheel stands for a compile elsewhere: for another platform, nothing that is made here runs here.
            rendered = dataclasses.replace(rendered, config=dataclasses.replace(rendered.config, build_platform=SUBDIR))
        layout = RehearsalLayout(config=job.folder, apart=job.image is not None)
        layout.prepare_folders()
        return cls(
            job=job,
            rendered=rendered,
            wheels=wheels,
            layout=layout,
            step_cache=StepCache(config=job.config, ledger=Ledger(job.folder / "steps.sqlite"), console=reporter),
            reporter=reporter,
            environment=environment,
        )

    def run(self) -> dict[str, Any]:
        """Convert, build and test; return the packages as JSON values."""
        self.require_upstream_version_match()
        self.reporter.expect_steps(2 + 2 * len(self.rendered.outputs))
        python = self.wheels.packaged_python
        dependencies = self.make_dependency_packages(
            find_rehearsal_python(python, self.job, self.environment) if python else None
        )
        upstream = self.wheels.upstream
        rendered = self.rendered if upstream else config_for_one_python(self.rendered, self.wheels.python)
        self.fill_channel(dependencies, outputs_in_build_order(rendered.outputs))
        builder = self.config_builder(rendered, dependencies)
        if upstream is None:
            return builder.run()
        self.note_missing_gpu_driver()
        disk = rehearsal_disk_bytes(0, upstream.size, jobs=1)
        files.require_disk_space(self.layout.work, disk, for_what="making the packages")
        planned = plan_rehearsal(
            rendered,
            recipe_folder=self.job.recipe,
            folder=self.layout.work,
            channels=(self.layout.channel.url,),
            wheel=wheel_download.verified_upstream_wheel(upstream, self.layout.wheels),
        )
        cores = self.environment.get("CPU_COUNT", "")
        workers = min(_MOST_WORKERS, max(1, int(cores))) if cores.isdecimal() else 1
        return dataclasses.replace(builder, workers=workers).make_and_test_packages(planned, {})

    def config_builder(self, rendered: RenderedConfig, dependencies: tuple[Path, ...]) -> ConfigBuilder:
        """Return the builder of a config's packages from those that were made for the rehearsal."""
        # Its scripts run where this process does, even in a container.
        job = dataclasses.replace(self.job, cache=self.layout.package_cache, queue=None)
        upstream = [self.wheels.upstream.sha256] if self.wheels.upstream else []
        return ConfigBuilder(
            job=job,
            rendered=rendered,
            channel=self.layout.channel,
            sources=(self.layout.channel.url,),
            engine=dataclasses.replace(
                EngineCalls.for_config(job, self.rendered, self.environment), sources=self.layout.sources
            ),
            step_cache=self.step_cache,
            reporter=self.reporter,
            dependencies=(*(package.name for package in dependencies), *upstream),
        )

    def require_upstream_version_match(self) -> None:
        """Refuse to put the wheel of one version into packages of another."""
        upstream, versions = self.wheels.upstream, {output.version for output in self.rendered.outputs}
        if upstream is not None and upstream.version not in versions:
            raise RecipeFault(
                f"the recipe makes version {', '.join(sorted(versions))}, but a rehearsal's wheel is {upstream.file}",
                hint="rehearse a version whose wheels are locked, or update the locks in a clone of kiln",
            )

    def make_dependency_packages(self, interpreter: Interpreter | None) -> tuple[Path, ...]:
        """Make conda packages of the interpreter, the wheels and this machine's programs; existing ones are reused."""
        folder = self.layout.converted_packages
        title = "package the wheels" if self.wheels.wheels else "package this machine's programs"
        if interpreter is not None:
            title = f"package Python {interpreter.version} and the wheels"
        with self.reporter.step(title), cache.hold_lock(self.layout.wheels_lock_file, seconds=cache.LONG):
            files.remove_part_files(folder)
            python: Iterable[Path] = ()
            if interpreter is not None:
                python = write_python_packages(interpreter, folder, env=self.environment)
            elif self.wheels.subdir != SUBDIR:
                empty = foreign_python_metadata(self.wheels.python, self.wheels.subdir)
                python = [write_metadata_only_package(folder, facts) for facts in empty]
            return (*python, *wheel_download.convert_dependencies(self.wheels, self.layout.wheels, folder))

    def fill_channel(self, dependencies: tuple[Path, ...], outputs: Iterable[Output]) -> None:
        """Keep exactly the packages in the channel that this rehearsal needs, or has made before."""
        channel = self.layout.channel
        with self.reporter.step("index the channel") as step:
            needed = {package.name for package in dependencies} | {output.package_file_name for output in outputs}
            if self.layout.back_up_channel(needed):
                step.add_note(
                    f"the channel of before stays in {self.layout.earlier_channel.root.name} until this one is complete"
                )
            channel.remove_other_packages(needed)
            there = {package.name for package in channel.packages()}
            fresh = [(package, self.wheels.subdir) for package in dependencies if package.name not in there]
            if fresh:
                channel.add(fresh)

    def note_missing_gpu_driver(self) -> None:
        """Report that a CUDA config is solved as with a driver where this machine has none."""
        if self.wheels.cuda is not None and "__cuda" not in machine_virtual_packages():
            with self.reporter.step("look for a GPU driver") as step:
                step.add_note(f"none found: solving as with a driver for CUDA {self.wheels.cuda}")


def rehearsal_plan_of_job(job: Job) -> RehearsalPlan:
    """Return the plan of a rehearsal's job."""
    assert job.rehearsal_plan is not None, "the run has planned each rehearsal"
    return from_json_values(RehearsalPlan, job.rehearsal_plan)


def config_for_one_python(rendered: RenderedConfig, python: str) -> RenderedConfig:
    """Return a config without the outputs for other Pythons than the rehearsal's; all tests run with that one."""

    def matches_python(version: str) -> bool:
        return version == "*" or f"{python}.".startswith(f"{version.removesuffix('*').removesuffix('.')}.")

    def test_with_one_python(test: OutputTest) -> OutputTest:
        return dataclasses.replace(test, pythons=(python,) if any(map(matches_python, test.pythons)) else ())

    outputs = (
        dataclasses.replace(output, tests=tuple(map(test_with_one_python, output.tests)))
        for output in outputs_for_python(rendered, python)
    )
    return dataclasses.replace(rendered, outputs=tuple(outputs))


def config_without_unfillable_outputs(rendered: RenderedConfig, reporter: StepReporter) -> RenderedConfig:
    """Return a config without the outputs that upstream's wheel cannot fill, and report these and others' gaps."""
    gaps = upstream_wheel_gaps(output.name for output in rendered.outputs if not output.skip)
    if gaps:
        with reporter.step("compare the outputs with upstream's wheel") as step:
            for gap in gaps:
                step.add_note(gap.note)
    absent = {gap.output for gap in gaps if not gap.is_made}
    return dataclasses.replace(
        rendered, outputs=tuple(output for output in rendered.outputs if output.name not in absent)
    )


def find_rehearsal_python(python: str, job: BuildJob, environment: Mapping[str, str]) -> Interpreter:
    """Return an interpreter of a minor version: in a container the image's own before the mounted one."""
    named = (job.python,) if job.python else ()
    if job.image is None:
        return find_interpreter(python, first=named, env=environment)
    try:
        return find_interpreter(python, last=named, env=environment)
    except UnsupportedPython as error:
        raise UnsupportedPython(
            f"the image {job.image} has no Python {python} for {job.config}",
            why="this machine has none either that works in it: " + "; ".join(filter(None, (error.what, error.why))),
            hint=f"name an image with Python {python} (DOCKER_IMAGE), install one with uv, which can be mounted "
            "in a container, or rehearse on this machine: --container none",
        ) from error
