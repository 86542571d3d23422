"""Install packages into fresh prefixes, and run their recipes' tests there."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files, limits, process
from kiln.base.errors import SolveFailed, TestsFailed, UnsupportedPlatform, UsageError, program_output_with_margin
from kiln.base.patterns import is_channel_subdir
from kiln.base.text import count_text
from kiln.build.job.job import channels_needed_by_config
from kiln.build.test import prefix as test_prefix
from kiln.build.test.specs import output_with_packed_tests, plan_package_tests
from kiln.compat import causes
from kiln.conda import package_cache, solve
from kiln.conda.channel import LocalChannel
from kiln.conda.provenance import contents
from kiln.conda.specs import package_name, strict_rattler_spec
from kiln.container import emulation
from kiln.feedstock import config_file
from kiln.recipe import pins, render
from kiln.recipe.variants.files import virtual_packages_with_cuda
from kiln.state.results import TestReport, TestVerdict
from kiln.state.store.layout import ArtifactLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from rattler import RepoDataRecord

    from kiln.build.steps import TestStep
    from kiln.conda.provenance.records import ResolvedPackage
    from kiln.conda.solve import VirtualPackages
    from kiln.recipe.feedstock import Feedstock
    from kiln.recipe.rendered import Output, RenderedConfig


SCRIPT = "kiln_run_test.sh"  # next to a recipe's run_test.sh
_OF_PLATFORMS = frozenset({"__win", "__osx", "__linux", "__unix"})
NOTE = "note: "  # lines of a test's output with this prefix are shown to people


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageTester:
    """Tests the packages of one config: ``channels`` have them and their requirements, ``machine`` solves for them.

    ``folder`` is the parent of the tests' folders, prefixes and logs, ``recipe`` the recipe's folder. ``available`` are
    the names of the packages in the channels, where the tests' other requirements are to be omitted. ``platform`` is
    that of the packages: another one than this machine's needs an emulator. ``priority`` is that of the channels.
    ``on_received`` gets how many bytes of a test's packages are there, of how many, if known.
    """

    recipe: Path
    folder: Path
    channels: tuple[str, ...]
    cache: Path
    machine: VirtualPackages
    available: Collection[str] | None = None
    platform: str = field(default_factory=emulation.machine_subdir)
    priority: str = "strict"
    on_received: Callable[[int, int | None], None] = lambda _done, _total: None

    def for_platform(self, platform: str) -> PackageTester:
        """Return the tester of packages for a platform."""
        if platform == self.platform:
            return self
        return dataclasses.replace(
            self, platform=platform, machine=solve.emulated_virtual_packages(platform, self.machine)
        )

    def plan_tests(self, output: Output) -> tuple[TestStep, ...]:
        """Plan the tests of one package."""
        name = f"{output.name}-{output.build_string}"
        steps = plan_package_tests(
            output,
            recipe_folder=self.recipe,
            folder=self.folder / f"test-{name}",
            prefix=self.folder / "prefixes" / name,
            available=self.available,
        )
        required = map(package_name, output.requirements.run if output.noarch else ())
        foreign = tuple(name for name in required if name in _OF_PLATFORMS and name not in self.machine)
        return tuple(dataclasses.replace(step, foreign=foreign) for step in steps) if foreign else steps

    def cache_key_inputs(self, steps: Sequence[TestStep]) -> dict[str, Any]:
        """Return the inputs that decide the result of tests, but for the packages, as JSON values."""
        inputs = [
            {
                "specs": step.specs,
                "build specs": step.build_specs,
                "script": step.script,
                "environment": step.environment,
                "downstreams": step.downstreams,
            }
            for step in steps
        ]
        own = self.platform == emulation.machine_subdir()
        return {
            "channels": self.channels,
            "tests": inputs,
            "machine": self.machine,
            **({} if own else {"platform": self.platform}),
            **({} if self.priority == "strict" else {"priority": self.priority}),
        }

    def run_tests(
        self, steps: Sequence[TestStep], *, environment: Mapping[str, str], on_line: Callable[[str], None] | None = None
    ) -> TestReport:
        """Run the tests of one package, each in a prefix of its own, which is removed when it passes.

        Raises:
            SolveFailed: when the package and its tests' requirements cannot be installed.
            TestsFailed: with the end of the tests' output; prefix and folder are kept.
        """
        if steps[0].foreign:
            return _untestable_report(steps)
        if self.platform != emulation.machine_subdir() and any(step.runs_scripts for step in steps):
            environment = self._emulator_environment(environment)
        return _merge_test_reports(
            [self._run_test_step(step, environment=environment, on_line=on_line) for step in steps]
        )

    def trial_install(self, steps: Sequence[TestStep]) -> None:
        """Install one package as its tests need it, without running them; nothing of it stays.

        Raises:
            SolveFailed: when the package and its tests' requirements cannot be installed.
        """
        for step in (step for step in steps if not step.foreign):
            self._install_test_prefix(step)
            for place in (step.prefix, step.build_prefix):
                files.remove(place)

    def _emulator_environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with what conda-forge's builds set for programs of another platform.

        The loader and the C library are those of the platform's ``sysroot`` package, where the channels have one.
        """
        values = dict(environment)
        if (emulator := emulation.qemu_user_path(self.platform, environment)) is not None:
            values |= dict.fromkeys(emulation.EMULATORS, emulator)
        if emulation.LIBRARIES not in values and (libraries := self._emulated_libc_folder()) is not None:
            values[emulation.LIBRARIES] = str(libraries)
        return values

    def _emulated_libc_folder(self) -> Path | None:
        place = self.folder / f"sysroot-{self.platform}"
        spec, packages = f"sysroot_{self.platform}", self.machine
        with contextlib.suppress(SolveFailed):
            if not place.is_dir():
                own = emulation.machine_subdir()
                records = solve.solve(self.channels, (spec,), virtual_packages=packages, platform=own)
                with files.atomic_replacement(place) as part:
                    solve.install(records, part, cache=self.cache, seen_at=str(place), carried=True)
            return next((folder for folder in sorted(place.glob("*/sysroot")) if folder.is_dir()), None)
        return emulation.cross_libc_folder(self.platform)

    def _run_test_step(
        self, step: TestStep, *, environment: Mapping[str, str], on_line: Callable[[str], None] | None
    ) -> TestReport:
        start = time.monotonic()
        run_packages = self._install_test_prefix(step)
        installed = time.monotonic() - start
        notes, seconds = list(step.notes), 0.0
        log: Path | None = None

        def collect_note(line: str) -> None:
            if line.startswith(NOTE):
                notes.append(line.removeprefix(NOTE))
            if on_line is not None:
                on_line(line)

        if step.runs_scripts:
            log = step.folder.with_name(f"{step.folder.name}.log")
            files.remove(log)
            try:
                seconds = run_test_script(step, environment=environment, log=log, on_line=collect_note)
            finally:
                package_cache.discard_damaged_entries(self.cache, (step.prefix, step.build_prefix))
        for place in (step.prefix, step.build_prefix, step.folder):
            files.remove(place)
        passed = [self._test_downstream_package(step, spec, environment, collect_note) for spec in step.downstreams]
        notes += [note for _, more in passed for note in more]
        commands = step.commands + step.checked + sum(tests for tests, _ in passed)
        return TestReport(
            package=step.package,
            verdict=TestVerdict.PASSED if commands else TestVerdict.NONE,
            commands=commands,
            install_seconds=installed,
            seconds=seconds,
            notes=tuple(notes),
            log=log,
            run_packages=run_packages,
        )

    def _test_downstream_package(
        self, step: TestStep, spec: str, environment: Mapping[str, str], on_line: Callable[[str], None]
    ) -> tuple[int, tuple[str, ...]]:
        """Run the tests of a package that depends on this one, and return their number and notes.

        One that cannot be installed together with this package is skipped, as in conda-build and rattler-build.
        """
        name = package_name(spec)
        downstream_step = dataclasses.replace(
            step,
            package=f"{name}, downstream of {step.package}",
            specs=(*step.specs[:1], strict_rattler_spec(spec)),
            build_specs=(),
            folder=step.folder.with_name(f"{step.folder.name}-{name}"),
            prefix=step.prefix.with_name(f"{step.prefix.name}-{name}"),
        )
        try:
            self._install_test_prefix(downstream_step)
        except SolveFailed as error:
            return 0, (f"downstream {spec} was not tested: {error.what}",)
        (record,) = (
            item for item in solve.installed_package_records(downstream_step.prefix) if item.name.normalized == name
        )
        info = Path(str(record.extracted_package_dir)) / "info"
        files.remove(downstream_step.prefix)
        output = output_with_packed_tests(record, info)
        tests = self._plan_packed_tests(downstream_step, output, info / "test") if output.tests else ()
        for test in tests:
            self._run_test_step(test, environment=environment, on_line=on_line)
        number = sum(test.commands for test in tests)
        result = f"{count_text(number, 'test')} passed" if tests else "it has no tests"
        omitted = (note for test in tests for note in test.notes)
        return number, (f"downstream {name} {record.version}: {result}", *dict.fromkeys(omitted))

    def _plan_packed_tests(self, downstream_step: TestStep, output: Output, folder: Path) -> tuple[TestStep, ...]:
        """Plan the tests that a package carries, for an environment with the package under test."""
        planned = plan_package_tests(
            output,
            recipe_folder=folder,
            folder=downstream_step.folder,
            prefix=downstream_step.prefix,
            available=self.available,
        )
        return tuple(
            dataclasses.replace(
                test,
                package=downstream_step.package,
                specs=(*downstream_step.specs[:1], *test.specs),
                environment={**downstream_step.environment, **test.environment},
                files={},
                files_of=output.name,
            )
            for test in planned
        )

    def _install_test_prefix(self, step: TestStep) -> tuple[ResolvedPackage, ...]:
        """Make the prefix of a test, and return the package's run dependencies in it.

        Packages for compilers may have links that lead out of it.
        """
        own = emulation.machine_subdir()
        run_packages: tuple[ResolvedPackage, ...] = ()
        for prefix, specs, platform in (
            (step.prefix, step.specs, self.platform),
            (step.build_prefix, step.build_specs, own),
        ):
            files.remove(prefix)
            if not specs:
                continue
            try:
                records = solve.solve(
                    self.channels, specs, virtual_packages=self.machine, platform=platform, priority=self.priority
                )
            except SolveFailed as error:
                error.hint = "see that the channels have what the package and its tests require"
                raise
            if prefix == step.prefix:
                run_packages = contents.transitive_run_dependencies(
                    map(_identity_and_depends_fields, records), step.package
                )
            solve.install(records, prefix, cache=self.cache, carried=True, on_received=self.on_received)
        return run_packages


