"""Run a plan over the matrix: each config in a separate process, every change recorded at once."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import queue
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln import __version__
from kiln.base import files, process, process_table
from kiln.base.errors import BuildFailed, DiskFull, KilnError
from kiln.base.system.machine import PACKAGE_ROOT, processor_name
from kiln.build.bazel import events
from kiln.build.job.messages import MARK, error_from_json, parse_message
from kiln.run import simulation
from kiln.state.ledger import json_columns
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import ConfigRun, ConfigState, MatrixReport, PackageReport, StepReport
from kiln.state.store import cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kiln.build.job.job import ConfigJob, HostMachine, RunOptions
    from kiln.recipe.feedstock import Feedstock
    from kiln.run.plan import RunPlan
    from kiln.state.results import JobEstimate, RunObserver


def plan_run(
    feedstock: Feedstock, options: RunOptions, machine: HostMachine, *, on_line: Callable[[str], None] | None = None
) -> RunPlan:
    """Return the plan of a run, see `kiln.run.plan.make_run_plan`; ``on_line`` gets the progress of fetched images."""
    from kiln.run import recipe_checks
    from kiln.run.plan import make_run_plan
    from kiln.state.store.layout import ArtifactLayout

    recipe_checks.require_engine_of_recipe(feedstock, options.build.engine)
    build_options = options.build
    layout = ArtifactLayout.for_feedstock(
        feedstock, rehearsal=build_options.rehearsal, compile_cache=build_options.compile_cache
    )
    with Ledger(layout.ledger) as ledger:
        return make_run_plan(feedstock, options, machine=machine, ledger=ledger, layout=layout, on_line=on_line)


def caller_variable_names(feedstock: Feedstock, configs: Iterable[str]) -> frozenset[str]:
    """Return the names of the caller's variables that the recipe passes to the scripts of configs.

    A meta.yaml names them in ``build/script_env``, a recipe.yaml in the ``secrets`` of a script. Configs that cannot be
    rendered are left out: the plan of a run refuses those that it builds.
    """
    from kiln.base import limits
    from kiln.feedstock import config_file
    from kiln.recipe import render

    recipe = "\n".join(map(files.text_or_empty, (feedstock.meta, feedstock.recipe_v1)))
    if not any(key in recipe for key in ("script_env", "secrets")):
        return frozenset()
    from kiln.build.engine.recipe import config_caller_variable_names as of  # most recipes have none

    def read_names() -> frozenset[str]:
        names: set[str] = set()
        for config in configs:
            with contextlib.suppress(KilnError):
                names.update(of(render.render(feedstock, config_file.read_config(feedstock, config))))
        return frozenset(names)

    return limits.run_bounded(read_names)


def build_planned_configs(planned: RunPlan, watcher: RunObserver) -> tuple[MatrixReport, Mapping[str, KilnError]]:
    """Build a plan; return the report, and the errors of failed configs.

    Raises:
        KeyboardInterrupt: when the run was stopped; finished configs are kept.
    """
    with Ledger(planned.layout.ledger) as ledger:
        run = MatrixRun(planned, ledger=ledger, watcher=watcher)
        try:
            return run.execute(), run.errors
        finally:
            if used := {job.cache_key for job in planned.jobs_of.values()}:
                planned.layout.compile_caches.trim_to_size(planned.options.cache_bound, keep=used)


def last_config_states(feedstock: Feedstock, *, rehearsal: bool) -> Mapping[str, ConfigState]:
    """Return the state of each config in its last run, of rehearsals or of builds."""
    from kiln.state.store.layout import ArtifactLayout

    with Ledger(ArtifactLayout.for_feedstock(feedstock).ledger) as ledger:
        return ledger.latest_config_states(rehearsal=rehearsal)


RESERVE = 1 << 20  # bytes of disk, to record that it is full
STOP_TIMEOUT = 30.0  # seconds for a stopped config to clean up


@dataclass(slots=True, kw_only=True)
class RunningConfig:
    """The state of a config's process, from its messages."""

    thread: threading.Thread
    pid: int | None = None
    step: str = ""
    result: dict[str, Any] = field(default_factory=dict)


