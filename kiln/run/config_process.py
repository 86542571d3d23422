"""The process of one config, which the run over the matrix starts, and the shell for ``--debug``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files, process, process_table
from kiln.base.errors import BuildFailed, KilnError, OutOfMemory
from kiln.base.patterns import is_channel_subdir
from kiln.base.process_table import kill_orphans_in_folder
from kiln.base.serialization import to_json
from kiln.base.system.machine import PACKAGE_ROOT
from kiln.build.bazel import events, watch
from kiln.build.executor import conda_build, environment
from kiln.build.executor.host import HostExecutor
from kiln.build.job import untrusted_results
from kiln.build.job.job import HOST, BuildJob, ConfigJob, JobContext, mask_build_secrets
from kiln.build.job.messages import (
    MARK,
    BudgetMonitor,
    BuildLog,
    StepReporter,
    error_from_json,
    failed_config_result,
    parse_message,
    send_message,
)
from kiln.container import emulation
from kiln.recipe import pins
from kiln.recipe.rendered import PackageSettings
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import ConfigState, TestVerdict
from kiln.state.store import cache as store_cache
from kiln.state.store.cache import InputHashes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from kiln.build.executor.conda_build import Executor, ProcessOutcome
    from kiln.run.plan import RunPlan
    from kiln.state.results import PackageReport


RESULT = "result.json"  # of the build process, in the config's folder


def make_build_job(task: JobContext, executor: Executor, shared_packages: tuple[dict[str, Any], ...]) -> BuildJob:
    """Return the job of the build process, with paths as it sees them."""
    from kiln.feedstock import job_settings

    job, inside = task.job, executor.path_inside
    return BuildJob(
        root=inside(task.feedstock.root),
        recipe=inside(task.feedstock.recipe),
        config=job.config,
        options=job.options,
        folder=inside(task.folder),
        cache=inside(executor.package_cache),
        result=inside(task.folder / RESULT),
        extra={name: job.variables[name] for name in environment.EXTRA if name in job.variables},
        compile={
            events.DISK_CACHE: str(executor.compile_cache),
            events.CACHE_KEY: job.cache_key,
            events.CPUS: str(job.cores),
            events.MEMORY: str(job.compile_memory // 10**6),
            **({} if executor.distdir is None else {events.DISTDIR: str(executor.distdir)}),
            **({events.JOBS: str(job.options.remote_jobs)} if job.options.remote_jobs else {}),
            **({events.FALLBACK: "1"} if job.options.remote_fallback else {}),
        },
        shared_packages=shared_packages,
        channel=inside(task.layout.root),
        network=executor.on_host or task.has_network,
        build_platform=task.rendered.config.build_platform,
        values_digest=task.job.values_digest,
        emulated=not job.options.rehearsal
        and emulation.can_run_platform(task.rendered.config.platform, in_container=not executor.on_host)
        and job_settings.runs_emulated_tests(task.feedstock.conda_forge_yml),
        packages=PackageSettings()
        if job.options.rehearsal
        else job_settings.package_settings(task.feedstock.conda_forge_yml),
        parent=os.getpid() if executor.on_host else None,
        python=Path(job.python) if job.python and (executor.on_host or job.python_home) else None,
        rehearsal_plan=job.rehearsal_plan,
        image=job.image,
        queue=None if executor.script_queue_folder is None else inside(executor.script_queue_folder),
    )


def packages_reused_from_other_configs(task: JobContext, ledger: Ledger) -> tuple[dict[str, Any], ...]:
    """Return the packages that another config has made, as JSON values; empty for a cold build with --rebuild.

    One whose tests were skipped is left out where they run now.
    """
    from kiln.feedstock import job_settings

    job = task.job
    if task.uses_other_engine or job.options.rehearsal or (job.options.rebuild and job.cold):
        return ()
    inputs = InputHashes(shared=job.shared, key=job.key)
    packages = store_cache.packages_made_by_other_configs(
        ledger,
        task.layout,
        pins.close_static_pins(task.rendered).outputs,
        inputs,
        set(task.feedstock.config_names) - {job.config},
    )
    runs = job_settings.runs_emulated_tests(task.feedstock.conda_forge_yml) and emulation.can_run_platform(
        task.rendered.config.platform, in_container=job.container != HOST
    )
    return tuple(to_json(report) for report in packages if not (runs and report.tests.verdict is TestVerdict.SKIPPED))


CHANGED = "recipe or variant changed while it was built: the next run builds it again"
TIDYING = 30.0  # seconds for the processes of a killed run to end


def main() -> None:
    """Build the config of the job on standard input, and report its result as the last line."""
    job = ConfigJob.parse(sys.stdin.read())
    process_table.die_with_parent(signal.SIGTERM, parent=job.parent)
    send_message("hello", pid=os.getpid())
    with process_table.termination_as_interrupt():
        try:
            with files.full_disk_as_kiln_error(Path(job.root)):
                result = ConfigBuild.from_job(job, os.environ).build_unless_finished()
        except KeyboardInterrupt:
            result = {"state": ConfigState.INTERRUPTED.value, "reason": "stopped"}
        except KilnError as error:
            result = failed_config_result(error)
        except OSError as error:
            if (refusal := files.os_error_as_kiln_error(error)) is None:
                raise
            result = failed_config_result(refusal)
    send_message("result", **result)
    os._exit(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigBuild:
    """The build of a config in this process, and the executor of its programs."""

    task: JobContext
    executor: Executor
    ledger: Ledger

    @classmethod
    def from_job(cls, job: ConfigJob, environment: Mapping[str, str]) -> ConfigBuild:
        """Find the feedstock and open the ledger; for ``environment`` see `JobContext`."""
        task = JobContext.from_job(job, environment)
        mask_build_secrets(task.rendered, environment, task.compile_secrets)
        executor: Executor = HostExecutor(task=task)
        if job.container != HOST:
            from kiln.build.executor.container import ContainerExecutor  # a build on the host needs no engine

            executor = ContainerExecutor(task=task)
        return cls(task=task, executor=executor, ledger=Ledger(task.layout.ledger))

    def build_unless_finished(self) -> dict[str, Any]:
        """Build the config while holding its lock, unless another run has finished it."""
        job, folder = self.task.job, self.task.folder
        # --debug: the caller holds the lock
        with self.hold_config_lock() if job.options.debug is None else contextlib.nullcontext():
            kill_orphans_in_folder(folder)
            try:
                return self.result_of_other_run() or self.build_and_publish()
            finally:
                kill_orphans_in_folder(folder)

    def hold_config_lock(self) -> AbstractContextManager[None]:
        """Hold the config's lock, and wait for the processes of a killed run to end."""
        job = self.task.job
        return store_cache.hold_lock(
            self.task.lock_file,
            while_true=lambda: self.ledger.was_last_build_killed(job.config, rehearsal=job.options.rehearsal),
            seconds=TIDYING,
        )

    def result_of_other_run(self) -> dict[str, Any] | None:
        """Return the result of another run that has finished the config since this one was planned, if any."""
        job = self.task.job
        if job.options.rebuilds_finished:
            return None
        finished = store_cache.packages_of_finished_config(
            self.ledger, self.task.layout, InputHashes(shared=job.shared, key=job.key)
        )
        if finished is None:
            return None
        store_cache.remove_finished_work(self.task.layout, job.config)
        packages = [to_json(package) for package in finished]
        return {"state": ConfigState.CACHED.value, "reason": store_cache.FOUND, "packages": packages}

    def build_and_publish(self) -> dict[str, Any]:
        """Build the config and put its packages into the channel."""
        task, start = self.task, time.monotonic()
        files.remove(task.layout.published_marker_file(task.job.config))
        if task.job.options.debug is None and not task.job.options.rehearsal:
            files.remove(task.layout.conda_forge_done_canary(task.job.config))
        self.remove_unusable_work_folder()
        result, outcome = self.run_build_process()
        common = {"steps": result["steps"], "peak_memory": outcome.peak_memory}
        if (error := config_build_error(result, outcome, task.job)) is not None:
            if task.uses_other_engine and not task.job.options.keep_failed:
                files.remove(task.folder)
            return {**failed_config_result(error), **common}
        good = {"state": ConfigState.DONE.value, "reason": "", **common}
        if task.job.options.debug is not None:
            return {**good, "debug": result["debug"]}
        changed = store_cache.recipe_and_config_digest(task.feedstock, task.job.config) != task.job.sources
        outdated = changed or result.get("outdated", False)
        made_from = {"feedstock": "" if changed else task.job.sources}
        packages = self.publish_to_channel(
            [{**package, **made_from} for package in result["packages"]], time.monotonic() - start, outdated=outdated
        )
        good["reason"] = CHANGED if changed else ""
        return {**good, "packages": [to_json(package) for package in packages]}

    def remove_unusable_work_folder(self) -> None:
        """Remove the folder for --rebuild, and where a build moves from container to host, or back.

        The host would run files that a script has written; and scripts must not change links to the host's caches.
        """
        task = self.task
        mark = task.layout.container_marker_file(task.job.config)
        if task.job.options.rebuild or mark.exists() == self.executor.on_host:
            files.remove(task.folder)
        if self.executor.on_host:
            files.remove(mark)
        else:
            files.create_empty_file(mark)

    def run_build_process(self) -> tuple[dict[str, Any], ProcessOutcome]:
        """Run the build process to its end; return its result and its outcome."""
        task, job = self.task, self.task.job
        files.remove(task.folder / RESULT)
        what_for = f"{job.group}, {job.image or 'this machine'}"
        with (
            task.layout.compile_caches.locked_folder(job.cache_key, what_for) as cache,
            BuildLog(Path(job.log)) as log,
            BudgetMonitor(options=job.options, cache=cache, stop=task.folder / watch.NAME).stop_when_spent(),
        ):
            if job.options.rehearsal:
                self.fetch_rehearsal_wheels()
            if task.uses_other_engine:
                log.record_and_pass_on_line(f"{MARK}{json.dumps({'kind': 'step', 'title': job.options.engine})}")
            shared_packages = packages_reused_from_other_configs(task, self.ledger)
            reads = tuple(task.layout.root / package["artifact"]["path"] for package in shared_packages)
            if task.uses_other_engine:
                command = conda_build.write_engine_script(task, self.executor)
            else:
                task.folder.mkdir(parents=True, exist_ok=True)
                self.executor.package_cache.mkdir(parents=True, exist_ok=True)
                file = task.folder / "job.json"
                files.write_text(file, make_build_job(task, self.executor, shared_packages).as_text())
                command = self.executor.job_command(file)
            outcome = self.executor.run_program(command, log, reads=reads)
            if task.uses_other_engine:
                if self.executor.on_host:  # a container's downloads are not trusted
                    conda_build.move_fetched_packages_to_shared_cache(task.folder, task.layout.package_cache)
                for line in conda_build.failure_reason_lines(outcome.error, Path(job.log)):
                    log.record_and_pass_on_line(line)
        return self.build_process_result(outcome), outcome

    def fetch_rehearsal_wheels(self) -> None:
        """Fetch the wheels of a rehearsal, by pip with the user's settings, which no other process sees."""
        from kiln.build.rehearsal import (
            python_search,  # a build for real needs none of these
            rehearse,
        )
        from kiln.state.store.layout import RehearsalLayout

        layout, job = RehearsalLayout(config=self.task.folder), self.task.job
        wheels = rehearse.rehearsal_plan_of_job(job)
        if job.container == HOST and job.python is None and wheels.packaged_python:
            python_search.find_interpreter(
                wheels.python, env=self.task.environment
            )  # refuse before anything is fetched
        layout.wheels.mkdir(parents=True, exist_ok=True)
        rehearse.fetch_wheels_and_sources(
            wheels, layout, env=self.task.environment, log=Path(job.log), reporter=StepReporter()
        )

    def build_process_result(self, outcome: ProcessOutcome) -> dict[str, Any]:
        """Return the result of the build process, or the packages of another engine."""
        task, job = self.task, self.task.job
        nothing: dict[str, Any] = {"steps": [], "error": None, "packages": []}
        if not task.uses_other_engine:
            return untrusted_results.read_build_result(task.folder, RESULT) or nothing
        if outcome.error is not None:
            return nothing
        tested = not task.rendered.config.is_cross
        packages = conda_build.built_package_reports(task.folder, job.config, tested=tested)
        if not packages:
            raise BuildFailed(f"{job.options.engine} succeeded, but made no package", hint=f"read {job.log}")
        for package in packages:
            untrusted_results.require_no_secrets(task.folder / package["artifact"]["path"], task.script_variables)
        return {**nothing, "packages": packages}

    def publish_to_channel(
        self, packages: list[dict[str, Any]], seconds: float, *, outdated: bool
    ) -> tuple[PackageReport, ...]:
        """Put the packages into the channel, record the config, and remove its folder.

        An ``outdated`` config was built in part from earlier inputs: it is recorded under a key that no config has, so
        the next run builds it again, and its folder stays for another ``--from-step``.
        """
        job, layout, folder = self.task.job, self.task.layout, self.task.folder
        staging = None if job.options.rehearsal else layout.staging_folder(job.config)
        archives = untrusted_results.accept_built_packages(
            packages, folder, expected=self.is_expected_package_path, into=staging
        )
        inputs = InputHashes(shared=job.shared, key=job.key)
        if outdated:
            never = f"outdated {os.urandom(16).hex()}"
            inputs = InputHashes(shared=never, key=never)
        if job.options.rehearsal:
            return store_cache.record_rehearsal(self.ledger, layout, job.config, archives, inputs, seconds=seconds)
        disk = files.size_on_disk(folder)
        if not outdated:
            files.create_empty_file(layout.published_marker_file(job.config))
        placed = store_cache.publish_finished_config(
            self.ledger,
            layout,
            job.config,
            archives,
            inputs,
            matrix=self.task.feedstock.config_names,
            seconds=seconds,
            disk=disk,
        )
        layout.conda_forge_done_canary(job.config).touch()
        if outdated:
            files.remove(layout.staging_folder(job.config))
        else:
            store_cache.remove_finished_work(layout, job.config)
        return placed

    def is_expected_package_path(self, place: str) -> bool:
        """Return whether the channel accepts a path: of a rendered package, or of the compile's wheel.

        Other engines name their packages themselves.
        """
        subdir, _, name = place.rpartition("/")
        if name.endswith(".whl"):
            return subdir == f"wheels/{self.task.job.group}" and not self.task.uses_other_engine
        outputs = pins.close_static_pins(self.task.rendered).outputs
        rendered = {output.channel_path for output in outputs if not output.skip}
        return (
            is_channel_subdir(subdir) and name.endswith(".conda") and (self.task.uses_other_engine or place in rendered)
        )