def _untestable_report(steps: Sequence[TestStep]) -> TestReport:
    """Return the report of a package for another platform, for which rattler-build makes no test environment either."""
    has_tests = any(step.runs_scripts or step.checked for step in steps)
    note = f"not tested: it requires {', '.join(steps[0].foreign)}, which this machine is not"
    verdict = TestVerdict.SKIPPED if has_tests else TestVerdict.NONE
    return TestReport(package=steps[0].package, verdict=verdict, notes=(note,))


def _identity_and_depends_fields(record: RepoDataRecord) -> dict[str, Any]:
    return {
        "name": record.name.normalized,
        "version": str(record.version),
        "build": record.build,
        "subdir": record.subdir,
        "url": record.url,
        "sha256": record.sha256.hex() if record.sha256 else "",
        "depends": record.depends,
    }


def _merge_test_reports(reports: Sequence[TestReport]) -> TestReport:
    """Return the report of all tests of a package, which have passed."""
    first = reports[0]
    passed = any(report.verdict is TestVerdict.PASSED for report in reports)
    return TestReport(
        package=first.package,
        verdict=TestVerdict.PASSED if passed else TestVerdict.NONE,
        commands=sum(report.commands for report in reports),
        install_seconds=sum(report.install_seconds for report in reports),
        seconds=sum(report.seconds for report in reports),
        notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
        log=next((report.log for report in reversed(reports) if report.log), None),
        run_packages=first.run_packages,
    )