class MatrixRun:
    """A run of a plan: this thread alone decides, records and reports; other threads only read from the processes."""

    def __init__(self, plan: RunPlan, *, ledger: Ledger, watcher: RunObserver) -> None:
        self.plan = plan
        self.ledger = ledger
        self.layout = plan.layout
        self.watcher = watcher
        # No queue.Queue: a Ctrl-C between its lock and its block would leave it locked for ever.
        self.events: queue.SimpleQueue[tuple[str, str | process.ProcessResult | KilnError]] = queue.SimpleQueue()
        self.running: dict[str, RunningConfig] = {}
        self.queue = simulation.queue_of_configs(plan.waiting, shared=plan.compiles)
        self.errors: dict[str, KilnError] = {}
        self.unindexed: list[str] = []  # configs whose packages are in the channel, but not in its index yet
        self.number = 0
        self.stopping = False
        self.configs: dict[str, ConfigRun] = {config.config: config for config in plan.configs}
        self.started = time.time()

    def execute(self) -> MatrixReport:
        """Build all waiting configs, and return the report.

        Raises:
            KeyboardInterrupt: when the run was stopped; its state is recorded.
            BrokenPackage: the channel has a package that cannot be indexed, from an earlier run.
        """
        self.layout.hide_from_git()
        cache.index_channel(self.layout)  # after a run that was killed
        self.reserve = files.ReservedDiskSpace(self.layout.root, RESERVE)
        self.number = self.ledger.begin_run(self.current_report())
        self.watcher.run_began(self.current_report())
        cached = [name for name, config in self.configs.items() if config.state is ConfigState.CACHED]
        cache.remove_leftover_work_folders(self.layout, cached)
        try:
            while self.queue or self.running:
                while len(self.running) < self.plan.options.jobs and (job := self.queue.next("", time.time())):
                    self._start_config(job)
                if self.events.empty():
                    self._index_new_packages()
                self._process_config_event(*self._next_event())
        except KeyboardInterrupt:
            self._stop_processes()
            raise
        finally:
            self._index_new_packages()
            self._write_to_ledger(lambda: self.ledger.end_run(self.number))
            self.reserve.release()
            self.watcher.run_ended(self.current_report(finished=time.time()))
        return self.current_report(finished=time.time())

    def current_report(self, finished: float | None = None) -> MatrixReport:
        """Return the current state of the run."""
        plan = self.plan
        return MatrixReport(
            run=self.number,
            command=plan.options.command,
            started=self.started,
            finished=finished,
            machine=f"{platform.node()}, {processor_name() or platform.machine()}",
            cores=plan.cores,
            jobs=plan.options.jobs,
            engine=plan.options.build.engine,
            container=plan.container,
            image=plan.image,
            rehearsal=plan.options.build.rehearsal,
            commit=plan.options.caller_variables.get("sha", ""),
            remote_url=plan.options.remote_url,
            kiln_version=__version__,
            ci_url=plan.options.ci_url,
            workflow=plan.options.workflow,
            configs=tuple(self.configs.values()),
        )

    def _start_config(self, estimate: JobEstimate) -> None:
        name = estimate.config
        self.queue.begin_build(name, estimate, time.time())
        cold = self.queue.is_running_build_cold(name) if self.plan.compiles else self.configs[name].cold
        log = self.layout.log_file(self.number, name)
        config = dataclasses.replace(self.configs[name], state=ConfigState.RUNNING, started=time.time(), log=log)
        self._record_config_state(dataclasses.replace(config, cold=cold))
        job = dataclasses.replace(self.plan.jobs_of[name], log=str(log), parent=os.getpid(), cold=cold)
        thread = threading.Thread(target=self._run_config_process, args=(job,), daemon=True)
        self.running[name] = RunningConfig(thread=thread)
        thread.start()

    def _run_config_process(self, job: ConfigJob) -> None:
        """Run a config's process and queue its lines; the last event is its result or error."""
        config = job.config
        try:
            secrets = events.with_secrets_inside_credentials(self.plan.compile_secrets)
            result = process.run(
                process.Program.CONFIG.main_command(),
                stdin=job.as_text(),
                env=self.plan.process_environment,
                secrets=tuple(secrets.values()),
                cwd=PACKAGE_ROOT,
                on_line=lambda line: self.events.put((config, line)),
                own=MARK,
            )
        except KilnError as error:
            self.events.put((config, error))
        except OSError as error:
            self.events.put((config, BuildFailed(f"the config's process cannot be started: {error}")))
        else:
            self.events.put((config, result))

    def _next_event(self) -> tuple[str, str | process.ProcessResult | KilnError]:
        """Wait for the next event, in steps: a signal that comes just before a wait is handled when that has ended."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self.events.get(timeout=1.0)

    def _process_config_event(self, config: str, event: str | process.ProcessResult | KilnError) -> None:
        config_run = self.running[config]
        if not isinstance(event, str):
            self._record_config_result(config, config_run, event)
            return
        message = parse_message(event)
        if message is None:
            self.watcher.output_line_received(config, config_run.step, event)
        else:
            self._apply_process_message(config, config_run, message)

    def _apply_process_message(self, config: str, config_run: RunningConfig, message: Mapping[str, Any]) -> None:
        match message["kind"]:
            case "hello":
                config_run.pid = message["pid"]
                if self.stopping:
                    self._signal_processes(signal.SIGTERM)
            case "step":
                config_run.step = str(message["title"])
                self.watcher.output_line_received(config, config_run.step, "")
            case "expected":
                config_now = self.configs[config]
                expected = len(config_now.steps) + int(message["steps"])
                self._record_config_state(dataclasses.replace(config_now, expected_steps=expected))
            case "progress":
                self.watcher.progress_changed(config, json_columns.progress_from_json(message))
            case "done":
                fields = {name: value for name, value in message.items() if name != "kind"}
                step = json_columns.record_from_json(StepReport, fields)
                steps = (*self.configs[config].steps, step)
                self._record_config_state(dataclasses.replace(self.configs[config], steps=steps))
            case "result":
                config_run.result = dict(message)

    def _record_config_result(
        self, config: str, config_run: RunningConfig, outcome: process.ProcessResult | KilnError
    ) -> None:
        """Record the result of a config; a process without one was killed."""
        del self.running[config]
        state = ConfigState.INTERRUPTED if self.stopping else ConfigState.FAILED
        result = config_run.result or {"state": state.value, "reason": _missing_result_reason(outcome)}
        if result.get("error"):
            self.errors[config] = error_from_json(result["error"])
        self.queue.end_build(config, ok=result["state"] in {ConfigState.DONE.value, ConfigState.CACHED.value})
        self._record_config_state(
            dataclasses.replace(
                self.configs[config],
                state=ConfigState(result["state"]),
                finished=time.time(),
                reason=result["reason"],
                peak_memory=result.get("peak_memory"),
                packages=tuple(
                    json_columns.record_from_json(PackageReport, package) for package in result.get("packages", ())
                ),
            )
        )
        if self.configs[config].state is ConfigState.DONE:
            self.unindexed.append(config)

    def _index_new_packages(self) -> None:
        """Index the packages of the configs that have finished meanwhile; a failure is theirs.

        One process for the run does it while this thread would wait, not one for each config, since it takes longer to
        start than to index.
        """
        configs, self.unindexed = self.unindexed, []
        try:
            if configs:
                cache.index_channel(self.layout)
        except KilnError as error:
            for config in configs:
                self.errors[config] = error
                failed = dataclasses.replace(self.configs[config], state=ConfigState.FAILED, reason=error.what)
                self._record_config_state(failed)

    def _record_config_state(self, config: ConfigRun) -> None:
        self.configs[config.config] = config
        self._write_to_ledger(lambda: self.ledger.update_config(self.number, config))
        self.watcher.config_changed(config)

    def _write_to_ledger(self, write: Callable[[], None]) -> None:
        """Write to the ledger, even on a disk that a build has filled: in the reserved space.

        If that is not enough either, the run continues; the config later counts as interrupted.
        """
        try:
            write()
        except DiskFull:
            self.reserve.release()
            with contextlib.suppress(DiskFull):
                write()

    def _stop_processes(self) -> None:
        """Stop every process, and record the results; each cleans up after itself."""
        self.stopping = True
        until = time.monotonic() + STOP_TIMEOUT
        self._signal_processes(signal.SIGTERM)
        while self.running:
            try:
                with contextlib.suppress(queue.Empty):
                    self._process_config_event(*self.events.get(timeout=1.0))
                self._record_lost_results()
                if time.monotonic() > until:
                    self._signal_processes(signal.SIGKILL)
            except KeyboardInterrupt:
                self._signal_processes(signal.SIGKILL)

    def _record_lost_results(self) -> None:
        """Record the configs that have ended without an event: an interrupt at its arrival has taken it."""
        over = [name for name, config_run in self.running.items() if not config_run.thread.is_alive()]
        if self.events.empty():  # a thread's last event comes before its end
            for name in over:
                self._record_config_result(name, self.running[name], BuildFailed("stopped"))

    def _signal_processes(self, number: signal.Signals) -> None:
        for config in self.running.values():
            if config.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(config.pid, number)
        if number is signal.SIGKILL and any(config.pid is None for config in self.running.values()):
            process_table.kill_descendants(os.getpid())  # an interrupt may have taken the message with the number


def _missing_result_reason(outcome: process.ProcessResult | KilnError) -> str:
    if isinstance(outcome, KilnError):
        return outcome.what
    if outcome.exit_code < 0:
        return f"its process was killed by {signal.Signals(-outcome.exit_code).name}"
    return f"its process ended with exit code {outcome.exit_code}: {outcome.tail[-500:]}"
