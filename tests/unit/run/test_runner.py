"""A run records what its processes report, and indexes its channel once for the configs that have finished meanwhile.

The processes are replaced by lines that they would print; the ledger and the folders are real.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from kiln.base import process, process_table, serialization
from kiln.base.errors import BrokenPackage, DiskFull, KilnError, MissingTool, OutOfMemory
from kiln.base.process import ProcessResult
from kiln.build.job.job import ConfigJob, RunOptions
from kiln.build.job.messages import MARK, failed_config_result
from kiln.run import runner, simulation
from kiln.run.runner import MatrixRun
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import ConfigRun, ConfigState
from kiln.state.store import cache
from kiln.state.store.layout import ArtifactLayout
from tests import builders
from tests.unit.run.test_plan import a_plan
from tests.waiting import CEILING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kiln.run.plan import RunPlan
    from kiln.state.results import MatrixReport, Progress

DONE = tuple(ConfigRun(config=name, group=name, state=ConfigState.DONE) for name in ("a", "b"))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> MatrixRun:
    """Return a run of two configs that have finished, and are not in the index yet."""
    monkeypatch.setattr(simulation, "queue_of_configs", lambda *_, **__: None)
    plan = SimpleNamespace(waiting=(), compiles=False, configs=DONE, layout=SimpleNamespace())
    ledger = SimpleNamespace(update_config=lambda *_: None)
    watcher = SimpleNamespace(config_changed=lambda _: None)
    run = MatrixRun(cast("RunPlan", plan), ledger=cast("Any", ledger), watcher=cast("Any", watcher))
    run.unindexed = ["a", "b"]
    return run


def test_configs_that_finished_meanwhile_are_indexed_once(run: MatrixRun, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts: list[object] = []
    monkeypatch.setattr(cache, "index_channel", layouts.append)
    run._index_new_packages()
    run._index_new_packages()
    assert layouts == [run.layout]
    assert (run.errors, tuple(run.configs.values())) == ({}, DONE)


def test_packages_that_cannot_be_indexed_fail_their_configs(run: MatrixRun, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BrokenPackage("the packages in build_artifacts cannot be indexed")

    def refuse(_: object) -> None:
        raise broken

    monkeypatch.setattr(cache, "index_channel", refuse)
    run.unindexed = ["b"]
    run._index_new_packages()
    assert run.errors == {"b": broken}
    failed = dataclasses.replace(DONE[1], state=ConfigState.FAILED, reason=broken.what)
    assert tuple(run.configs.values()) == (DONE[0], failed)


def message(kind: str, **fields: Any) -> str:
    """Return a line of a config's process."""
    return f"{MARK}{serialization.encode({'kind': kind, **fields})}"


def ended(exit_code: int, tail: str = "") -> ProcessResult:
    return ProcessResult(argv=(), exit_code=exit_code, tail=tail, seconds=1.0)


RESULT = message("result", state="done", reason="", packages=[], peak_memory=7)


class Observer:
    """An observer that keeps what it is shown."""

    def __init__(self) -> None:
        self.states: list[tuple[str, str]] = []
        self.lines: list[tuple[str, str, str]] = []
        self.progress: list[Progress] = []
        self.reports: list[MatrixReport] = []

    def run_began(self, report: MatrixReport) -> None:
        self.reports.append(report)

    def config_changed(self, config: ConfigRun) -> None:
        self.states.append((config.config, config.state.value))

    def output_line_received(self, config: str, step: str, line: str) -> None:
        self.lines.append((config, step, line))

    def progress_changed(self, config: str, progress: Progress) -> None:
        self.progress.append(progress)

    def run_cost_changed(self, cost: object) -> None: ...

    def run_ended(self, report: MatrixReport) -> None:
        self.reports.append(report)