def _copy_missing_file(source: str, target: str) -> None:
    """Copy a file unless the recipe has one of its name: its current tests run."""
    if not os.path.lexists(target):
        shutil.copy2(source, target, follow_symlinks=False)


def run_test_script(
    step: TestStep, *, environment: Mapping[str, str], log: Path, on_line: Callable[[str], None]
) -> float:
    """Run the script of a test in its folder and return the seconds it took."""
    files.remove(step.folder)
    step.folder.mkdir(parents=True)
    for place, file in step.files.items():
        copy = step.folder / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir():
            shutil.copytree(file, copy, dirs_exist_ok=True)
        else:
            shutil.copy2(file, copy)
    for packed in test_prefix.packed_file_folders(step.prefix, step.files_of):
        shutil.copytree(packed, step.folder, symlinks=True, dirs_exist_ok=True, copy_function=_copy_missing_file)
    script = step.folder / SCRIPT
    files.write_text(script, "\n".join([*test_prefix.link_script_lines(step.prefix), *step.script, ""]))
    build_prefix = {"BUILD_PREFIX": str(step.build_prefix)} if step.build_specs else {}
    variables = {**environment, **step.environment, **build_prefix}
    result = process.run(("bash", str(script)), env=variables, cwd=step.folder, log=log, on_line=on_line)
    if not result.ok:
        cause = causes.cause_of_failed_build(result.tail)
        ended = f" with {causes.script_end_in_words(result.exit_code, result.tail)}"
        shown = program_output_with_margin("\n".join(causes.telling_lines(result.tail)))
        raise TestsFailed(
            f"the tests of {step.package} fail" + (f": {cause.headline}" if cause else ended),
            why=f"their output ends with\n{shown}",
            hint=cause.cure
            if cause
            else f"read {log}; the prefix is kept in {step.prefix}, the test's folder in {step.folder}",
        )
    return result.seconds


