"""The tests of built packages on a worker, such as one with a GPU: jobs of a fleet run, as builds are."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.base import files, process
from kiln.base.errors import FleetLimit, TestsFailed, WorkersLost
from kiln.base.serialization import read_json_object
from kiln.base.text import count_text
from kiln.build.job.collected import ResultsCollected
from kiln.fleet import run as fleet_run
from kiln.fleet.ansible.executor import AnsibleExecutor
from kiln.fleet.ansible.handlers import LOST_CONNECTION
from kiln.fleet.model import JobState
from kiln.fleet.protocol import (
    BuildFinished,
    BuildStarted,
    CollectFailed,
    CollectResults,
    CommandUndelivered,
    Event,
    FollowBuild,
    Heartbeat,
    JobsListed,
    QueryJobs,
    StartBuild,
    StopBuild,
    WorkerUnreachable,
)
from kiln.fleet.records import TESTS_SUFFIX, WorkerTestRecorder, config_of_job
from kiln.fleet.state import TRIES
from kiln.state.results import JobEstimate, JobSize, StepReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kiln.base.errors import KilnError
    from kiln.fleet.ansible.playbooks import PlaybookSite
    from kiln.fleet.ansible.sessions import PlaybookSession
    from kiln.fleet.model import FleetRun
    from kiln.fleet.records import FleetLedger
    from kiln.fleet.run_config import FleetRunConfig
    from kiln.state.results import MatrixReport, RunObserver


PROJECT = "/var/lib/kiln/project"  # kiln_home of the playbooks
ARTIFACTS = f"{PROJECT}/build_artifacts"
SECONDS = 7200.0  # for the tests of a config that has no time limit
REASON_LENGTH = 2000
# The ends of what the tests printed, of which kiln shows nothing when they pass. They are read as the user that ran the
# tests, which may have put links there.
OUTPUT = f"tail --verbose --bytes=100000 {ARTIFACTS}/check/*.log | head --bytes=1000000"
UNIT = "kiln-test.service"
NO_ANSWER = 255  # the exit code of ssh itself


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigTestResult:
    """The tests of a config's packages: ``reports`` are those of ``kiln test --json``, ``exit_code`` is kiln's."""

    config: str
    exit_code: int
    seconds: float
    reports: tuple[Mapping[str, Any], ...] = ()
    reason: str = ""

    @property
    def step_report(self) -> StepReport:
        """The tests as a step of the config's run, with the GPUs that they ran on."""
        gpus = dict.fromkeys(gpu for report in self.reports for gpu in report["gpus"])
        count = sum(report["tests"] for report in self.reports)
        total = f"{count_text(count, 'test')} of {count_text(len(self.reports), 'package')}"
        notes = (total, *gpus) if self.reports else ()
        return StepReport(title="test on a worker", seconds=self.seconds, notes=notes, failed=self.exit_code != 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagesToTest:
    """The packages to test: files below ``channel``, by config.

    With ``gpu`` the worker must have a GPU, and the tests are refused without one. ``limits`` are the seconds that the
    tests of configs may take.
    """

    channel: Path
    packages: Mapping[str, Sequence[Path]]
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    gpu: bool = False

    def inputs_hash(self, config: str) -> str:
        """Return a hash over the packages of a config and how they are tested."""
        digests = sorted(_cached_package_digest(path, path.stat().st_mtime_ns) for path in self.packages[config])
        return hashlib.sha256("\n".join((f"gpu {self.gpu}", *digests)).encode()).hexdigest()

    def test_command(self, config: str) -> tuple[str, ...]:
        """Return the command on the worker that tests a config's packages."""
        paths = [f"{ARTIFACTS}/{path.relative_to(self.channel)}" for path in self.packages[config]]
        words = ("-C", PROJECT, "test", "--json", *(["--gpu"] if self.gpu else []), *paths)
        return process.Program.KILN.script_command(*words, python=f"{PROJECT}/.venv/bin/python", isolated=True)

    def time_limit(self, config: str) -> float:
        """Return the seconds that the tests of a config may take."""
        return self.limits.get(config, SECONDS)


@functools.cache
def _cached_package_digest(path: Path, _changed: int) -> str:
    """Return the hash of a package, which is asked for several times; ``_changed`` is the time of its last change."""
    return files.sha256(path)


class WorkerTestExecutor(AnsibleExecutor):
    """Executes commands on real machines; a config's job tests its packages, of which nothing is fetched."""

    def __init__(self, site: PlaybookSite, tested: PackagesToTest) -> None:
        """``tested`` are the packages of all configs."""
        super().__init__(site)
        self.tested = tested
        self.handlers |= {
            StartBuild: self._report_tests_started,
            FollowBuild: self._run_tests_until_end,
            CollectResults: self._collect_test_result,
            QueryJobs: self._list_tests_as_running,
            StopBuild: lambda *_: None,  # nothing stops a test but its time limit
        }

    def _report_tests_started(self, session: PlaybookSession, command: StartBuild) -> Event:
        session.configs[command.worker] = command.config
        return BuildStarted(worker=command.worker, config=command.config)

    def _list_tests_as_running(self, session: PlaybookSession, command: QueryJobs) -> Event:
        """Report that tests run on a worker that answers: what follows them begins them again."""
        if session.ssh(command.worker, "true").ok:
            return JobsListed(worker=command.worker, jobs=dict.fromkeys(command.keys, "running"))
        return CommandUndelivered(command=command, reason="no answer")

    def _collect_test_result(self, session: PlaybookSession, command: CollectResults) -> Event:
        """Report the stored result of a config's tests, unless it is of other packages."""
        config = command.config.removesuffix(TESTS_SUFFIX)
        result = stored_test_result(session.site.folder, config, key=command.key)
        if result is None:
            reason = "the result of its tests is missing, or of other packages"
            return CollectFailed(worker=command.worker, config=command.config, reason=reason, foreign=True)
        log = _test_log_path(session.site.folder, config)
        steps = (result.step_report,)
        return ResultsCollected(
            worker=command.worker, config=command.config, steps=steps, log=log, reason=result.reason
        )

    def _run_tests_until_end(self, session: PlaybookSession, command: FollowBuild) -> Event | None:
        """Run the tests of a config until their end; after a lost connection, again, up to `TRIES` times.

        systemd-run ends with ssh's own exit code, too, when the tests were killed by a signal.
        """
        worker, config, lost = command.worker, command.config.removesuffix(TESTS_SUFFIX), 0
        session.configs[worker] = command.config
        while session.must_still_follow(worker):
            sent = self._stop_tests_and_send_packages(command, config)
            if not sent.ok and sent.exit_code not in LOST_CONNECTION:
                reason = f"the packages could not be sent: {sent.tail[-REASON_LENGTH:].strip()}"
                return BuildFinished(worker=worker, config=command.config, exit_code=None, reason=reason)
            if sent.ok:
                session.events.put(Heartbeat(worker=worker))
                session.report_step(command.config, f"test on {worker}")
                answer = self._run_tests_in_unit(worker, config)
                if answer is not None:
                    code, reason = answer.exit_code, answer.reason
                    return BuildFinished(worker=worker, config=command.config, exit_code=code, reason=reason)
                lost += 1
                if lost == TRIES and session.must_still_follow(worker):
                    reason = f"its tests were killed, or the connection to them was lost, {lost} times"
                    return BuildFinished(worker=worker, config=command.config, exit_code=None, reason=reason)
            session.events.put(WorkerUnreachable(worker=worker))
            session.stopped.wait(session.site.poll)
        return None

    def _stop_tests_and_send_packages(self, command: FollowBuild, config: str) -> process.ProcessResult:
        """End earlier tests on a worker, and copy the packages of a config there that it lacks."""
        worker, tested = command.worker, self.tested
        stopped = self.session.ssh(worker, f"sudo systemctl stop {UNIT} 2>/dev/null || true")
        if not stopped.ok:
            return dataclasses.replace(stopped, exit_code=NO_ANSWER)
        paths = tested.packages[config]
        size = files.human_readable_size(sum(path.stat().st_size for path in paths))
        self.session.report_step(command.config, f"send {count_text(len(paths), 'package')} ({size}) to {worker}")
        return self.session.send_files_to_worker(
            worker, [f"{tested.channel}/./{path.relative_to(tested.channel)}" for path in paths], ARTIFACTS
        )

    def _run_tests_in_unit(self, worker: str, config: str) -> ConfigTestResult | None:
        """Run the tests of a config in a unit of their own, and store their result; None for a lost connection."""
        words = (
            *("sudo", "systemd-run", "--quiet", "--wait", "--pipe", "--collect", f"--unit={UNIT}"),
            *("--uid=kiln", "--setenv=HOME=/var/lib/kiln", "--setenv=LC_ALL=C.UTF-8", "--"),
            *self.tested.test_command(config),
        )
        result = self.session.ssh(worker, shlex.join(words), seconds=self.tested.time_limit(config))
        if result.exit_code == NO_ANSWER or result.exit_code < 0 or not self.session.must_still_follow(worker):
            return None
        folder = self.session.site.folder
        log = _test_log_path(folder, config)
        log.parent.mkdir(parents=True, exist_ok=True)
        output = self.session.ssh(worker, f"sudo runuser -u kiln -- sh -c {shlex.quote(OUTPUT)}").stdout
        files.write_text(log, f"{result.tail}\n{result.stdout}\n{output}")
        answer = self._test_result(config, result)
        place = _test_result_path(folder, config)
        place.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(place, json.dumps({"key": self.tested.inputs_hash(config), **dataclasses.asdict(answer)}))
        return answer

    def _test_result(self, config: str, result: process.ProcessResult) -> ConfigTestResult:
        reports = _parse_test_reports(result.stdout) if result.ok else ()
        code, reason = result.exit_code, "" if result.ok else _error_text(result.tail)
        if code == process.TIMED_OUT:
            code, reason = FleetLimit.exit_code, f"the tests took longer than {self.tested.time_limit(config):.0f} s"
        elif result.ok and not reports:
            code, reason = TestsFailed.exit_code, "the worker sent an invalid report"
        return ConfigTestResult(config=config, exit_code=code, seconds=result.seconds, reports=reports, reason=reason)


def _error_text(text: str) -> str:
    """Return the error with which kiln ended, without what was printed before it; of another output its end."""
    _, found, error = f"\n{text}".rpartition("\nerror: ")
    return f"error: {error}"[:REASON_LENGTH].strip() if found else text[-REASON_LENGTH:].strip()


def _test_log_path(folder: Path, config: str) -> Path:
    return folder / "logs" / f"{config}.test.log"


def _test_result_path(folder: Path, config: str) -> Path:
    return folder / "tests" / f"{config}.json"


def stored_test_result(folder: Path, config: str, *, key: str) -> ConfigTestResult | None:
    """Return the result of the tests of a config's packages in a run's folder; None without one of these packages."""
    data = read_json_object(_test_result_path(folder, config))
    if data.pop("key", None) != key:
        return None
    return ConfigTestResult(**{**data, "reports": tuple(data["reports"])})


def _parse_test_reports(text: str) -> tuple[Mapping[str, Any], ...]:
    """Return the reports in a worker's answer, which is not trusted; none if it is something else."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        reports = json.loads(text)
        if isinstance(reports, list):
            return tuple(
                {
                    "package": str(report["package"]),
                    "verdict": str(report["verdict"]),
                    "tests": int(report["tests"]),
                    "seconds": float(report["seconds"]),
                    "gpus": [str(gpu) for gpu in report.get("gpus", [])],
                }
                for report in reports
            )
    return ()


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
    the errors of `kiln.fleet.run.execute_fleet_run`.
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
    report, errors = fleet_run.execute_fleet_run(run_config, tests.site, recorder, executor=executor)
    return recorder.combined_run_report(report), {config_of_job(job): error for job, error in errors.items()}


def jobs_for_tests(
    tested: PackagesToTest, *, seconds: float, passed: Iterable[tuple[str, str]] = ()
) -> list[JobEstimate]:
    """Return the jobs that test the packages of configs, without those that have ``passed``, as config and key."""
    keys, done = {config: tested.inputs_hash(config) for config in tested.packages}, set(passed)
    return [
        JobEstimate(
            config=config + TESTS_SUFFIX,
            group=config + TESTS_SUFFIX,
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
