"""Build, install and test one config: its compile step, its wheels, its outputs."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files
from kiln.base.errors import BuildFailed, SystemFault
from kiln.base.serialization import to_json
from kiln.build.bazel import events as bazel_events
from kiln.build.bazel import watch as bazel_watch
from kiln.build.engine.dependencies import run_exports_of_package
from kiln.build.engine.plan import plan_compile, plan_outputs
from kiln.build.engine.scripts import export_lines
from kiln.build.engine_calls import (
    NOT_FOR_TESTS,
    EngineCalls,
    StepCache,
    StepResult,
    call_with_download_retries,
    file_report_json,
    package_report_json,
    remove_folders_on_failure,
    step_file_hashes,
)
from kiln.build.job import untrusted_results
from kiln.build.job.job import (
    channels_needed_by_config,
    find_matching_output,
    find_matching_staging,
    mask_build_secrets,
    python_versions_of_config,
    script_variables,
    step_names,
)
from kiln.build.steps import CompileStep, StagedFiles
from kiln.build.test import wheels as test_wheels
from kiln.build.test.specs import WheelName, require_wheel_for_python
from kiln.build.test.tester import PackageTester
from kiln.conda.channel import LocalChannel
from kiln.conda.solve import machine_virtual_packages
from kiln.conda.specs import package_name
from kiln.container import emulation
from kiln.feedstock import config_file
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import pins, render
from kiln.recipe.variants.files import compile_group, virtual_packages_with_cuda
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import TestReport, TestVerdict
from kiln.state.store.compile_cache import file_or_folder_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kiln.build.job.job import BuildJob
    from kiln.build.job.messages import ReportedStep, StepReporter
    from kiln.build.steps import BuildStep, TestStep
    from kiln.recipe.rendered import Output, RenderedConfig, Staging


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
            return [package], {"work": work, "repositories": bazel_watch.read_repository_record(step.folder)}

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
            secrets=tuple(self.builder.engine.compile_secrets),
            forge=self.builder.job.packages,
        )

    def cache_key_inputs(self, step: CompileStep) -> dict[str, Any]:
        """Return the inputs that decide the step's result."""
        return {**self.builder.engine.inputs_that_decide_result(step), **self.builder.run_inputs}

    def write_compile_settings(self) -> Path:
        """Write the step's settings, and return the file for its Bazel's events."""
        job = self.builder.job
        events, profile = job.folder / f"bazel-{bazel_watch.EVENTS}", job.folder / f"bazel-{bazel_watch.PROFILE}"
        for path in (
            events,
            profile,
            *bazel_watch.earlier_event_files(events),
            *bazel_watch.earlier_event_files(profile),
        ):
            files.remove(path)
        variables = {bazel_events.EVENTS: str(events), bazel_events.PROFILE: str(profile)}
        text = "".join(f"{line}\n" for line in export_lines({**job.compile, **variables}))
        watcher = bazel_watch.interrupt_bazel_lines(job.folder / bazel_watch.NAME) if job.options.has_budget else ""
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
        events = self.write_compile_settings()
        try:
            with remove_folders_on_failure(self.builder.job, step.folder):
                return self._build_while_monitored(step, display, events)
        finally:
            if self.builder.engine.compile_secrets:  # Bazel writes all of its flags into the events
                for path in (events, *bazel_watch.earlier_event_files(events)):
                    files.remove(path)

    def _build_while_monitored(self, step: CompileStep, display: ReportedStep, events: Path) -> Path:
        job = self.builder.job
        on_host = job.queue is None
        with bazel_watch.watch_build(
            events, on_progress=display.report_progress, stall=job.options.stall, same_container=on_host
        ) as watch:
            try:
                package = self.builder.engine.build_package_with_retries(step, display)
            except BuildFailed as error:
                self.builder.step_cache.require_budget_left()
                failure = watch.explained_error(error)
                self.builder.engine.add_network_hint(failure, step.title)
                raise failure from error
            if report := watch.compile_report():
                display.record_compile_report(report)
            return package

    def collect_and_test_wheels(self, compiled: StepResult) -> list[dict[str, Any]]:
        """Collect and test the wheels of a compile, and return their reports as JSON values."""
        wheels = Path(compiled.detail["work"], "dist").glob("*.whl")  # where every output's script finds them
        return [self._collect_and_test_wheel(path, compiled) for path in sorted(wheels)]

    def _collect_and_test_wheel(self, path: Path, compiled: StepResult) -> dict[str, Any]:
        kept_wheel = self._store_under_fulfilled_tag(path, compiled)
        (path_kept,) = kept_wheel.paths
        wheel = WheelName.from_path(path_kept)
        test_result = self._test_wheel(wheel, kept_wheel)
        group = compile_group(self.builder.rendered.config)
        identity = {"name": wheel.name, "version": wheel.version, "build_string": wheel.tags}
        return file_report_json(kept_wheel, test_result, self.builder.job, **identity, subdir=f"wheels/{group}")

    def _store_under_fulfilled_tag(self, path: Path, compiled: StepResult) -> StepResult:
        """Check a wheel's name, and store it under the tag that its binaries fulfill."""

        def store_with_tag(display: ReportedStep) -> tuple[Iterable[Path], dict[str, Any]]:
            wheel = WheelName.from_path(path)
            require_wheel_for_python(wheel, self.python)
            tag = test_wheels.fulfilled_platform_tag(wheel)
            target = test_wheels.place_wheel_with_tag(wheel, self.builder.job.folder / "wheels", tag)
            display.add_note(
                f"{target.name} fulfills {tag}" if tag else f"{target.name}: no binaries for Linux, or no auditwheel"
            )
            return [target], {}

        inputs = {"compiled": step_file_hashes(compiled), "name": path.name, "python": self.python}
        return self.builder.step_cache.run_or_reuse(f"wheel {WheelName.from_path(path).name}", inputs, store_with_tag)

    def _test_wheel(self, wheel: WheelName, kept_wheel: StepResult) -> StepResult:
        """Install a wheel into a fresh venv of its Python."""

        def install_and_report(display: ReportedStep) -> tuple[Iterable[Path], dict[str, Any]]:
            report = self._install_test_report(wheel, display)
            return kept_wheel.paths, to_json(dataclasses.replace(report, log=None))

        inputs = {"wheel": step_file_hashes(kept_wheel), "network": self.builder.job.network}
        return self.builder.step_cache.run_or_reuse(f"test wheel {wheel.name}", inputs, install_and_report)

    def _install_test_report(self, wheel: WheelName, display: ReportedStep) -> TestReport:
        """Return the report of a wheel's test; it is not tested without an interpreter of its Python."""
        if self.builder.rendered.config.is_cross:
            note = f"not tested: it is cross-compiled, for {self.builder.rendered.config.platform}"
            return TestReport(package=wheel.path.name, verdict=TestVerdict.SKIPPED, notes=(note,))
        job = self.builder.job
        prefix = Path((self.folder / "prefix").read_text(encoding="utf-8").strip())
        environment = self.builder.engine.environment
        on_path = shutil.which(f"python{self.python or 3}")
        candidates = (prefix / "bin" / "python", *([Path(on_path)] if on_path else []))
        interpreter = test_wheels.find_wheel_interpreter(wheel, candidates, environment=environment)
        if interpreter is None:
            note = f"not tested: no interpreter for {wheel.python} found"
            return TestReport(package=wheel.path.name, verdict=TestVerdict.NONE, notes=(note,))
        step = test_wheels.plan_wheel_test(
            wheel.path, python=interpreter, folder=job.folder / "venv", network=job.network
        )
        with remove_folders_on_failure(job, step.folder):
            return test_wheels.execute_wheel_test(
                step,
                environment=environment,
                apart=lambda: self.builder.engine.scripts_without_network(f"test {wheel.name}"),
                log=job.folder / f"test-{wheel.path.name}.log",
                on_line=display.pass_on_line,
            )

    @property
    def python(self) -> str | None:
        """The minor version of Python that the config is for, ``3.11``; None when it has none, or several."""
        versions = python_versions_of_config(self.builder.rendered.config)
        return next(iter(versions)) if len(versions) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigBuilder:
    """The build of a config; its methods are its steps, in their order.

    ``dependencies`` are the names of package files that a rehearsal has put into the config's channel, and the hash of
    the wheel that replaces its compile; None for a build, whose packages come from ``sources``. ``workers`` packages
    are made, and then tested, at the same moment; a build has one, since its scripts share a folder and use all cores.
    """

    job: BuildJob
    rendered: RenderedConfig
    channel: LocalChannel
    sources: tuple[str, ...]
    engine: EngineCalls
    step_cache: StepCache
    reporter: StepReporter
    dependencies: tuple[str, ...] | None = None
    workers: int = 1

    @classmethod
    def from_job(
        cls, job: BuildJob, reporter: StepReporter, environment: Mapping[str, str], compile_secrets: Mapping[str, str]
    ) -> ConfigBuilder:
        """Render the config and open its folders."""
        rendered = render_job_config(job, reporter, environment)
        mask_build_secrets(rendered, environment, compile_secrets)
        channel = LocalChannel(root=job.folder / "channel")
        channel.repair_index()
        return cls(
            job=job,
            rendered=rendered,
            channel=channel,
            sources=channels_needed_by_config(rendered),
            engine=EngineCalls.for_config(job, rendered, environment, compile_secrets),
            step_cache=config_step_cache(job, rendered, reporter),
            reporter=reporter,
        )

    def run(self) -> dict[str, Any]:
        """Compile, make every package, then test every package; return the packages as JSON values."""
        self.reporter.expect_steps(len(self.rendered.stagings) + 2 * len(self.rendered.outputs))
        compiled = self.run_compile_steps()
        return self.make_and_test_packages(self.plan_packages(compiled), compiled)

    def make_and_test_packages(
        self, planned: Sequence[BuildStep], compiled: Mapping[str | None, StepResult]
    ) -> dict[str, Any]:
        """Make every planned package, then test every package; return the packages as JSON values."""
        self.reporter.expect_steps(2 * len(planned))
        # Else an old package may be installed.
        self.channel.remove_other_packages(
            (*(self.dependencies or ()), *(step.output.package_file_name for step in planned))
        )
        shared = {
            name: report
            for step in planned
            if (report := self.add_shared_package(name := step.output.package_file_name, step.output))
        }
        steps = [step for step in planned if step.output.package_file_name not in shared]
        packages: list[StepResult] = []
        for group in _independent_groups(steps) if self.workers > 1 else [[step] for step in steps]:
            packages += self.run_at_once(
                partial(self.make_package, step, compiled.get(step.output.staging)) for step in group
            )
            self.channel.repair_index()
        siblings = sorted([report["artifact"]["sha256"] for report in shared.values()] + step_file_hashes(*packages))
        tester = self.package_tester()
        tests = self.run_at_once(
            (
                partial(self.test_package, tester, step.output, package, siblings)
                for step, package in zip(steps, packages, strict=True)
            ),
            weights=[sum(len(test.script.lines) for test in step.output.tests) for step in steps],
        )
        reports = zip(steps, packages, tests, strict=True)
        return {
            "packages": [
                *shared.values(),
                *(package_report_json(step.output, package, test, self.job) for step, package, test in reports),
                *(
                    wheel
                    for staging in self.rendered.stagings
                    if staging.name in compiled
                    for wheel in CompileStepRunner(builder=self, staging=staging).collect_and_test_wheels(
                        compiled[staging.name]
                    )
                ),
            ],
            "outdated": any(result.outdated for result in (*compiled.values(), *packages, *tests)),
        }

    def run_at_once(self, calls: Iterable[Callable[[], StepResult]], weights: Sequence[int] = ()) -> list[StepResult]:
        """Call functions, as many at the same moment as there are workers, and return their results in order.

        Those of the largest weight begin, so that no worker is alone at the end. After a failure no other one begins,
        and those that run are waited for.
        """
        if self.workers == 1:
            return [call() for call in calls]
        calls = list(calls)
        with ThreadPoolExecutor(self.workers) as pool:
            order = sorted(range(len(calls)), key=lambda index: -weights[index] if weights else 0)
            futures = {index: pool.submit(copy_context().run, calls[index]) for index in order}
            try:
                wait(futures.values(), return_when=FIRST_EXCEPTION)
            finally:
                pool.shutdown(cancel_futures=True)
        for failed in (future for future in futures.values() if not future.cancelled() and future.exception()):
            failed.result()
        return [futures[index].result() for index in range(len(calls))]

    def prepare_for_debugging(self, pattern: str) -> dict[str, str]:
        """Make everything that one script needs, with the steps before it; return its paths."""
        rendered, folder = self.rendered, self.job.folder / "debug"
        staging = find_matching_staging(rendered, pattern)
        if staging is not None:
            compile_ = CompileStepRunner(builder=self, staging=staging)
            compile_.write_compile_settings()
            return self.prepare_step_script(staging.title, compile_.plan(folder))
        output = find_matching_output(rendered, pattern)
        compiled = self.run_compile_steps()
        for planned in self.plan_packages(compiled):
            result = compiled.get(planned.output.staging)
            if planned.output == output:
                copied = (staging := rendered.staging_of_output(output)) is not None and staging.copied
                step = dataclasses.replace(planned, folder=folder)
                return self.prepare_step_script(output.name, step, None if copied else result)
            self.make_package(planned, result)
        raise AssertionError("one of the outputs was selected")

    def prepare_step_script(
        self, name: str, step: BuildStep | CompileStep, compiled: StepResult | None = None
    ) -> dict[str, str]:
        """Have the engine make everything that a script needs, and return the paths."""
        with self.reporter.step(f"prepare {name}") as display:
            places = self.engine.prepare_script(step, display)
        sources = compiled.detail["work"] if compiled else places["work"]
        return {**places, "name": name, "sources": sources}

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels: that of this config's packages, then the variant's."""
        return tuple(dict.fromkeys((self.channel.url, *self.sources)))

    @property
    def run_inputs(self) -> dict[str, Any]:
        """The inputs of all steps: the caller's variables for scripts, and a rehearsal's packages, which are fixed."""
        return {
            **({"values": self.job.values_digest} if self.job.values_digest else {}),
            **({} if self.dependencies is None else {"dependencies": sorted(self.dependencies)}),
        }

    def run_compile_steps(self) -> dict[str | None, StepResult]:
        """Run the build steps that outputs share, each at most once, and return their results by their names."""
        return {
            staging.name: CompileStepRunner(builder=self, staging=staging).run() for staging in self.rendered.stagings
        }

    def plan_packages(self, compiled: Mapping[str | None, StepResult]) -> tuple[BuildStep, ...]:
        """Plan the packages."""
        return plan_outputs(
            self.rendered,
            recipe_folder=self.job.recipe,
            folder=self.job.folder,
            channels=self.channels,
            compiled={
                staging.name: CompileStepRunner(builder=self, staging=staging).staged_files(compiled[staging.name])
                for staging in self.rendered.stagings
            },
            extra={**self.job.extra, **({} if self.dependencies is None else {"rehearsal": True})},
            forge=self.job.packages,
        )

    def add_shared_package(self, name: str, output: Output) -> dict[str, Any] | None:
        """Add a package that another config has made to this config's channel; return None without one."""
        reports = [dict(report) for report in self.job.shared_packages if Path(report["artifact"]["path"]).name == name]
        if not reports or f"build {output.name}" in self.step_cache.again:
            return None
        (report,) = reports
        with self.reporter.step(f"take {output.name}") as display:
            display.reused = True
            display.add_note(report["tests"]["notes"][-1])
            (placed,) = self.channel.add([(self.job.channel / output.subdir / name, output.subdir)])
        return {**report, "artifact": {**report["artifact"], "path": str(placed.relative_to(self.job.folder))}}

    def make_package(self, step: BuildStep, compiled: StepResult | None) -> StepResult:
        """Make one package and put it into the config's channel."""
        secrets = {
            **script_variables(self.rendered, self.engine.environment),
            **bazel_events.with_secrets_inside_credentials(self.engine.compile_secrets),
        }

        def build_and_add(display: ReportedStep) -> tuple[Iterable[Path], dict[str, Any]]:
            with remove_folders_on_failure(self.job, step.folder):
                package = self.engine.build_package_with_retries(step, display)
                untrusted_results.require_no_secrets(package, secrets)
            own = bazel_watch.read_repository_record(step.folder)
            of_compile = list(compiled.detail.get("repositories", ())) if compiled else []
            placed = self.channel.add([(package, step.output.subdir)], index=self.workers == 1)
            files.remove(step.folder)
            return placed, {"repositories": bazel_watch.merged_repositories(own, of_compile)}

        inputs = {
            **self.engine.inputs_that_decide_result(step),
            "index": step.index,
            "edits": step.edits,
            "compiled": sorted(compiled.paths.values()) if compiled else [],
            "needs": sorted(package_name(spec) for spec in step.output.requirements.host),
            **self.run_inputs,
        }
        return self.step_cache.run_or_reuse(
            f"build {step.output.name}", inputs, build_and_add, leaves=step.output.package_file_name
        )

    def package_tester(self) -> PackageTester:
        """Return the tester of this config's packages."""
        return PackageTester(
            recipe=self.job.recipe,
            folder=self.job.folder,
            channels=self.channels,
            cache=self.job.cache / "pkgs",
            machine=virtual_packages_with_cuda(machine_virtual_packages(), self.rendered.config),
            available=None if self.dependencies is None else self.channel.package_names(),
            priority=self.job.packages.channel_priority,
        )

    def test_package(
        self, tester: PackageTester, output: Output, package: StepResult, siblings: list[str]
    ) -> StepResult:
        """Install a package into a fresh prefix and run its tests; ``siblings`` are the packages' hashes."""
        config = self.rendered.config
        tester = tester.for_platform(config.platform) if config.is_cross and output.subdir != "noarch" else tester
        steps = tester.plan_tests(output)
        inputs = {
            **tester.cache_key_inputs(steps),
            **({"emulated": self.job.emulated} if config.is_cross else {}),
            **self.run_inputs,
            "package": step_file_hashes(package),
            "siblings": siblings,
            "files": [{place: file_or_folder_digest(file) for place, file in step.files.items()} for step in steps],
        }

        def report_tests(display: ReportedStep) -> tuple[Iterable[Path], dict[str, Any]]:
            report = self.untestable_package_report(output, steps, display) or self.run_tests(tester, steps, display)
            return package.paths, to_json(dataclasses.replace(report, log=None))

        return self.step_cache.run_or_reuse(
            f"test {output.name}", inputs, report_tests, leaves=output.package_file_name
        )

    def untestable_package_report(
        self, output: Output, steps: Sequence[TestStep], display: ReportedStep
    ) -> TestReport | None:
        """Return the report of a package whose programs this machine cannot run; None for the others.

        conda-forge's builds skip the tests of cross-compiled packages too, unless an emulator is set up.
        """
        config = self.rendered.config
        if not config.is_cross or output.subdir == "noarch":
            return None
        has_tests = any(step.commands or step.downstreams or step.checked for step in steps)
        if self.job.emulated:
            if has_tests:
                display.add_note(f"tested by an emulator of {config.platform}")
            return None
        note = f"not tested: it is cross-compiled, for {config.platform} on {config.build_platform}"
        display.add_note(note)
        verdict = TestVerdict.SKIPPED if has_tests else TestVerdict.NONE
        return TestReport(package=output.name, verdict=verdict, notes=(note,))

    def run_tests(self, tester: PackageTester, steps: Sequence[TestStep], display: ReportedStep) -> TestReport:
        """Install a package and run its tests, without the network unless it is granted."""
        title, places = f"test {steps[0].package}", [place for step in steps for place in (step.folder, step.prefix)]
        scripts = any(step.runs_scripts for step in steps)
        apart = (
            self.engine.scripts_without_network(title) if scripts else contextlib.nullcontext(self.engine.environment)
        )
        with apart as variables, remove_folders_on_failure(self.job, *places):
            environment = {name: value for name, value in variables.items() if name not in NOT_FOR_TESTS}
            tester = dataclasses.replace(tester, on_received=display.report_received)
            report = call_with_download_retries(
                lambda: tester.run_tests(steps, environment=environment, on_line=display.pass_on_line), display
            )
        for note in report.notes:
            display.add_note(note)
        return report


