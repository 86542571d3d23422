"""The tests of built packages on a worker, such as one with a GPU: jobs of a fleet run, as builds are.

The worker is requested, replaced and terminated as those that build; a run that was killed is resumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.errors import WorkersLost
from kiln.fleet import run_and_removal as fleet
from kiln.fleet.run_recorders import WorkerTestRecorder, config_of_job
from kiln.fleet.worker_test_executor import SUFFIX, ConfigTestResult, WorkerTestExecutor, stored_test_result
from kiln.model.fleet_run import JobState
from kiln.model.job_estimate import JobEstimate, JobSize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.errors import KilnError
    from kiln.fleet.fleet_run_settings import FleetRunConfig
    from kiln.fleet.playbook_runner import PlaybookSite
    from kiln.fleet.worker_test_executor import PackagesToTest
    from kiln.ledger.fleet import FleetLedger
    from kiln.model.fleet_run import FleetRun
    from kiln.model.observer import RunObserver
    from kiln.model.run import MatrixReport

PREFIX = "test-"  # of the numbers of workers that test
ALONE = "tests"  # the key of runs that build nothing, and have no report


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTestInputs:
    """The tests and their workers: ``run_config`` has the jobs, ``tested`` their packages.

    ``report`` is that of the run whose configs are tested; None for tests that are no part of a run.
    """

    run_config: FleetRunConfig
    site: PlaybookSite
    tested: PackagesToTest
    report: MatrixReport | None = None


def run_tests_on_worker(
    tests: WorkerTestInputs, ledger: FleetLedger, observer: RunObserver
) -> tuple[MatrixReport, Mapping[str, KilnError]]:
    """Test the packages of all configs on a worker, and terminate it, however that ends.

    Return the report of the run with the configs as their tests make them, and the errors of those that failed. Raises
    the errors of `kiln.fleet.run_and_removal.execute_fleet_run`.
    """
    run_config = tests.run_config
    recorder = WorkerTestRecorder(
        ledger,
        observer,
        report=tests.report,
        keys={config_of_job(job.config): job.key for job in run_config.estimates},
        previous=run_config.previous_run,
    )
    executor = WorkerTestExecutor(tests.site, tests.tested)
    report, errors = fleet.execute_fleet_run(run_config, tests.site, recorder, executor=executor)
    return recorder.combined_run_report(report), {config_of_job(job): error for job, error in errors.items()}


def jobs_for_tests(
    tested: PackagesToTest, *, seconds: float, passed: Iterable[tuple[str, str]] = ()
) -> list[JobEstimate]:
    """Return the jobs that test the packages of configs, without those that have ``passed``, as config and key."""
    keys, done = {config: tested.inputs_hash(config) for config in tested.packages}, set(passed)
    return [
        JobEstimate(
            config=config + SUFFIX,
            group=config + SUFFIX,
            cold=seconds,
            warm=seconds,
            key=key,
            size=JobSize(gpus=1 if tested.gpu else 0),
        )
        for config, key in keys.items()
        if (config, key) not in done
    ]


def passed_configs(runs: Iterable[FleetRun]) -> set[tuple[str, str]]:
    """Return what has passed its tests in some runs: configs, each with the hash over what was tested."""
    return {
        (config_of_job(job.config), job.key)
        for run in runs
        for job in run.jobs
        if job.key and job.state is JobState.COLLECTED and job.exit_code == 0
    }


def results_of_all_configs(
    tests: WorkerTestInputs, report: MatrixReport, errors: Mapping[str, KilnError]
) -> tuple[ConfigTestResult, ...]:
    """Return the results of the tests of all configs, also of those that an earlier process of the run has tested."""
    reasons = {config.config: config.reason for config in report.configs}
    answers = []
    for config in tests.tested.packages:
        result = stored_test_result(tests.site.folder, config, key=tests.tested.inputs_hash(config))
        if result is None:
            code = errors[config].exit_code if config in errors else WorkersLost.exit_code
            result = ConfigTestResult(config=config, exit_code=code, seconds=0.0, reason=reasons.get(config, ""))
        answers.append(result)
    return tuple(answers)


def is_test_worker(name: str) -> bool:
    """Return whether a worker tests, by its name."""
    return f"-{PREFIX}" in name