def config_build_error(result: Mapping[str, Any], outcome: ProcessOutcome, job: ConfigJob) -> KilnError | None:
    """Return the error of a config, if any: OutOfMemory when the kernel killed processes of it."""
    error = outcome.error if result["error"] is None else error_from_json(result["error"])
    if error is None or not outcome.starved:
        return error
    limit = "this machine" if job.memory is None else files.human_readable_size(job.memory)
    return OutOfMemory(
        f"{job.config} needed more memory than {limit}",
        why=error.what,
        hint="give it more with --memory, run fewer at once with -j, or lower CPU_COUNT",
    )


# An interactive shell on a terminal; else one that reads its commands.
SHELL = '. "$1"; if [ -t 0 ]; then exec bash --norc -i; else exec bash -s; fi'


def open_debug_shell(planned: RunPlan, *, terminal: Mapping[str, str] | None, show: Callable[[str], None]) -> int:
    """Prepare an output of the plan's one config, open a shell there, and return the shell's exit code.

    ``terminal`` are the variables of the terminal at standard input, None without one. ``show`` gets the progress of
    the preparation.

    Raises:
        KilnError: the errors of a build.
    """
    ((config, planned_job),) = planned.jobs_of.items()
    log = planned.layout.safe_path("logs", "debug", f"{config}.log")
    job = dataclasses.replace(planned_job, log=str(log), parent=os.getpid())
    entry = ConfigBuild.from_job(job, planned.process_environment)
    with entry.hold_config_lock():  # until the shell ends, so that no other run removes the prepared files
        task, executor = entry.task, entry.executor
        if task.uses_other_engine:
            return executor.run_on_terminal(conda_build.write_engine_script(task, executor), terminal)
        lines = shell_startup_lines(prepare_build_script(job, planned, show))
        entered = task.folder / "enter.sh"  # not below, where a script may have replaced a folder by a link
        files.write_text(entered, lines)
        return executor.run_on_terminal(("bash", "-c", SHELL, "kiln", str(executor.path_inside(entered))), terminal)


