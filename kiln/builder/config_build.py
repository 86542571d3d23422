"""Build, install and test one config in a separate process, on the host or in a container.

The job names folders as this process sees them. The result file is written last; the next attempt reuses each step that
succeeded while its inputs are unchanged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import emulation, expand, feedstock_folder_check, files, render
from kiln.bazel import interrupt_script
from kiln.build import bazel_external_repository_record
from kiln.build.plan import plan_outputs
from kiln.builder import job_main, secret_leaks
from kiln.builder.compile_step import CompileStepRunner
from kiln.builder.job_main import NOT_FOR_TESTS, remove_folders_on_failure
from kiln.builder.package_reports import package_report_json, step_file_hashes
from kiln.builder.rattler_build_calls import EngineCalls, call_with_download_retries
from kiln.builder.step_cache import StepCache, StepResult
from kiln.builder.wheel_tagging_and_test import WheelCollector
from kiln.job.required_channels_and_network import channels_needed_by_config
from kiln.job.step_and_output_lookup import find_matching_output, find_matching_staging, step_names
from kiln.ledger import Ledger
from kiln.local_channel import LocalChannel
from kiln.matchspec_notation import package_name
from kiln.model.build_results import TestReport, TestVerdict
from kiln.package_test.tester import PackageTester
from kiln.serialization import to_json
from kiln.store import bazel_variables_of_compile_scripts
from kiln.store.digests import file_or_folder_digest
from kiln.variants.cuda_version import virtual_packages_with_cuda
from kiln.virtual_packages import machine_virtual_packages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kiln.job.job_descriptions import BuildJob
    from kiln.job.messages import ReportedStep, StepReporter
    from kiln.model.build_and_test_steps import BuildStep, CompileStep, TestStep
    from kiln.model.rendered import Output, RenderedConfig


def run_build_job(job: BuildJob, reporter: StepReporter) -> dict[str, Any]:
    """Build the job's config, or prepare an output for debugging; return the result."""
    secrets = {
        name: os.environ.pop(name) for name in bazel_variables_of_compile_scripts.secret_variable_names(os.environ)
    }  # for the compile alone
    builder = ConfigBuilder.from_job(job, reporter, secrets)
    return builder.run() if job.options.debug is None else {"debug": builder.prepare_for_debugging(job.options.debug)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigBuilder:
    """The build of a config; its methods are its steps, in their order.

    ``dependencies`` are the names of package files that a rehearsal has put into the config's channel, and the hash of
    the wheel that replaces its compile; None for a build, whose packages come from ``sources``.
    """

    job: BuildJob
    rendered: RenderedConfig
    channel: LocalChannel
    sources: tuple[str, ...]
    engine: EngineCalls
    step_cache: StepCache
    reporter: StepReporter
    dependencies: tuple[str, ...] | None = None

    @classmethod
    def from_job(cls, job: BuildJob, reporter: StepReporter, secrets: Mapping[str, str]) -> ConfigBuilder:
        """Render the config and open its folders."""
        rendered = render_job_config(job, reporter)
        job_main.mask_script_secrets(
            rendered, bazel_variables_of_compile_scripts.with_secrets_inside_credentials(secrets)
        )
        channel = LocalChannel(root=job.folder / "channel")
        channel.repair_index()
        return cls(
            job=job,
            rendered=rendered,
            channel=channel,
            sources=channels_needed_by_config(rendered),
            engine=EngineCalls.for_config(job, rendered, secrets),
            step_cache=config_step_cache(job, rendered, reporter),
            reporter=reporter,
        )

    def run(self) -> dict[str, Any]:
        """Compile, make every package, then test every package; return the packages as JSON values."""
        compiled = self.run_compile_steps()
        return self.make_and_test_packages(self.plan_packages(compiled), compiled)

    def make_and_test_packages(
        self, planned: Sequence[BuildStep], compiled: Mapping[str | None, StepResult]
    ) -> dict[str, Any]:
        """Make every planned package, then test every package; return the packages as JSON values."""
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
        packages = [self.make_package(step, compiled.get(step.output.staging)) for step in steps]
        siblings = sorted([report["artifact"]["sha256"] for report in shared.values()] + step_file_hashes(*packages))
        tester = self.package_tester()
        tests = [
            self.test_package(tester, step.output, package, siblings)
            for step, package in zip(steps, packages, strict=True)
        ]
        reports = zip(steps, packages, tests, strict=True)
        return {
            "packages": [
                *shared.values(),
                *(package_report_json(step.output, package, test, self.job) for step, package, test in reports),
                *(
                    wheel
                    for staging in self.rendered.stagings
                    if staging.name in compiled
                    for wheel in WheelCollector(step=CompileStepRunner(builder=self, staging=staging)).collect_and_test(
                        compiled[staging.name]
                    )
                ),
            ],
            "outdated": any(result.outdated for result in (*compiled.values(), *packages, *tests)),
        }

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
    def rehearsal_packages_as_inputs(self) -> dict[str, Any]:
        """The packages of a rehearsal as inputs of a step; empty for a build, whose channels are not fixed."""
        return {} if self.dependencies is None else {"dependencies": sorted(self.dependencies)}

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
        secrets = bazel_variables_of_compile_scripts.with_secrets_inside_credentials(self.engine.secrets)

        def build_and_add(display: ReportedStep) -> tuple[Iterable[Path], dict[str, Any]]:
            with remove_folders_on_failure(self.job, step.folder):
                package = self.engine.build_package_with_retries(step, display)
                secret_leaks.require_no_secrets(package, job_main.secrets_of_scripts(self.rendered, secrets))
            own = bazel_external_repository_record.read_repository_record(step.folder)
            of_compile = list(compiled.detail.get("repositories", ())) if compiled else []
            placed = self.channel.add([(package, step.output.subdir)])
            files.remove(step.folder)
            return placed, {"repositories": bazel_external_repository_record.merged_repositories(own, of_compile)}

        inputs = {
            **self.engine.inputs_that_decide_result(step),
            "index": step.index,
            "edits": step.edits,
            "compiled": sorted(compiled.paths.values()) if compiled else [],
            "needs": sorted(package_name(spec) for spec in step.output.requirements.host),
            **self.rehearsal_packages_as_inputs,
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
            **self.rehearsal_packages_as_inputs,
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
        apart = self.engine.scripts_without_network(title) if scripts else contextlib.nullcontext(os.environ)
        with apart as variables, remove_folders_on_failure(self.job, *places):
            environment = {name: value for name, value in variables.items() if name not in NOT_FOR_TESTS}
            report = call_with_download_retries(
                lambda: tester.run_tests(steps, environment=environment, on_line=display.pass_on_line), display
            )
        for note in report.notes:
            display.add_note(note)
        return report


def render_job_config(job: BuildJob, reporter: StepReporter) -> RenderedConfig:
    """Return a job's config, as a step of its build."""
    with reporter.step("render"):
        feedstock = feedstock_folder_check.load(job.root)
        config = dataclasses.replace(expand.read_config(feedstock, job.config), build_platform=job.build_platform)
        rendered = config_with_emulator(render.close_static_pins(render.render(feedstock, config)), os.environ)
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
        stop=job.folder / interrupt_script.NAME,
    )
