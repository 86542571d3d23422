"""Collect the wheels of a compile: give each the tag that its binaries fulfill, and test it with pip."""

from __future__ import annotations

import dataclasses
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.builder.job_main import remove_folders_on_failure
from kiln.builder.package_reports import file_report_json, step_file_hashes
from kiln.job.required_channels_and_network import python_versions_of_config
from kiln.model.build_results import TestReport, TestVerdict
from kiln.package_test import manylinux_tagging, wheel_install_test
from kiln.package_test.wheel_name import WheelName, require_wheel_for_python
from kiln.serialization import to_json
from kiln.variants.cuda_version import compile_group

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.builder.compile_step import CompileStepRunner
    from kiln.builder.step_cache import StepResult
    from kiln.job.messages import ReportedStep
    from kiln.model.matrix_config import BuildConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelCollector:
    """The wheels of one config's build step."""

    step: CompileStepRunner

    @property
    def config(self) -> BuildConfig:
        """The step's config."""
        return self.step.builder.rendered.config

    def collect_and_test(self, compiled: StepResult) -> list[dict[str, Any]]:
        """Collect and test the wheels of a compile, and return their reports as JSON values."""
        wheels = Path(compiled.detail["work"], "dist").glob("*.whl")  # where every output's script finds them
        return [self._collect_and_test_wheel(path, compiled) for path in sorted(wheels)]

    def _collect_and_test_wheel(self, path: Path, compiled: StepResult) -> dict[str, Any]:
        kept_wheel = self._store_under_fulfilled_tag(path, compiled)
        (path_kept,) = kept_wheel.paths
        wheel = WheelName.from_path(path_kept)
        test_result = self._test_wheel(wheel, kept_wheel)
        group = compile_group(self.config)
        identity = {"name": wheel.name, "version": wheel.version, "build_string": wheel.tags}
        return file_report_json(kept_wheel, test_result, self.step.builder.job, **identity, subdir=f"wheels/{group}")

    def _store_under_fulfilled_tag(self, path: Path, compiled: StepResult) -> StepResult:
        """Check a wheel's name, and store it under the tag that its binaries fulfill."""

        def store_with_tag(display: ReportedStep) -> tuple[Iterable[Path], dict[str, Any]]:
            wheel = WheelName.from_path(path)
            require_wheel_for_python(wheel, self.python)
            tag = manylinux_tagging.fulfilled_platform_tag(wheel)
            target = manylinux_tagging.place_wheel_with_tag(wheel, self.step.builder.job.folder / "wheels", tag)
            display.add_note(
                f"{target.name} fulfills {tag}" if tag else f"{target.name}: no binaries, or auditwheel not found"
            )
            return [target], {}

        inputs = {"compiled": step_file_hashes(compiled), "name": path.name, "python": self.python}
        return self.step.builder.step_cache.run_or_reuse(
            f"wheel {WheelName.from_path(path).name}", inputs, store_with_tag
        )

    def _test_wheel(self, wheel: WheelName, kept_wheel: StepResult) -> StepResult:
        """Install a wheel into a fresh venv of its Python."""

        def install_and_report(display: ReportedStep) -> tuple[Iterable[Path], dict[str, Any]]:
            report = self._install_test_report(wheel, display)
            return kept_wheel.paths, to_json(dataclasses.replace(report, log=None))

        inputs = {"wheel": step_file_hashes(kept_wheel), "network": self.step.builder.job.network}
        return self.step.builder.step_cache.run_or_reuse(f"test wheel {wheel.name}", inputs, install_and_report)

    def _install_test_report(self, wheel: WheelName, display: ReportedStep) -> TestReport:
        """Return the report of a wheel's test; it is not tested without an interpreter of its Python."""
        if self.config.is_cross:
            note = f"not tested: it is cross-compiled, for {self.config.platform}"
            return TestReport(package=wheel.path.name, verdict=TestVerdict.SKIPPED, notes=(note,))
        job = self.step.builder.job
        prefix = Path((self.step.folder / "prefix").read_text(encoding="utf-8").strip())
        interpreter = wheel_install_test.find_wheel_interpreter(
            wheel, candidate_interpreters(prefix, self.python), environment=os.environ
        )
        if interpreter is None:
            note = f"not tested: no interpreter for {wheel.python} found"
            return TestReport(package=wheel.path.name, verdict=TestVerdict.NONE, notes=(note,))
        step = wheel_install_test.plan_wheel_test(
            wheel.path, python=interpreter, folder=job.folder / "venv", network=job.network
        )
        with remove_folders_on_failure(job, step.folder):
            return wheel_install_test.execute_wheel_test(
                step,
                environment=os.environ,
                apart=lambda: self.step.builder.engine.scripts_without_network(f"test {wheel.name}"),
                log=job.folder / f"test-{wheel.path.name}.log",
                on_line=display.pass_on_line,
            )

    @property
    def python(self) -> str | None:
        """The minor version of Python that the config is for, ``3.11``; None when it has none, or several."""
        versions = python_versions_of_config(self.config)
        return next(iter(versions)) if len(versions) == 1 else None


def candidate_interpreters(prefix: Path, python: str | None) -> tuple[Path, ...]:
    """Return the paths where an interpreter for a wheel may be: in the compile's prefix, or on PATH."""
    program = shutil.which(f"python{python}" if python else "python3")
    return (prefix / "bin" / "python", *([Path(program)] if program else []))