def prepare_build_script(job: ConfigJob, planned: RunPlan, show: Callable[[str], None]) -> Mapping[str, str]:
    """Have a config's process do everything before the script; return the script's paths."""
    result: dict[str, Any] = {}

    def show_or_store_message(line: str) -> None:
        message = parse_message(line)
        if message is None:
            show(line)
        elif message["kind"] == "step":
            show(f"- {message['title']}")
        elif message["kind"] == "result":
            result.update(message)

    result_of_process = process.run(
        process.Program.CONFIG.main_command(),
        env=planned.options.client,
        cwd=PACKAGE_ROOT,
        on_line=show_or_store_message,
        stdin=job.as_text(),
        own=MARK,
    )
    if result.get("error"):
        raise error_from_json(result["error"])
    if "debug" not in result:
        raise BuildFailed(
            f"{job.config} could not be prepared: exit code {result_of_process.exit_code}", hint=f"read {job.log}"
        )
    places: Mapping[str, str] = result["debug"]
    return places


def shell_startup_lines(places: Mapping[str, str]) -> str:
    """Return the shell lines that change to a script's folder, and describe it."""
    name = places["name"]
    script = places["script"].removeprefix(f"{places['work']}/")
    lines = (
        f"{name}: {places['work']}",
        f"  sources and compiled files:    {places['sources']}  ($SRC_DIR)",
        f"  host environment:              {places['host']}  ($PREFIX)",
        f"  build environment:             {places['build']}  ($BUILD_PREFIX)",
        f"run the script with ./{script}, leave with 'exit'",
        "changes here do not get into a package"
        if places["sources"] == places["work"]
        else "changes in $SRC_DIR stay for the config's next build; --rebuild removes them",
    )
    return "\n".join(
        (
            f"cd {shlex.quote(places['work'])}",
            f". {shlex.quote(places['environment'])}",
            f"export SRC_DIR={shlex.quote(places['sources'])} PS1={shlex.quote(f'[debug {name}] $ ')}",
            f"printf '%s\\n' {' '.join(map(shlex.quote, lines))}",
            "",
        )
    )