def _independent_groups(steps: Iterable[BuildStep]) -> Iterator[list[BuildStep]]:
    """Yield steps in their order, in groups in which no script needs a package that another one of the group makes."""
    group: list[BuildStep] = []
    for step in steps:
        needs = {package_name(spec) for spec in (*step.output.requirements.build, *step.output.requirements.host)}
        if needs & {other.output.name for other in group}:
            yield group
            group = []
        group.append(step)
    yield group


def render_job_config(job: BuildJob, reporter: StepReporter, environment: Mapping[str, str]) -> RenderedConfig:
    """Return a job's config, as a step of its build."""
    with reporter.step("render"):
        feedstock = recipe_feedstock.load(job.root)
        config = dataclasses.replace(config_file.read_config(feedstock, job.config), build_platform=job.build_platform)
        rendered = config_with_emulator(pins.close_static_pins(render.render(feedstock, config)), environment)
        render.require_supported_keys([rendered], own_engine=True)
    return rendered


def config_with_emulator(rendered: RenderedConfig, environment: Mapping[str, str]) -> RenderedConfig:
    """Return a cross-compiled config with the variables of conda-forge's builds that name qemu-user, if it is here.

    Source: cross_compile_support.sh of conda-forge-ci-setup, which adds them to the variant.
    """
    config = rendered.config
    emulator = emulation.qemu_user_path(config.platform, environment) if config.is_cross else None
    if emulator is None:
        return rendered
    variant = {**config.variant, **dict.fromkeys(emulation.EMULATORS, (emulator,))}
    return dataclasses.replace(rendered, config=dataclasses.replace(config, variant=variant))


def config_step_cache(job: BuildJob, rendered: RenderedConfig, reporter: StepReporter) -> StepCache:
    """Return the cache of a config's steps: those from ``--from-step`` on run again, those before are reused."""
    steps = step_names(rendered)
    first = 0 if job.options.from_step is None else steps.index(job.options.from_step)
    return StepCache(
        config=job.config,
        ledger=Ledger(job.folder / "steps.sqlite"),
        console=reporter,
        settled=steps[:first],
        again=() if job.options.from_step is None else steps[first:],
        stop=job.folder / bazel_watch.NAME,
    )
