"""The workers of a fleet run: provisioned, prepared, assigned configs, lost, terminated; one may hold a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import CredentialsRefused, ProvisionRefused, WorkersLost
from kiln.fleet.messages import Prepare, Provision, QueryJobs, Renew, Terminate, WatchCache
from kiln.fleet.state import RETRY, TRIES
from kiln.model.fleet import JobState, WorkerState
from kiln.model.run import ConfigState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.fleet.job_manager import JobManager
    from kiln.fleet.messages import ProvisionFailed
    from kiln.fleet.run_records import Worker
    from kiln.fleet.state import FleetState

BACKOFF = (60.0, 120.0, 240.0, 480.0, 900.0, 900.0, 900.0)  # seconds between requests that are all refused
RENEWALS = 12  # of a lease during its length: the controller may be cut off for nearly all of it


class WorkerManager:
    """Decides about the workers of a run.

    Up to ``max_workers`` build at a time; ``request_count`` were requested so far, ``loss_count`` were lost. ``cache``
    is the URL of the shared cache: None until it is known, empty without a cache. ``refused_count`` counts the workers
    that were refused and not requested again, ``backoffs`` the repetitions of a request since a worker was provisioned;
    ``next_request`` is the time of the next one.
    """

    def __init__(self, state: FleetState, jobs: JobManager) -> None:
        self.state = state
        self.jobs = jobs
        self.max_workers = state.run_config.max_workers
        self.request_count = 0
        self.loss_count = 0
        self.refused_count = 0
        self.backoffs = 0
        self.next_request = 0.0
        self.cache: str | None = None if state.run_config.cache is not None else ""

    def on_provisioned(self, worker: Worker, identity: str) -> None:
        """Prepare a worker that exists, or query its jobs when it is prepared; a new one of an old name is prepared.

        A cache always is: preparing it again changes nothing, and reports its URL.
        """
        if worker.is_prepared and identity != worker.record.id:
            worker.is_prepared, worker.is_building = False, False
            for config in tuple(worker.uncollected):
                self.jobs.requeue(self.state.estimates[config], worker, "the worker was gone")
            worker.uncollected.clear()
        now = self.state.executor.now()
        self.backoffs = 0
        self.state.inventory.keep(worker, state=WorkerState.PREPARING, id=identity, provisioned=now)
        queries = worker.is_prepared and not worker.is_cache
        # The time of an earlier process's last renewal is unknown.
        worker.renewed_at = now - (self.state.run_config.lease / RENEWALS if queries else 0.0)
        keys = {config: estimate.key for config, estimate in self.state.estimates.items()}
        self.state.submit(QueryJobs(worker=worker.name, keys=keys) if queries else Prepare(worker=worker.name))

    def on_refused(self, worker: Worker, event: ProvisionFailed) -> None:
        """Record that the provider refuses a worker."""
        now = self.state.executor.now()
        self.state.inventory.keep(worker, state=WorkerState.REFUSED, reason=event.reason, terminated=now)
        self.jobs.release(worker, event.reason)
        if worker.is_cache:
            self.drop_cache()
            return
        self.max_workers -= 1
        self.refused_count += 1
        if event.credentials:
            hint = "see that the provider's variables or files hold valid ones, then run the same command again"
            self.state.stop = CredentialsRefused(
                "the provider does not accept the credentials", why=event.reason, hint=hint
            )
        elif not self.state.inventory.builders and not self._will_request_again(worker, event.reason, now):
            self.state.stop = ProvisionRefused(
                "the provider refused all requested workers",
                why=event.reason,
                hint="choose another --type, have the quota raised, or try again later",
            )

    def _will_request_again(self, worker: Worker, reason: str, now: float) -> bool:
        """Return whether refused workers are requested again later: of a provider that had some for this run before.

        A site of existing machines or a scheduler says the same again.
        """
        run_config, inventory = self.state.run_config, self.state.inventory
        scarce = not run_config.is_scheduled and run_config.machine_type.provider != "static"
        had_some = any(other.record.provisioned is not None for other in inventory if not other.is_cache)
        if not (scarce and had_some and self.backoffs < len(BACKOFF)) or worker.unreached_requests:
            return False
        seconds = BACKOFF[self.backoffs]
        self.next_request, self.backoffs = now + seconds, self.backoffs + 1
        self.max_workers, self.refused_count = self.max_workers + self.refused_count, 0
        for config in self.state.configs.values():
            if config.state is ConfigState.WAITING:
                text = f"no worker is left, and the provider refuses others; asking again in {seconds / 60:.0f} min"
                self.state.observer.config_line(config.config, f"{text}: {reason}", "")
        return True

    def on_prepared(self, worker: Worker, cache: str) -> None:
        """Let a worker build, or a cache be used."""
        self.state.inventory.keep(worker, state=WorkerState.READY)
        if worker.is_cache:
            self.cache = cache
            self.state.submit(WatchCache(worker=worker.name))

    def on_command_failed(self, worker: Worker, reason: str) -> None:
        """Give up a worker; its preparation is tried again first, as a mirror of packages may fail for a moment."""
        prepares = worker.record.state is WorkerState.PREPARING and (worker.is_cache or not worker.is_prepared)
        worker.failed_preparations += prepares
        if not prepares or worker.failed_preparations >= TRIES:
            self.lose(worker, reason)
            return
        self.state.postponed.append((self.state.executor.now() + RETRY, Prepare(worker=worker.name)))
        if worker.assignment is not None:
            text = f"the preparation of {worker.name} failed, and is tried again: {reason}"
            self.state.observer.config_line(worker.assignment.config, text, "")

    def on_jobs_listed(self, worker: Worker, jobs: Mapping[str, str]) -> None:
        """Resume the jobs of a worker that an earlier process of the run prepared."""
        self.state.inventory.keep(worker, state=WorkerState.READY)
        for config in worker.uncollected:
            self.jobs.collect(worker, config)
        for job in self.state.inventory.latest_jobs():
            if job.worker == worker.name and job.state is JobState.COLLECTED and job.config in self.state.configs:
                self.state.queue.add_compile(worker.name, self.state.configs[job.config].group)
        if worker.assignment is None or not worker.is_building:
            return
        config = worker.assignment.config
        if jobs.get(config) in {"running", "ended"}:
            self.jobs.follow(worker, config)
        else:
            self.state.inventory.keep_job(config, state=JobState.LOST, reason="never begun, or lost")
            worker.is_building = False

    def lose(self, worker: Worker, reason: str, *, counts: bool = True) -> None:
        """Give up a worker: its configs are queued again, and what may remain of it is terminated.

        ``counts`` when it is one of those that are replaced a limited number of times.
        """
        self.state.inventory.keep(worker, state=WorkerState.LOST, reason=reason)
        self.state.submit(Terminate(worker=worker.name))
        uncollected = tuple(worker.uncollected)
        worker.uncollected.clear()
        worker.retries.clear()
        self.jobs.release(worker, reason)
        for config in uncollected:
            self.jobs.requeue(self.state.estimates[config], worker, reason)
        if worker.is_cache:
            self.drop_cache()
            return
        self.loss_count += counts
        if self.loss_count > self.state.run_config.replacements:
            self.max_workers = min(self.max_workers, len(self.state.inventory.builders))
        if not self.max_workers and self.state.queue:
            what = f"{self.loss_count} workers were lost, and no more are replaced"
            self.state.stop = WorkersLost(what, why=reason, hint="--replacements N allows for more")

    def drop_cache(self) -> None:
        """Continue without the shared cache."""
        self.cache = ""
        self.state.queue.lose_cache()

    def advance(self, worker: Worker, now: float) -> None:
        """Renew a worker's lease, and start its next build or terminate it."""
        self._renew(worker, now)
        if worker.record.state is not WorkerState.READY or worker.is_building:
            return
        if worker.is_cache:
            if self.state.run_config.cache is None:  # only an earlier process of the run used it
                self._terminate(worker)
            return
        queue = self.state.queue
        if worker.assignment is None and not worker.is_retired and (estimate := queue.next(worker.name, now)):
            worker.assignment = estimate
            queue.begin(worker.name, estimate, now)
        if worker.assignment is not None:
            # A cache is ready, or there is none; and no failed compile is being looked into.
            if self.cache is not None and not queue.is_held(worker.assignment):
                self.jobs.start(worker, worker.assignment, now, cache=self.cache)
        elif not worker.uncollected and (worker.is_retired or not (queue or self._is_only_collecting())):
            self._terminate(worker)

    def _terminate(self, worker: Worker) -> None:
        self.state.inventory.keep(worker, state=WorkerState.TERMINATING)
        self.state.queue.remove_worker(worker.name)
        self.state.submit(Terminate(worker=worker.name))

    def _is_only_collecting(self) -> bool:
        """Return whether only collections remain: the tear-down, soon, terminates all workers at once."""
        state = self.state
        return not (state.queue or state.postponed or any(worker.assignment for worker in state.inventory))

    def retry_due(self, worker: Worker, now: float) -> None:
        """Submit the failed commands again that are due."""
        for config in worker.pop_due(now):
            if config:
                self.jobs.collect(worker, config)
            else:
                self.state.submit(Terminate(worker=worker.name))

    def request_workers(self, now: float) -> None:
        """Request workers for configs that no existing worker can take."""
        run_config, inventory = self.state.run_config, self.state.inventory
        if now < self.next_request:
            return
        names: list[str] = []
        name, cache = run_config.worker_name(None), run_config.cache
        if cache is not None and self.cache is None and name not in inventory.workers:
            names.append(inventory.add(name, cache, spot=False, now=now).name)
        while len(inventory.builders) < self.max_workers:
            name = run_config.worker_name(self.request_count + 1)
            if self.state.queue.next(name, now + run_config.startup) is None:
                break
            self.request_count += 1
            worker = inventory.add(name, run_config.machine_type, spot=run_config.spot, now=now)
            self.jobs.reserve(worker, now)
            names.append(name)
        self.state.submit(Provision(workers=tuple(names)))

    def on_renewed(self, worker: Worker) -> None:
        """Record that a lease was renewed; it began when that was requested, at the earliest."""
        worker.renewed_at = worker.renewal_tried_at

    def renewal_due(self, worker: Worker) -> float:
        """Return when a lease is to be renewed, or when that is to be tried again."""
        return max(worker.renewed_at + self.state.run_config.lease / RENEWALS, worker.renewal_tried_at + RETRY)

    def _renew(self, worker: Worker, now: float) -> None:
        if worker.record.state is not WorkerState.REQUESTED and now >= self.renewal_due(worker):
            worker.renewal_tried_at = now
            self.state.submit(Renew(worker=worker.name, seconds=self.state.run_config.lease))
