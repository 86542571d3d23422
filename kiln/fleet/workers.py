"""The workers of a fleet run: provisioned, prepared, assigned configs, lost, terminated; one may hold a cache."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kiln.base.errors import ProvisionRefused, WorkersLost
from kiln.fleet.answers import classify
from kiln.fleet.model import JobState, Offer, WorkerState
from kiln.fleet.protocol import PrepareWorker, QueryJobs, RenewLease, StopBuild, TerminateWorker, WatchService
from kiln.fleet.state import RETRY, TRIES
from kiln.fleet.worker_policies import CredentialRefusals, LostWorkerLimits, OffersWithRefusals
from kiln.state.results import ConfigState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.fleet.inventory import Worker
    from kiln.fleet.jobs import JobManager
    from kiln.fleet.protocol import ProvisionFailed
    from kiln.fleet.state import FleetState

RENEWALS = 12  # of a lease during its length: the controller may be cut off for nearly all of it
COLLECTION = 60.0  # seconds before a worker is taken back that are left to collect what it has built
TOGETHER = 10  # times in that interval at which leases are renewed: the controller wakes up for many workers at once
MARGIN = 1.25  # of the expected time of a build, which has to fit into its worker's lifetime


class WorkerManager:
    """Decides about the workers of a run.

    Up to ``max_workers`` build at a time; ``request_count`` were requested so far, ``losses`` counts the lost ones, and
    ``reclaim_count`` those that the provider took back after a notice. ``cache`` is the URL of the shared cache: None
    until it is known, empty without a cache. Workers are requested by ``offers``; while all of these are refused,
    ``next_request`` is the time of the next request, and ``refused_since`` that since when there is no worker either.
    """

    def __init__(self, state: FleetState, jobs: JobManager) -> None:
        run_config = state.run_config
        self.state = state
        self.jobs = jobs
        self.max_workers = run_config.max_workers
        self.request_count = self.reclaim_count = 0
        self.losses = LostWorkerLimits(run_config)
        self._offers = list(run_config.type_offers.values())
        self.offers = OffersWithRefusals(run_config.all_offers)
        self.next_request = 0.0
        self.refused_since: float | None = None
        self.credentials = CredentialRefusals(state)
        self.cache: str | None = None if run_config.cache is not None else ""

    def on_worker_provisioned(self, worker: Worker, identity: str) -> None:
        """Prepare a worker that exists, or query its jobs when it is prepared; a new one of an old name is prepared.

        A cache always is: preparing it again changes nothing, and reports its URL.
        """
        if worker.is_prepared and identity != worker.record.id:
            worker.is_prepared, worker.is_building = False, False
            for config in tuple(worker.uncollected):
                self.jobs.requeue_or_fail_config(self.state.estimates[config], worker, "the worker was gone")
            worker.uncollected.clear()
        now = worker.exists_since = self.state.executor.now()
        self.offers.record_acceptance(worker.record.offer_key)
        self.refused_since = None
        self.credentials.on_credentials_accepted()
        self.state.inventory.update_worker(worker, state=WorkerState.PREPARING, id=identity, provisioned=now)
        queries = worker.is_prepared and not worker.is_cache_worker
        # The time of an earlier process's last renewal is unknown.
        worker.renewed_at = now - (self.state.run_config.options.lease / RENEWALS if queries else 0.0)
        keys = {config: estimate.key for config, estimate in self.state.estimates.items()}
        self.state.submit_command(
            QueryJobs(worker=worker.name, keys=keys) if queries else PrepareWorker(worker=worker.name)
        )

    def on_worker_refused(self, worker: Worker, event: ProvisionFailed) -> None:
        """Record that the provider refuses a worker."""
        now = self.state.executor.now()
        self.state.inventory.update_worker(worker, state=WorkerState.REFUSED, reason=event.reason, terminated=now)
        if worker.assignment is not None:
            text = f"{worker.name} was refused: {event.reason}"
            self.state.recorder.show_output_line(worker.assignment.config, text, "")
        self.jobs.requeue_assigned_config(worker, event.reason)
        if event.credentials and self.credentials.on_credentials_refused(event.reason):
            return
        if worker.is_cache_worker:
            self.continue_without_cache()
            return
        if self.may_request_again(worker):
            self.offers.record_refusal(worker.record.offer_key, now, event.reason)
        else:
            self.max_workers -= 1
        if not self.state.inventory.alive_builders and not self._waits_for_capacity(worker, event, now):
            self.state.stop = ProvisionRefused(
                "the provider refused all requested workers",
                why=self.offers.refusal_reason(event.reason) or event.reason,
                hint=classify(event.reason, self.state.run_config.machine_type.provider).cure,
            )

    def may_request_again(self, worker: Worker) -> bool:
        """Return whether refused workers are requested again; a site of existing machines or a scheduler refuses again.

        Nor is a provider asked again that did not answer for too long.
        """
        run_config = self.state.run_config
        changes = not run_config.is_scheduled and run_config.machine_type.provider != "static"
        return changes and not worker.unreached_requests

    def _waits_for_capacity(self, worker: Worker, event: ProvisionFailed, now: float) -> bool:
        """Return whether a run without workers goes on: with another offer, or until one that was refused is not.

        A new run waits for capacity only: other reasons, such as a quota, do not go away.
        """
        if not self.may_request_again(worker):
            return False
        queue, types = self.state.queue, self.state.run_config.max_workers_by_type
        awaited = (offers for kind, offers in zip(types, self._offers, strict=True) if queue.has_work(kind.type))
        offers = [offer for several in awaited for offer in several]
        if self.offers.has_untried_offer(now, offers):
            return True
        builders = (other for other in self.state.inventory if not other.is_cache_worker)
        had_some = any(builder.record.provisioned is not None for builder in builders)
        self.refused_since = now if self.refused_since is None else self.refused_since
        if not (event.scarce or had_some) or now >= self.refused_since + self.state.run_config.options.capacity_timeout:
            return False
        seconds = max(0.0, self.offers.next_available_time(offers) - now)
        text = f"no worker is left, and the provider refuses others; asking again {_delay_text(seconds)}"
        self._report_to_waiting_configs(f"{text}: {event.reason}")
        return True

    def _report_to_waiting_configs(self, text: str) -> None:
        """Report why no worker is requested for the waiting configs."""
        for config in self.state.configs.values():
            if config.state is ConfigState.WAITING:
                self.state.recorder.show_output_line(config.config, text, "")

    def report_outage(self, now: float) -> None:
        """Report that workers were lost together again, and that the next ones are requested later."""
        if now < self.losses.wait_until:
            moment = _delay_text(self.losses.wait_until - now)
            self._report_to_waiting_configs(f"workers were lost together again; the next are requested {moment}")

    def expected_worker_count(self, now: float) -> int:
        """Return how many workers build at a time, unless the provider refuses more."""
        builders = len(self.state.inventory.alive_builders)
        return builders if builders and self.offers.first_available_offer(now) is None else self.max_workers

    def on_worker_prepared(self, worker: Worker, cache: str) -> None:
        """Let a worker build, or a cache be used."""
        self.state.inventory.update_worker(worker, state=WorkerState.READY)
        if worker.is_cache_worker:
            self.cache = cache
            self.state.submit_command(WatchService(worker=worker.name))

    def on_command_failed(self, worker: Worker, reason: str) -> None:
        """Give up a worker; its preparation is tried again first, as a mirror of packages may fail for a moment."""
        prepares = worker.record.state is WorkerState.PREPARING and (worker.is_cache_worker or not worker.is_prepared)
        worker.failed_preparations += prepares
        if not prepares or worker.failed_preparations >= TRIES:
            self.give_up_worker(worker, reason)
            return
        self.state.postponed.append((self.state.executor.now() + RETRY, PrepareWorker(worker=worker.name)))
        if worker.assignment is not None:
            text = f"the preparation of {worker.name} failed, and is tried again: {reason}"
            self.state.recorder.show_output_line(worker.assignment.config, text, "")

    def on_jobs_listed(self, worker: Worker, jobs: Mapping[str, str]) -> None:
        """Resume the jobs of a worker that an earlier process of the run prepared."""
        self.state.inventory.update_worker(worker, state=WorkerState.READY)
        for config in worker.uncollected:
            self.jobs.collect_results(worker, config)
        for job in self.state.inventory.latest_jobs():
            if job.worker == worker.name and job.state is JobState.COLLECTED and job.config in self.state.configs:
                self.state.queue.record_compile_on_disk(worker.name, self.state.configs[job.config].group)
        if worker.assignment is None or not worker.is_building:
            return
        config = worker.assignment.config
        if jobs.get(config) in {"running", "ended"}:
            self.jobs.follow_build(worker, config)
        else:
            self.state.inventory.update_job(config, state=JobState.LOST, reason="never begun, or lost")
            worker.is_building = False

    def give_up_worker(self, worker: Worker, reason: str, *, together: bool = False) -> None:
        """Give up a worker: its configs are queued again, and what may remain of it is terminated.

        ``together`` with others, as by an outage, which counts apart.
        """
        self.state.inventory.update_worker(worker, state=WorkerState.LOST, reason=reason)
        self.state.submit_command(TerminateWorker(worker=worker.name))
        uncollected = (*worker.uncollected, *filter(None, (worker.handover,)))
        worker.uncollected.clear()
        worker.handover = ""
        worker.retries.clear()
        self.jobs.requeue_assigned_config(worker, reason)
        for config in uncollected:
            self.jobs.requeue_or_fail_config(self.state.estimates[config], worker, reason)
        if worker.is_cache_worker:
            self.continue_without_cache()
            return
        if not worker.is_reclaimed:
            self.losses.count_lost_worker(self.state.executor.now(), together=together)
        if self.losses.is_exhausted:
            self.max_workers = min(self.max_workers, len(self.state.inventory.alive_builders))
        if not self.max_workers and self.state.queue:
            self.state.stop = self.losses.exhausted_error(reason)

    def on_worker_reclaimed(self, worker: Worker, at: float) -> None:
        """Drain a worker that its provider takes back: nothing starts there, and what cannot end in time is stopped.

        Its config is built by another, which is requested at once; what it has finished is being collected.
        """
        if worker.is_reclaimed or not worker.is_alive:
            return
        worker.is_retired = worker.is_reclaimed = True
        worker.reclaimed_at = at
        self._count_reclaim()
        config = None if worker.assignment is None else worker.assignment.config
        if config is None:
            return
        reason = f"its provider takes {worker.name} back in {max(0.0, at - self.state.executor.now()):.0f} s"
        self.state.recorder.show_output_line(config, reason, "")
        if not worker.is_building:
            self.jobs.requeue_assigned_config(worker, reason)
        elif self.state.queue.expected_end(worker.name) > at - COLLECTION:
            self.state.submit_command(StopBuild(worker=worker.name, config=config, reason=reason, until=at))

    def _count_reclaim(self) -> None:
        """Replace workers that are taken back a limited number of times, so that the cost of a run has a bound.

        Then no more spot workers are requested: those on demand, where the user allows for them, cannot be taken back.
        """
        self.reclaim_count += 1
        if self.reclaim_count <= self.state.run_config.replacements:
            return
        offers = self.state.run_config.all_offers
        self.offers.exclude_offers([offer for offer in offers if offer.spot], "spot workers were taken back too often")
        if all(offer.spot for offer in offers):
            self.max_workers = min(self.max_workers, self.builder_count())

    def continue_without_cache(self) -> None:
        """Continue without the shared cache."""
        self.cache = ""
        self.state.queue.record_cache_loss()

    def advance_worker(self, worker: Worker, now: float) -> None:
        """Renew a worker's lease, and start its next build or terminate it."""
        if worker.record.state is not WorkerState.REQUESTED and now >= self.renewal_due_time(worker):
            worker.renewal_tried_at = now
            self.state.submit_command(RenewLease(worker=worker.name, seconds=self.state.run_config.options.lease))
        if worker.record.state is not WorkerState.READY or worker.is_building:
            return
        if worker.is_cache_worker:
            if self.state.run_config.cache is None:  # only an earlier process of the run used one
                self._terminate_worker(worker)
            return
        queue = self.state.queue
        self._assign_next_config(worker, now)
        if worker.assignment is not None:
            # A cache is ready, or there is none; and no failed compile is being looked into.
            if self.cache is not None and not queue.is_group_held(worker.assignment):
                self.jobs.start_build(worker, worker.assignment, now, cache=self.cache)
        elif not (worker.uncollected or worker.handover or worker.is_witness) and (
            worker.is_retired
            or not (queue.has_work(queue.worker_machine_type(worker.name)) or self._is_only_collecting())
        ):
            self._terminate_worker(worker)

    def _assign_next_config(self, worker: Worker, now: float) -> None:
        """Assign the next config to a free worker, or retire one whose lifetime would end before the build."""
        queue = self.state.queue
        is_free = worker.assignment is None and not worker.is_retired
        estimate = queue.next(worker.name, now) if is_free else None
        if estimate is None:
            return
        run_config, since = self.state.run_config, worker.record.requested
        end = now + MARGIN * queue.expected_job_seconds(worker.name, estimate) + run_config.assumptions.collect
        is_new = self.state.executor.now() < since + run_config.lifetime / 4  # another's life would be no longer
        if not is_new and end > since + run_config.lifetime:
            worker.is_retired = True
            return
        worker.assignment = estimate
        queue.begin_build(worker.name, estimate, now)

    def _terminate_worker(self, worker: Worker) -> None:
        self.state.inventory.update_worker(worker, state=WorkerState.TERMINATING)
        self.state.queue.remove_worker(worker.name)
        self.state.submit_command(TerminateWorker(worker=worker.name))

    def _is_only_collecting(self) -> bool:
        """Return whether only collections remain: the tear-down, soon, terminates all workers at once."""
        state = self.state
        pending = any(worker.assignment or worker.handover for worker in state.inventory.present_workers)
        return not (state.queue or state.postponed or pending)

    def retry_due_commands(self, worker: Worker, now: float) -> None:
        """Submit the failed commands again that are due."""
        for config in [config for config, time in worker.retries.items() if time <= now]:
            del worker.retries[config]
            if config:
                self.jobs.collect_results(worker, config)
            else:
                self.state.submit_command(worker.termination_command)

    def request_workers(self, now: float) -> None:
        """Request workers for configs that no existing worker can take."""
        run_config, inventory = self.state.run_config, self.state.inventory
        if self.reclaim_count and not self.max_workers and not inventory.alive_builders and self.state.queue:
            what = f"the provider took back {self.reclaim_count} spot workers, and no more are replaced"
            hint = "--fallback on-demand continues on demand, --replacements N allows for more"
            self.state.stop = WorkersLost(what, hint=hint)
        names: list[str] = []
        name, cache = run_config.worker_name(None), run_config.cache
        zone = (self.offers.first_available_offer(now) or run_config.all_offers[0]).zone
        if cache is not None and self.cache is None and name not in inventory.workers:
            names.append(inventory.add_requested_worker(name, Offer(machine_type=cache, zone=zone), now=now).name)
        is_waiting = now < self.losses.wait_until
        refused = [among for among in self._offers if self.offers.first_available_offer(now, among) is None]
        next_offer_time = min(map(self.offers.next_available_time, refused), default=0.0)
        self.next_request = max(next_offer_time, self.losses.wait_until)
        while self.state.queue and not is_waiting and self.builder_count() < self.max_workers:
            number = inventory.next_free_worker_number(self.request_count + 1)
            name = run_config.worker_name(number)
            offer = self._next_offer(name, now)
            if offer is None:
                break
            self.request_count = number
            worker = inventory.add_requested_worker(name, offer, now=now)
            self.jobs.assign_to_unready_worker(worker, now)
            if worker.assignment is not None:
                fallback = offer not in [offers[0] for offers in self._offers]
                text = f"request {name}" + (f" as {offer}: what is wanted more is refused" if fallback else "")
                self.state.recorder.show_output_line(worker.assignment.config, text, "")
            names.append(name)
        if names:
            self.state.submit_command(inventory.provision_command(names))

    def builder_count(self) -> int:
        """Return the number of workers that build, or will; not of those that their provider takes back."""
        return sum([not worker.is_reclaimed for worker in self.state.inventory.alive_builders])

    def _next_offer(self, name: str, now: float) -> Offer | None:
        """Return the offer of the next worker: of a type that a config waits for, and of which there may be more."""
        run_config, queue, inventory = self.state.run_config, self.state.queue, self.state.inventory
        builders = [worker.name for worker in inventory.alive_builders if not worker.is_reclaimed]
        types = list(map(queue.worker_machine_type, builders))
        for kind, count in run_config.max_workers_by_type.items():
            queue.set_worker_machine_type(name, kind.type)
            offer = self.offers.first_available_offer(now, run_config.type_offers[kind])
            free = offer is not None and types.count(kind.type) < count
            if free and queue.next(name, now + run_config.assumptions.startup) is not None:
                return offer
        return None

    def on_lease_renewed(self, worker: Worker) -> None:
        """Record that a lease was renewed; it began when that was requested, at the earliest."""
        worker.renewed_at = worker.renewal_tried_at
        worker.next_check = min(self.renewal_due_time(worker), self.jobs.build_stop_time(worker) or math.inf)

    def renewal_due_time(self, worker: Worker) -> float:
        """Return when a lease is to be renewed, or when that is to be tried again; those of many workers together."""
        every = self.state.run_config.options.lease / RENEWALS
        step = every / TOGETHER
        due = (worker.renewed_at + every) // step * step
        return max(worker.renewal_tried_at + RETRY, due)


def _delay_text(seconds: float) -> str:
    return f"in {seconds / 60:.0f} min" if seconds >= 60 else "now" if seconds < 1 else f"in {seconds:.0f} s"