def install_and_test_packages(
    feedstock: Feedstock,
    packages: Sequence[Path],
    *,
    channels: tuple[str, ...],
    machine: VirtualPackages,
    environment: Mapping[str, str],
    on_package: Callable[[str], None],
) -> tuple[TestReport, ...]:
    """Test every package, in order, with the packages of ``channels``, by default those that the recipe names.

    Raises:
        UsageError: when no config of the feedstock renders one of them.
        UnsupportedPlatform: when this machine cannot run the programs of one of them.
        SolveFailed, TestsFailed: for the first that fails; the others are not tested.
        AlreadyRunning: while another process tests packages of the same feedstock.
    """
    outputs = [(path, *find_output_of_package(feedstock, path)) for path in packages]
    for path, _, output in outputs:
        require_runnable_package(path, output.subdir)
    root = ArtifactLayout.for_feedstock(feedstock).safe_path("check")
    with files.held_lock_file(root.with_suffix(".lock")):
        files.remove(root)
        staged = LocalChannel(root=root / "channel")
        staged.add((path, output.subdir) for path, _, output in outputs)
        reports = []
        for path, rendered, output in outputs:
            on_package(path.name)
            tester = make_package_tester(
                rendered,
                output,
                feedstock,
                folder=root,
                channels=(
                    staged.url,
                    *channel_containing_package(path),
                    *(channels or channels_needed_by_config(rendered)),
                ),
                machine=machine,
            )
            reports.append(tester.run_tests(tester.plan_tests(output), environment=environment))
        return tuple(reports)


def channel_containing_package(package: Path) -> tuple[str, ...]:
    """Return the URL of the channel whose folder contains a package, for the packages that it requires."""
    folder = package.resolve().parent
    if not is_channel_subdir(folder.name) or not any(folder.glob("repodata*.json*")):
        return ()
    return (folder.parent.as_uri(),)


def require_runnable_package(package: Path, subdir: str) -> None:
    """Raise UnsupportedPlatform for a package whose programs this machine cannot run."""
    if not emulation.can_run_platform(subdir, in_container=False):
        raise UnsupportedPlatform(
            f"{package.name} cannot be tested on this machine",
            why=f"it is for {subdir}, this machine is {emulation.machine_subdir()}",
            hint=f"test it on {subdir}, or register qemu-user for it with the kernel (Debian: apt-get install "
            "qemu-user-static binfmt-support)",
        )


def find_output_of_package(feedstock: Feedstock, package: Path) -> tuple[RenderedConfig, Output]:
    """Return the config and the output that render a package's file name, for the subdir in its path if it has one."""
    return limits.run_bounded(lambda: _find_rendered_output(feedstock, package))


def _find_rendered_output(feedstock: Feedstock, package: Path) -> tuple[RenderedConfig, Output]:
    name, subdir = package.name, package.absolute().parent.name
    for config in feedstock.config_names:
        rendered = pins.close_static_pins(render.render(feedstock, config_file.read_config(feedstock, config)))
        for output in rendered.outputs:
            there = not is_channel_subdir(subdir) or output.subdir == subdir
            if there and not output.skip and output.package_file_name == name:
                return rendered, output
    raise UsageError(
        f"no config of {feedstock.root} renders {name}",
        why="a package's tests are those of the current recipe",
        hint="kiln render lists the packages; -C DIR names another feedstock",
    )


def make_package_tester(
    rendered: RenderedConfig,
    output: Output,
    feedstock: Feedstock,
    *,
    folder: Path,
    channels: tuple[str, ...],
    machine: VirtualPackages,
) -> PackageTester:
    """Return the tester of a package as its recipe renders now."""
    tester = PackageTester(
        recipe=feedstock.recipe,
        folder=folder,
        channels=channels,
        cache=folder / "cache",
        machine=virtual_packages_with_cuda(machine, rendered.config),
    )
    return tester if output.subdir == "noarch" else tester.for_platform(output.subdir)


def summarize_test_reports(reports: Sequence[TestReport]) -> str:
    """Return a summary in one line."""
    tests = count_text(sum(report.commands for report in reports), "test")
    return f"{count_text(len(reports), 'package')}, {tests} passed"
