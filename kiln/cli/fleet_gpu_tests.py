"""``kiln fleet run --gpu-tests``: the tests of what a run has built, on a worker with a GPU, before it is done.

The worker is requested when all configs are built: one that waits for builds is paid for, and its tests take minutes.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from kiln import __version__
from kiln.cli import fleet_package_tests, run_options_from_arguments
from kiln.console.text import count_text
from kiln.model.fleet_run import GONE, FleetRun, Offer
from kiln.model.run import GOOD, ConfigRun, MatrixReport

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kiln.errors import KilnError
    from kiln.fleet.plan import WorkerTestPlan
    from kiln.fleet.run_recorders import RunRecorder
    from kiln.ledger.fleet import FleetLedger
    from kiln.model.feedstock import Feedstock
    from kiln.model.observer import RunObserver
    from kiln.store.configs_built_on_workers import RemoteConfig

    # The builds of a run; see `kiln.fleet.run_and_removal.execute_fleet_run`.
    BuildStage: TypeAlias = Callable[[RunRecorder], tuple[MatrixReport, Mapping[str, KilnError]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTestStage:
    """The tests of a run: ``configs`` are those for CUDA, ``offers`` those by which the worker is requested.

    ``passed`` are configs that have passed their tests before, each with the hash over what was tested.
    """

    options: argparse.Namespace
    feedstock: Feedstock
    configs: tuple[str, ...]
    offers: tuple[Offer, ...]
    passed: frozenset[tuple[str, str]]

    def untested_packages(self, entries: Iterable[ConfigRun]) -> dict[str, tuple[Path, ...]]:
        """Return the packages of configs that are built and have not passed their tests."""
        from kiln.fleet.worker_test_executor import PackagesToTest

        packages = {
            entry.config: tuple(item.artifact.path for item in entry.packages if not item.artifact.is_wheel)
            for entry in entries
            if entry.config in self.configs and entry.state in GOOD
        }
        tested = PackagesToTest(channel=Path(), packages=packages, gpu=True)
        return {
            config: paths
            for config, paths in packages.items()
            if paths and (config, tested.inputs_hash(config)) not in self.passed
        }

    def execute(
        self, report: MatrixReport, previous: FleetRun | None, *, key: str, ledger: FleetLedger, observer: RunObserver
    ) -> tuple[MatrixReport, Mapping[str, KilnError]]:
        """Test what a run has built; return its report with the configs as their tests make them."""
        from kiln.fleet import worker_tests
        from kiln.fleet.worker_tests import WorkerTestInputs

        packages = self.untested_packages(report.configs)
        tested = fleet_package_tests.packages_to_test(self.feedstock, packages, gpu=True)
        run_config = fleet_package_tests.run_config_of_tests(
            self.options,
            self.feedstock,
            offers=self.offers,
            plan=fleet_package_tests.plan_of_tests(self.options, tuple(packages), self.offers[0].machine_type),
            tested=tested,
            previous=previous,
            passed=(),
            key=key,
        )
        if not report.run:
            report = dataclasses.replace(report, command=run_config.command, container=f"fleet {run_config.id}")
        site = fleet_package_tests.playbook_site_of_tests(self.options, self.feedstock, run_config)
        tests = WorkerTestInputs(run_config=run_config, site=site, tested=tested, report=report)
        return worker_tests.run_tests_on_worker(tests, ledger, observer)


def gpu_test_stage(
    options: argparse.Namespace, feedstock: Feedstock, configs: Sequence[RemoteConfig], ledger: FleetLedger
) -> GpuTestStage | None:
    """Return the tests of a run of configs, None without ``--gpu-tests``.

    Raises:
        UsageError: when no config is for CUDA, or no machine type has a GPU.
    """
    from kiln.fleet import worker_tests

    if not options.gpu_tests:
        return None
    offers = fleet_package_tests.gpu_worker_offers(options)
    names = fleet_package_tests.configs_to_test(feedstock, [config.config for config in configs], gpu=True)
    return GpuTestStage(
        options=options,
        feedstock=feedstock,
        configs=names,
        offers=offers,
        passed=frozenset(worker_tests.passed_configs(ledger.fleet_runs())),
    )


def gpu_test_plan(
    stage: GpuTestStage | None, cached: Iterable[ConfigRun], configs: Iterable[RemoteConfig]
) -> WorkerTestPlan | None:
    """Return the plan of the tests of ``cached`` configs, and of those to build; None without any."""
    if stage is None:
        return None
    names = [*stage.untested_packages(cached), *(config.config for config in configs if config.config in stage.configs)]
    return fleet_package_tests.plan_of_tests(stage.options, names, stage.offers[0].machine_type) if names else None


def print_untested_configs_note(stage: GpuTestStage | None, cached: Iterable[ConfigRun]) -> None:
    """Note which configs a detached run leaves untested: those that were built before, whose packages are here."""
    names = () if stage is None else tuple(stage.untested_packages(cached))
    if names:
        what = f"{count_text(len(names), 'config')} built before stay untested, such as {names[0]}"
        print(f"{what}; the same command without --detach tests them", file=sys.stderr)


def report_of_cached_configs(cached: Sequence[ConfigRun]) -> MatrixReport:
    """Return the report of a run that builds nothing, and has not begun."""
    return MatrixReport(
        run=0,
        command="",
        started=time.time(),
        finished=None,
        machine="",
        cores=0,
        jobs=1,
        engine="rattler-build",
        container="",
        kiln_version=__version__,
        configs=tuple(cached),
    )


def record_cached_as_passed(stage: GpuTestStage | None, cached: Sequence[ConfigRun], ledger: FleetLedger) -> None:
    """Record that configs are up to date which the last run left untested, and which have passed since."""
    report = None if stage is None else ledger.run_report()
    names = {entry.config for entry in cached}
    if report is None or all(entry.state in GOOD for entry in report.configs if entry.config in names):
        return
    command = run_options_from_arguments.masked_command_line()
    ledger.end_run(ledger.begin_run(dataclasses.replace(report_of_cached_configs(cached), command=command)))


def resumable_run_or_tear_down(
    previous: FleetRun | None, *, builds: bool, ledger: FleetLedger, tear_down: Callable[[FleetRun], None]
) -> FleetRun | None:
    """Return the run to resume: one that has no workers of another stage, and whose machine types are those to use."""
    from kiln.fleet import worker_tests

    if previous is None:
        return None
    alive = [worker.name for worker in previous.workers if worker.state not in GONE]
    if any(worker_tests.is_test_worker(name) == builds for name in alive):
        tear_down(previous)
        previous = ledger.fleet_run(previous.id) or previous
    has_only_tested = all(worker_tests.is_test_worker(worker.name) for worker in previous.workers)
    if builds and previous.workers and has_only_tested:
        if previous.finished is None:
            tear_down(previous)
        return None
    return previous


def build_and_test(
    stage: GpuTestStage | None,
    build: BuildStage | None,
    cached: Sequence[ConfigRun],
    previous: FleetRun | None,
    *,
    key: str,
    ledger: FleetLedger,
    observer: RunObserver,
) -> tuple[MatrixReport, Mapping[str, KilnError]]:
    """Build, unless all configs are ``cached``, then test; return the report of both, and the errors of configs."""
    from kiln.fleet.run_recorders import BuildBeforeTestsRecorder, RunRecorder

    if build is None:
        assert stage is not None, "there is something to build or to test"
        return stage.execute(report_of_cached_configs(cached), previous, key=key, ledger=ledger, observer=observer)
    if stage is None:
        return build(RunRecorder(ledger, observer))
    passed = {entry.config for entry in cached} - stage.untested_packages(cached).keys()
    recorder = BuildBeforeTestsRecorder(ledger, observer, set(stage.configs) - passed)
    try:
        report, errors = build(recorder)
        packages = stage.untested_packages(report.configs)
        recorder.mark_earlier_tested_configs_done(packages)
    except BaseException:
        recorder.end_run_without_tests()
        raise
    if not packages:
        recorder.end_run_without_tests()
        return report, errors
    run = ledger.fleet_run(report.container.removeprefix("fleet "))
    report, test_errors = stage.execute(report, run, key=key, ledger=ledger, observer=observer)
    return report, {**errors, **test_errors}