class Matrix:
    """A run of configs in a folder, whose processes print the given lines, and end in the given way."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        self.processes: dict[str, tuple[list[str], ProcessResult | KilnError | OSError]] = {}
        self.jobs: list[ConfigJob] = []
        self.observer = Observer()
        self.ledger = Ledger(folder / "ledger.sqlite")
        self.layout = ArtifactLayout(root=folder / "build_artifacts")
        self.layout.root.mkdir()
        self.more = more
        monkeypatch.setattr(process, "run", self._run_process)

    def _run_process(
        self, _: object, *, stdin: str, on_line: Callable[[str], None], **__: object
    ) -> process.ProcessResult:
        job = ConfigJob.parse(stdin)
        self.jobs.append(job)
        lines, outcome = self.processes[job.config]
        for line in lines:
            on_line(line)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def run(self) -> MatrixRun:
        """Return the run, which has not begun."""
        waiting = (ConfigRun(config=name, group="cpu", state=ConfigState.WAITING) for name in sorted(self.processes))
        plan = a_plan(
            estimate=None,
            options=RunOptions(configs=tuple(self.processes), command="kiln build"),
            layout=self.layout,
            configs=tuple(waiting),
            jobs_of={name: builders.config_job(self.layout.root, config=name) for name in self.processes},
            **self.more,
        )
        return MatrixRun(plan, ledger=self.ledger, watcher=self.observer)


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Matrix:
    return Matrix(tmp_path, monkeypatch)


def test_the_result_of_a_config_is_reported_and_in_the_ledger(matrix: Matrix) -> None:
    step = message("done", title="render", seconds=1.5, reused=True, notes=["a note"], compile=None, failed=False)
    matrix.processes["a"] = ([step, step, RESULT], ended(0))
    report = matrix.run().execute()
    (config,) = report.configs
    assert (config.state, config.peak_memory) == (ConfigState.DONE, 7)
    assert [(step.title, step.seconds, step.reused, step.notes) for step in config.steps] == [
        ("render", 1.5, True, ("a note",))
    ] * 2
    recorded = matrix.ledger.run_report(report.run)
    assert recorded is not None
    assert recorded.configs == report.configs
    assert recorded.finished is not None
    assert matrix.observer.states == [*[("a", "running")] * 3, ("a", "done")]


def test_lines_of_output_are_shown_with_their_step_and_messages_are_not(matrix: Matrix) -> None:
    progress = message("progress", done=3, total=9, current="gcc", left=None, stalled="", in_bytes=False)
    matrix.processes["a"] = (["before", message("step", title="compile"), "gcc -c a.c", progress, RESULT], ended(0))
    matrix.run().execute()
    assert matrix.observer.lines == [("a", "", "before"), ("a", "compile", ""), ("a", "compile", "gcc -c a.c")]
    assert [(progress.done, progress.total) for progress in matrix.observer.progress] == [(3, 9)]


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (ended(-9), "its process was killed by SIGKILL"),
        (ended(3, "Traceback"), "its process ended with exit code 3: Traceback"),
        (MissingTool("git not found"), "git not found"),
        (OSError("no memory"), "the config's process cannot be started: no memory"),
    ],
)
def test_a_process_without_a_result_fails_its_config_with_the_reason(
    matrix: Matrix, outcome: ProcessResult | KilnError | OSError, reason: str
) -> None:
    matrix.processes["a"] = ([], outcome)
    (config,) = matrix.run().execute().configs
    assert (config.state, config.reason) == (ConfigState.FAILED, reason)


def test_a_failed_config_keeps_its_error_and_the_others_are_built(matrix: Matrix) -> None:
    result = failed_config_result(OutOfMemory("the compile needs 9 GB", hint="--memory 9GB"))
    matrix.processes = {"a": ([message("result", **result)], ended(1)), "b": ([RESULT], ended(0))}
    run = matrix.run()
    states = [config.state for config in run.execute().configs]
    assert states == [ConfigState.OUT_OF_MEMORY, ConfigState.DONE]
    assert {config: (type(error), error.hint) for config, error in run.errors.items()} == {
        "a": (OutOfMemory, "--memory 9GB")
    }


def test_a_job_has_the_log_of_its_run(matrix: Matrix) -> None:
    matrix.processes["a"] = ([RESULT], ended(0))
    report = matrix.run().execute()
    (job,) = matrix.jobs
    assert job.log == str(report.configs[0].log) == str(matrix.layout.log_file(report.run, "a"))


@pytest.mark.parametrize("first_succeeds", [True, False])
def test_the_first_config_of_a_group_compiles_and_after_a_failure_the_next_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, first_succeeds: bool
) -> None:
    matrix = Matrix(tmp_path, monkeypatch, compiles=True)
    first = [RESULT] if first_succeeds else []
    matrix.processes = {"a": (first, ended(1)), "b": ([RESULT], ended(0)), "c": ([RESULT], ended(0))}
    matrix.run().execute()
    assert [(job.config, job.cold) for job in matrix.jobs] == [("a", True), ("b", not first_succeeds), ("c", False)]


def test_an_interrupted_run_records_the_configs_that_were_running(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix.processes = {"a": ([message("step", title="compile")], ended(-15)), "b": ([RESULT], ended(0))}

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(matrix.observer, "output_line_received", interrupt)
    run = matrix.run()
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    recorded = matrix.ledger.run_report(run.number)
    assert recorded is not None
    assert [config.state for config in recorded.configs] == [ConfigState.INTERRUPTED, ConfigState.WAITING]
    assert recorded.finished is not None
    assert len(matrix.observer.reports) == 2, "its end is shown"


class InterruptedQueue(queue.SimpleQueue[Any]):
    """A queue whose first wait begins just after a Ctrl-C, which Python handles when the wait has ended."""

    interrupted = False

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.interrupted:
            return super().get(block, timeout)
        assert timeout is not None, "a config that prints nothing for hours would keep the run from ending"
        self.interrupted = True
        raise KeyboardInterrupt


def test_a_signal_just_before_the_wait_for_an_event_is_handled_without_one(matrix: Matrix) -> None:
    matrix.processes = {"a": ([], ended(-15))}
    run = matrix.run()
    run.events = InterruptedQueue()
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    assert [config.state for config in run.configs.values()] == [ConfigState.INTERRUPTED]


class LosingQueue(queue.SimpleQueue[Any]):
    """A queue of which a Ctrl-C takes the first event of a type: it came when the wait had ended, before its return."""

    lost: type = ProcessResult
    interrupted = False

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        event = super().get(block, timeout)
        if self.interrupted or not isinstance(event[1], self.lost):
            return event
        self.interrupted = True
        raise KeyboardInterrupt


def test_a_result_that_an_interrupt_took_is_not_waited_for(matrix: Matrix) -> None:
    matrix.processes = {"a": ([], ended(-15)), "b": ([RESULT], ended(0))}
    run = matrix.run()
    run.events = LosingQueue()
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    states = [config.state for config in run.configs.values()]
    assert states == [ConfigState.INTERRUPTED, ConfigState.WAITING]


def test_a_process_whose_number_an_interrupt_took_is_killed_all_the_same(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = threading.Event()

    def run_process(*_: object, on_line: Callable[[str], None], **__: object) -> ProcessResult:
        on_line(message("hello", pid=1))
        assert killed.wait(CEILING)
        return ended(-9)

    monkeypatch.setattr(process, "run", run_process)
    monkeypatch.setattr(process_table, "kill_descendants", lambda _: killed.set())
    monkeypatch.setattr(runner, "STOP_TIMEOUT", 0.0)
    matrix.processes = {"a": ([], ended(0))}
    run = matrix.run()
    run.events = LosingQueue()
    run.events.lost = str
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    assert [config.state for config in run.configs.values()] == [ConfigState.INTERRUPTED]


class LedgerOnFullDisk(Ledger):
    """A ledger whose first ``failures`` writes of a config's state find no space."""

    failures = 0

    def update_config(self, run: int, config: ConfigRun) -> None:
        if self.failures:
            self.failures -= 1
            raise DiskFull("no space left on the disk")
        super().update_config(run, config)


@pytest.mark.parametrize(("failures", "state"), [(1, ConfigState.DONE), (99, ConfigState.WAITING)])
def test_a_full_disk_does_not_end_the_run_and_the_reserved_space_keeps_its_states(
    matrix: Matrix, failures: int, state: ConfigState
) -> None:
    matrix.processes["a"] = ([RESULT], ended(0))
    matrix.ledger = ledger = LedgerOnFullDisk(matrix.layout.root / "full.sqlite")
    ledger.failures = failures
    report = matrix.run().execute()
    assert [config.state for config in report.configs] == [ConfigState.DONE]
    recorded = ledger.run_report(report.run)
    assert recorded is not None
    assert [config.state for config in recorded.configs] == [state]
