"""Build one config in a separate process, which the run over the matrix starts.

The process holds the config's lock, has the config built on the host or in a container, puts the packages of a finished
config into the channel, and records the config. It ends with the run that started it, and its own children end with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import files, render, signals
from kiln.bazel import interrupt_script
from kiln.builder import secret_leaks
from kiln.errors import BuildFailed, KilnError, OutOfMemory
from kiln.executor import conda_build_setup_and_results
from kiln.executor.host import HostExecutor
from kiln.job import untrusted_build_results
from kiln.job.budget_monitor import BudgetMonitor
from kiln.job.job_context import JobContext
from kiln.job.job_descriptions import ConfigJob
from kiln.job.log import BuildLog
from kiln.job.messages import MARK, StepReporter, error_from_json, failed_config_result, send_message
from kiln.ledger import Ledger
from kiln.model.run import ConfigState
from kiln.name_rules import is_channel_subdir
from kiln.process_table import kill_orphans_in_folder
from kiln.run import build_job_writer
from kiln.run.options import HOST
from kiln.serialization import to_json
from kiln.store import build_cache
from kiln.store.build_cache import InputHashes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from kiln.executor.build_process_outcome import Executor, ProcessOutcome
    from kiln.model.build_results import PackageReport

CHANGED = "recipe or variant changed while it was built: the next run builds it again"
TIDYING = 30.0  # seconds for the processes of a killed run to end


def main() -> None:
    """Build the config of the job on standard input, and report its result as the last line."""
    job = ConfigJob.parse(sys.stdin.read())
    signals.die_with_parent(signal.SIGTERM, parent=job.parent)
    send_message("hello", pid=os.getpid())
    with signals.termination_as_interrupt():
        try:
            with files.full_disk_as_kiln_error(Path(job.root)):
                result = ConfigBuild.from_job(job).build_unless_finished()
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
    def from_job(cls, job: ConfigJob) -> ConfigBuild:
        """Find the feedstock and open the ledger."""
        task = JobContext.from_job(job)
        task.mask_secrets()
        return cls(task=task, executor=_choose_host_or_container_executor(task), ledger=Ledger(task.layout.ledger))

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
        """Hold the config's lock, and wait for the processes of a killed run to end.

        Raises:
            AlreadyRunning: when another run builds the config.
        """
        job = self.task.job
        return build_cache.hold_lock(
            self.task.lock_file,
            while_true=lambda: self.ledger.was_last_build_killed(job.config, rehearsal=job.options.rehearsal),
            seconds=TIDYING,
        )

    def result_of_other_run(self) -> dict[str, Any] | None:
        """Return the result of another run that has finished the config since this one was planned, if any."""
        job = self.task.job
        if job.options.rebuilds_finished:
            return None
        finished = build_cache.packages_of_finished_config(
            self.ledger, self.task.layout, InputHashes(shared=job.shared, key=job.key)
        )
        if finished is None:
            return None
        build_cache.remove_finished_work(self.task.layout, job.config)
        packages = [to_json(package) for package in finished]
        return {"state": ConfigState.CACHED.value, "reason": build_cache.FOUND, "packages": packages}

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
        changed = build_cache.recipe_and_config_digest(task.feedstock, task.job.config) != task.job.sources
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
        files.remove(task.folder / build_job_writer.RESULT)
        what_for = f"{job.group}, {job.image or 'this machine'}"
        with (
            task.layout.compile_caches.locked_folder(job.cache_key, what_for) as cache,
            BuildLog(Path(job.log)) as log,
            BudgetMonitor(options=job.options, cache=cache, stop=task.folder / interrupt_script.NAME).stop_when_spent(),
        ):
            if job.options.rehearsal:
                self.fetch_rehearsal_wheels()
            if task.uses_other_engine:
                log.record_and_pass_on_line(f"{MARK}{json.dumps({'kind': 'step', 'title': job.options.engine})}")
            shared_packages = build_job_writer.packages_reused_from_other_configs(task, self.ledger)
            reads = tuple(task.layout.root / package["artifact"]["path"] for package in shared_packages)
            outcome = self.executor.run_program(
                build_job_writer.prepare_build_process_command(task, self.executor, shared_packages), log, reads=reads
            )
            if task.uses_other_engine:
                if self.executor.on_host:  # a container's downloads are not trusted
                    conda_build_setup_and_results.move_fetched_packages_to_shared_cache(
                        task.folder, task.layout.package_cache
                    )
                for line in conda_build_setup_and_results.failure_reason_lines(outcome.error, Path(job.log)):
                    log.record_and_pass_on_line(line)
        return self.build_process_result(outcome), outcome

    def fetch_rehearsal_wheels(self) -> None:
        """Fetch the wheels of a rehearsal, by pip with the user's settings, which no other process sees."""
        from kiln.builder import rehearsal
        from kiln.rehearse import usable_python_search  # a build for real needs none of these
        from kiln.store.rehearsal_layout import RehearsalLayout

        layout, job = RehearsalLayout(config=self.task.folder), self.task.job
        wheels = rehearsal.rehearsal_plan_of_job(job)
        if job.container == HOST and job.python is None and wheels.python:
            usable_python_search.find_interpreter(wheels.python, env=os.environ)  # refuse before anything is fetched
        layout.wheels.mkdir(parents=True, exist_ok=True)
        rehearsal.fetch_wheels_and_sources(wheels, layout, env=os.environ, log=Path(job.log), reporter=StepReporter())

    def build_process_result(self, outcome: ProcessOutcome) -> dict[str, Any]:
        """Return the result of the build process, or the packages of another engine."""
        task, job = self.task, self.task.job
        nothing: dict[str, Any] = {"steps": [], "error": None, "packages": []}
        if not task.uses_other_engine:
            return untrusted_build_results.read_build_result(task.folder, build_job_writer.RESULT) or nothing
        if outcome.error is not None:
            return nothing
        tested = not task.rendered.config.is_cross
        packages = conda_build_setup_and_results.built_package_reports(task.folder, job.config, tested=tested)
        if not packages:
            raise BuildFailed(f"{job.options.engine} succeeded, but made no package", hint=f"read {job.log}")
        for package in packages:
            secret_leaks.require_no_secrets(task.folder / package["artifact"]["path"], task.caller_script_variables)
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
        archives = untrusted_build_results.accept_built_packages(
            packages, folder, expected=self.is_expected_package_path, into=staging
        )
        inputs = InputHashes(shared=job.shared, key=job.key)
        if outdated:
            never = f"outdated {os.urandom(16).hex()}"
            inputs = InputHashes(shared=never, key=never)
        if job.options.rehearsal:
            return build_cache.record_rehearsal(self.ledger, layout, job.config, archives, inputs, seconds=seconds)
        disk = files.size_on_disk(folder)
        if not outdated:
            files.create_empty_file(layout.published_marker_file(job.config))
        placed = build_cache.publish_finished_config(
            self.ledger, layout, job.config, archives, inputs, seconds=seconds, disk=disk
        )
        layout.conda_forge_done_canary(job.config).touch()
        if outdated:
            files.remove(layout.staging_folder(job.config))
        else:
            build_cache.remove_finished_work(layout, job.config)
        return placed

    def is_expected_package_path(self, place: str) -> bool:
        """Return whether the channel accepts a path: of a rendered package, or of the compile's wheel.

        Other engines name their packages themselves.
        """
        subdir, _, name = place.rpartition("/")
        if name.endswith(".whl"):
            return subdir == f"wheels/{self.task.job.group}" and not self.task.uses_other_engine
        outputs = render.close_static_pins(self.task.rendered).outputs
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


def _choose_host_or_container_executor(task: JobContext) -> Executor:
    if task.job.container == HOST:
        return HostExecutor(task=task)
    from kiln.executor.container import ContainerExecutor  # a build on the host needs no engine

    return ContainerExecutor(task=task)
