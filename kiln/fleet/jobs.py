"""The jobs of a fleet run: each config is assigned to a worker, built, collected, and retried or given up."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from kiln.base.errors import (
    BudgetSpent,
    BuildFailed,
    DiskFull,
    FleetLimit,
    HashMismatch,
    KilnError,
    OutOfMemory,
    WorkersLost,
    error_class_of_exit_code,
)
from kiln.base.text import duration
from kiln.build.job.collected import ResultsCollected
from kiln.fleet.inventory import OVER
from kiln.fleet.model import JobState
from kiln.fleet.plan.plan import Assumptions
from kiln.fleet.protocol import BuildStarted, CollectResults, FollowBuild, StartBuild, StopBuild
from kiln.fleet.state import RETRY, TRIES
from kiln.recipe.rendered import COMPILE
from kiln.run.simulation import estimate_by_sibling
from kiln.state.results import ConfigState

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from kiln.fleet.inventory import Worker
    from kiln.fleet.protocol import BuildFinished, CollectFailed, QueuedBuildStarted
    from kiln.fleet.state import FleetState
    from kiln.state.results import JobEstimate

IMPROBABLE = 1e-9  # a chance of so many losses of any config of a run: rather, the config is at fault
ASSUMED = 5 * 3600.0  # seconds of builds for each lost worker, before any is lost
RUNNING = frozenset({JobState.REQUESTED, JobState.RUNNING})
FULL_DISKS = 2  # workers whose disk a config may fill before the config itself is at fault


class JobManager:
    """Decides about the configs of a run."""

    def __init__(self, state: FleetState) -> None:
        self.state = state
        self.stopped: set[str] = set()  # configs whose build was stopped at its time limit
        self.measured: set[tuple[str, bool]] = set()  # groups of which a cold, or a warm, build has ended in this run
        self.faults: dict[str, str] = {}  # groups whose compile has failed, each with the config that it failed in

    def assign_to_unready_worker(self, worker: Worker, now: float) -> None:
        """Assign a config to a worker that is being provisioned, if there is one."""
        begin = now + self.state.run_config.assumptions.startup
        worker.assignment = self.state.queue.begin_next_build(worker.name, begin)

    def resume_job(self, estimate: JobEstimate) -> bool:
        """Resume a config that a worker builds, or has built and still holds; return whether one does."""
        job = self.state.inventory.latest_job(estimate.config)
        worker = None if job is None else self.state.inventory.workers.get(job.worker)
        if job is None or worker is None or not worker.is_alive or job.state in OVER:
            return False
        if job.state is JobState.FINISHED:
            worker.uncollected[estimate.config] = 0
            return True
        estimate = dataclasses.replace(
            estimate, type=self.state.queue.worker_machine_type(worker.name) if estimate.type else ""
        )
        worker.assignment, worker.is_building = estimate, True
        self.state.queue.resume_build(worker.name, estimate, job.started)
        log = self.state.run_config.build_log_path(estimate.config, job.attempt)
        self.state.update_config(
            estimate.config,
            state=ConfigState.RUNNING,
            started=job.started,
            log=log,
            cold=job.cold,
            worker=worker.name,
        )
        return True

    def start_build(self, worker: Worker, estimate: JobEstimate, now: float, *, cache: str) -> None:
        """Store that a worker builds a config, and start the build; ``cache`` is the URL of its cache, or empty."""
        worker.is_building = True
        self.stopped.discard(estimate.config)
        cold = self.state.queue.is_running_build_cold(worker.name)
        job = self.state.inventory.add_job(estimate.config, worker=worker.name, now=now, cold=cold)
        self.state.update_config(
            estimate.config,
            state=ConfigState.RUNNING,
            started=now,
            finished=None,
            cold=cold,
            reason="",
            estimate=self.state.queue.running_build_seconds(worker.name),
            log=self.state.run_config.build_log_path(estimate.config, job.attempt),
            worker=worker.name,
        )
        self.state.submit_command(
            StartBuild(
                worker=worker.name,
                config=estimate.config,
                cache=cache,
                key=estimate.key,
                attempt=job.attempt,
                after=self.state.queue.awaited_config(worker.name),
                reclaimable=worker.record.spot,
            )
        )

    def stop_overdue_build(self, worker: Worker, now: float) -> None:
        """Have a build stopped that takes longer than it may."""
        due = self.build_stop_time(worker)
        if due is not None and now >= due and worker.assignment is not None:
            self.stopped.add(worker.assignment.config)
            self.state.submit_command(StopBuild(worker=worker.name, config=worker.assignment.config))

    def build_stop_time(self, worker: Worker) -> float | None:
        """Return when a worker's build is to be stopped, None for never."""
        estimate = worker.assignment
        if estimate is None or not worker.is_building or estimate.size.time_limit is None:
            return None
        job = self.state.inventory.latest_job(estimate.config)
        if job is None or estimate.config in self.stopped:
            return None
        return job.started + estimate.size.time_limit

    def collect_results(self, worker: Worker, config: str) -> None:
        """Have the results of a build collected."""
        key = self.state.estimates[config].key
        self.state.submit_command(CollectResults(worker=worker.name, config=config, key=key))

    def follow_build(self, worker: Worker, config: str) -> None:
        """Have a build followed."""
        log = self.state.run_config.build_log_path(config, self.state.inventory.attempt_count(config))
        self.state.submit_command(FollowBuild(worker=worker.name, config=config, log=log))

    def on_build_started(self, worker: Worker, event: BuildStarted | QueuedBuildStarted) -> None:
        """Follow a build that was started; store when it has begun, if until then it waited in the provider's queue."""
        if isinstance(event, BuildStarted):
            self.state.inventory.update_job(event.config, state=JobState.RUNNING)
            self.follow_build(worker, event.config)
            return
        self.state.inventory.update_job(event.config, started=event.at)
        self.state.update_config(event.config, started=event.at)

    def on_handover(self, worker: Worker, event: ResultsCollected | CollectFailed) -> None:
        """Queue a config again whose build has handed over what it made, or could not."""
        worker.handover = ""
        what = "is handed on" if isinstance(event, ResultsCollected) else f"is lost: {event.reason}"
        reason = f"the provider takes the worker back; what it has built {what}"
        self.requeue_or_fail_config(self.state.estimates[event.config], worker, reason)

    def on_build_finished(self, worker: Worker, event: BuildFinished) -> None:
        """Free a worker for its next config; what it has built is collected in parallel."""
        self.state.queue.end_build(worker.name, ok=event.exit_code == 0)
        worker.assignment, worker.is_building = None, False
        worker.is_retired |= event.unfit
        if worker.is_reclaimed and event.exit_code == BudgetSpent.exit_code:
            worker.handover = event.config
            self.state.submit_command(
                CollectResults(worker=worker.name, config=event.config, until=worker.reclaimed_at)
            )
            return
        if event.config in self.stopped and event.exit_code != 0:
            limit = self.state.estimates[event.config].size.time_limit or 0.0
            reason = f"stopped at its time limit of {duration(limit)}, which fleet-sizes.yml or the recipe sets"
            event = dataclasses.replace(event, exit_code=FleetLimit.exit_code, reason=reason)
        if worker.is_reclaimed and event.exit_code != 0:
            event = dataclasses.replace(event, exit_code=None, reason="the provider takes the worker back")
        if event.exit_code is None:
            error = FleetLimit if event.overdue else WorkersLost
            self.requeue_or_fail_config(
                self.state.estimates[event.config], worker, event.reason or "its build is gone", error
            )
            return
        worker.is_retired |= event.exit_code == DiskFull.exit_code
        end, begun = self.state.executor.now(), self.state.inventory.latest_job(event.config)
        if event.at is not None:
            end = event.at
        elif event.seconds is not None and begun is not None:  # a controller that was away hears of the end later
            end = min(end, begun.started + event.seconds)
        job = self.state.inventory.update_job(
            event.config,
            state=JobState.FINISHED,
            finished=end,
            exit_code=event.exit_code,
            reason=event.reason,
        )
        worker.uncollected[event.config] = 0
        if event.exit_code == 0 and job.finished is not None:
            self._revise_estimates(self.state.estimates[event.config], job.finished - job.started, cold=job.cold)
        if job.cold and event.exit_code == BuildFailed.exit_code and not self.state.run_config.options.keep_going:
            self.state.queue.hold_group(
                self.state.estimates[event.config]
            )  # until its report says which step has failed
        self.collect_results(worker, event.config)

    def _revise_estimates(self, built: JobEstimate, seconds: float, *, cold: bool) -> None:
        """Expect of the configs whose times are only assumed what one has just taken: of each group the first tells."""
        state = self.state
        if seconds <= 0 or (built.group, cold) in self.measured:
            return
        self.measured.add((built.group, cold))
        assumptions = Assumptions.read()
        cores = {kind.type: kind.cores for kind in state.run_config.max_workers_by_type}
        for name, job in state.estimates.items():
            here = seconds * assumptions.slowdown(cores.get(job.type, 0), cores.get(built.type, 0))
            state.estimates[name] = estimate_by_sibling(job, built, here, cold=cold, warm=assumptions.warm)
        state.queue.revise_estimates(state.estimates)
        for worker in state.inventory.alive_builders:
            if worker.assignment is not None:
                revised = state.estimates[worker.assignment.config]
                worker.assignment = dataclasses.replace(revised, type=worker.assignment.type)
                if worker.is_building:
                    state.update_config(revised.config, estimate=state.queue.running_build_seconds(worker.name))

    def on_results_collected(self, worker: Worker, event: ResultsCollected) -> None:
        """Store the results of a build, which were collected and checked."""
        del worker.uncollected[event.config]
        job = self.state.inventory.latest_job(event.config)
        code = 0 if job is None or job.exit_code is None else job.exit_code
        if code == DiskFull.exit_code:
            reason = ": ".join(("its disk is full", *filter(None, (event.reason,))))
            self.requeue_or_fail_config(self.state.estimates[event.config], worker, reason, error=DiskFull)
            return
        state = JobState.FAILED if code else JobState.COLLECTED
        traffic = sum(package.artifact.size for package in event.packages)
        finished = self.state.inventory.update_job(event.config, state=state, traffic=traffic).finished
        limit = "" if job is None or code != FleetLimit.exit_code else job.reason
        reason = "" if code == 0 else limit or event.reason or f"kiln ended with exit code {code} on {worker.name}"
        if code:
            self.state.errors[event.config] = error_class_of_exit_code(code)(reason)
            self._release_or_drop_held_group(self.state.estimates[event.config], event)
        special = {0: ConfigState.DONE, OutOfMemory.exit_code: ConfigState.OUT_OF_MEMORY}
        self.state.update_config(
            event.config,
            state=special.get(code, ConfigState.FAILED),
            finished=finished,
            reason=reason,
            packages=event.packages,
            steps=event.steps,
            peak_memory=event.peak_memory,
            log=event.log or self.state.configs[event.config].log,
        )

    def _release_or_drop_held_group(self, estimate: JobEstimate, event: ResultsCollected) -> None:
        """Build the configs that were held back for a failed cold build, unless their compile has failed."""
        queue = self.state.queue
        if not queue.is_group_held(estimate):
            return
        if not any(step.failed and step.title.split()[0] == COMPILE for step in event.steps):
            queue.release_group(estimate)
            return
        self.faults[estimate.group] = estimate.config
        dropped = queue.drop_held_group(estimate)
        for worker in self.state.inventory.alive_builders:
            job = worker.assignment
            if job is not None and not worker.is_building and job.group == estimate.group:
                queue.end_build(worker.name, ok=False)  # without having begun
                worker.assignment = None
                dropped.append(job)
        for job in dropped:
            self._mark_not_compiled(job)

    def _mark_not_compiled(self, estimate: JobEstimate) -> None:
        reason = f"not compiled: {self.faults[estimate.group]} failed in the compile that both share"
        self.state.update_config(estimate.config, state=ConfigState.WAITING, started=None, reason=reason)

    def on_collect_failed(self, worker: Worker, event: CollectFailed) -> bool:
        """Schedule another attempt, or fail a config whose packages arrive corrupt every time.

        Return whether the worker is to be given up, since nothing can be fetched from it.
        """
        worker.uncollected[event.config] += 1
        if event.foreign:
            del worker.uncollected[event.config]
            self.requeue_or_fail_config(self.state.estimates[event.config], worker, event.reason)
        elif worker.uncollected[event.config] < TRIES:
            worker.retries[event.config] = self.state.executor.now() + RETRY
        elif event.corrupt:
            del worker.uncollected[event.config]
            what = f"the packages of {event.config} arrived corrupt {TRIES} times"
            hint = "they are lost when the worker is terminated; build the config again"
            self._fail_config(event.config, HashMismatch(what, why=event.reason, hint=hint))
        else:
            return True
        return False

    def requeue_or_fail_config(
        self, estimate: JobEstimate, worker: Worker, reason: str, error: type[KilnError] = WorkersLost
    ) -> None:
        """Queue a config again, or fail it after its last attempt."""
        inventory, name = self.state.inventory, estimate.config
        job = inventory.latest_job(name)
        if job is not None and job.exit_code is not None:  # a build without one does not say why its group is held
            self.state.queue.release_group(estimate)
        builds = inventory.jobs_of({name})
        attempts = len(builds) - sum(build.reclaimed for build in builds) - worker.is_reclaimed
        full_disks = sum(build.exit_code == DiskFull.exit_code for build in builds)
        end = job.finished if job is not None and job.finished is not None else self.state.executor.now()
        inventory.update_job(name, state=JobState.LOST, reason=reason, finished=end, reclaimed=worker.is_reclaimed)
        is_last = attempts >= self.state.run_config.attempts and (
            error is FleetLimit or self._loses_workers_improbably_often(name)
        )
        if is_last or full_disks >= FULL_DISKS:
            what = f"{name} was started on {attempts} workers, and none of them built it"
            if self.state.run_config.is_scheduled:
                what = f"{name} was submitted {'once' if attempts == 1 else f'{attempts} times'}, and not built"
            self._fail_config(name, error(what, why=f"{worker.name}: {reason}"))
            return
        if estimate.group in self.faults:
            self._mark_not_compiled(estimate)
            return
        self.state.queue.add(self.state.estimates[name])  # which names the machine type of the plan
        reason = f"waiting again: {worker.name}: {reason}"
        self.state.update_config(name, state=ConfigState.WAITING, started=None, reason=reason)

    def _loses_workers_improbably_often(self, config: str) -> bool:
        """Return whether a config loses its workers itself: more often than those of the other configs are lost.

        Losses are taken for a Poisson process, whose rate is that of the others, and `ASSUMED` before there are any.
        """
        run_config, now = self.state.run_config, self.state.executor.now()
        if run_config.options.attempts is not None:
            return True
        others = self.state.estimates.keys() - {config}

        def losses_and_seconds(configs: AbstractSet[str]) -> tuple[int, float]:
            jobs = self.state.inventory.jobs_of(configs)
            ends = [now if job.state in RUNNING else job.finished or job.started for job in jobs]
            lost = sum(job.state is JobState.LOST and not job.reclaimed for job in jobs)
            return lost, sum(end - job.started for job, end in zip(jobs, ends, strict=True))

        (count, seconds), (others_count, others_seconds) = losses_and_seconds({config}), losses_and_seconds(others)
        mean = seconds * (others_count + 1) / (others_seconds + ASSUMED)
        chance = math.exp(count * math.log(max(mean, 1e-9)) - mean - math.lgamma(count + 1)) if count > mean else 1.0
        return chance * (len(others) + 1) < IMPROBABLE

    def _fail_config(self, config: str, error: KilnError) -> None:
        self.state.queue.release_group(self.state.estimates[config])
        self.state.errors[config] = error
        self.state.inventory.update_job(config, state=JobState.FAILED)
        state = ConfigState.DISK_FULL if isinstance(error, DiskFull) else ConfigState.FAILED
        reason = f"{error.what}: {error.why}"
        self.state.update_config(config, state=state, finished=self.state.executor.now(), reason=reason)

    def requeue_assigned_config(self, worker: Worker, reason: str) -> None:
        """Queue the config again that is assigned to a worker."""
        estimate, was_building = worker.assignment, worker.is_building
        worker.assignment, worker.is_building = None, False
        self.state.queue.remove_worker(worker.name)
        if estimate is not None and was_building:
            self.requeue_or_fail_config(estimate, worker, reason)
        elif estimate is not None:
            self.state.queue.add(estimate)
