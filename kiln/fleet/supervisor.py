"""The supervisor of a fleet run: decides each next step, stores it, and terminates every worker however it ends."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kiln.base.errors import DiskFull, FleetLimit
from kiln.build.job import collected
from kiln.fleet import inventory as fleet_inventory
from kiln.fleet import protocol
from kiln.fleet.jobs import JobManager
from kiln.fleet.model import WorkerState
from kiln.fleet.state import FAULTS, RETRY, TRIES, FleetState
from kiln.fleet.teardown import TearDownPhase
from kiln.fleet.unreachable import SilentWorkerManager
from kiln.fleet.workers import WorkerManager

if TYPE_CHECKING:
    from kiln.fleet.inventory import Worker
    from kiln.fleet.records import RunRecorder
    from kiln.fleet.run_config import FleetRunConfig
    from kiln.state.results import MatrixReport

LOGGER = logging.getLogger(__name__)

LOOK = 30.0  # seconds between two checks of the money spent
AT_ONCE = 100  # events that are handled before the next decision, such as the refusals of all workers of a request
NEVER = float("inf")
# Events that prove that this computer's disk has space, and those that prove that a worker lives.
WROTE = (
    protocol.WorkerProvisioned,
    protocol.WorkerPrepared,
    protocol.BuildStarted,
    collected.ResultsCollected,
)
ANSWERS = (
    protocol.WorkerPrepared,
    protocol.JobsListed,
    protocol.BuildStarted,
    protocol.Heartbeat,
    protocol.ReclaimNotice,
    protocol.LeaseRenewed,
    protocol.BuildFinished,
    collected.ResultsCollected,
)
OF_NO_WORKER = (protocol.RunTornDown, protocol.TearDownFailed)
# A forecast simulates all that is left. A large run has fewer of them: one when a share of its waiting configs has
# moved, or after FORECAST seconds for each FEW of them.
FORECAST, MOVED, FEW = 60.0, 0.05, 40


class Supervisor:
    """One run of the fleet, from its first worker to the end of its last."""

    def __init__(self, run_config: FleetRunConfig, *, executor: protocol.WorkerExecutor, recorder: RunRecorder) -> None:
        self.state = FleetState(run_config, executor=executor, recorder=recorder)
        self.jobs = JobManager(self.state)
        self.workers = WorkerManager(self.state, self.jobs)
        self.silence = SilentWorkerManager(self.state, self.workers)
        self._forecast_at = 0.0
        self._forecast_for = -1
        self.teardown = TearDownPhase(self.state, self.workers, handle=self._handle_event)

    def execute_run(self) -> MatrixReport:
        """Build all configs, collect their packages and terminate all workers; return the state of every config."""
        state = self.state
        state.number = state.recorder.begin_run(state.run_report())
        state.recorder.begin_fleet(state.fleet_run_record())
        state.recorder.show_run(state.run_report())
        try:
            self._queue_or_resume_configs()
            self._submit_due_commands()
            while not self._is_run_over():
                self._handle_events()
                self._submit_due_commands()
            self.teardown.is_patient = state.stop is None
        except KeyboardInterrupt:
            LOGGER.warning(
                "note: interrupted: what is finished is collected, then the workers are terminated; Ctrl-C again ends"
                " the collection"
            )
            raise
        finally:
            self.teardown.finish_run()
        if state.stop is not None:
            raise state.stop
        return state.run_report(finished=state.executor.now())

    def _is_run_over(self) -> bool:
        return self.state.stop is not None or not (
            self.state.queue
            or any(
                worker.assignment or worker.uncollected or worker.handover
                for worker in self.state.inventory.present_workers
            )
        )

    def _handle_events(self) -> None:
        """Wait for the next event that calls for a decision, and handle it with those that arrive at the same time."""
        until = min(self._next_wake_time(), self._forecast_at + self._forecast_period)
        for _ in range(AT_ONCE):
            event = self.state.executor.next_event(until)
            if event is None:
                return
            is_news = self._needs_decision(event)
            self._handle_event(event)
            until = self.state.executor.now() if is_news else until

    def _needs_decision(self, event: protocol.Event) -> bool:
        """Return whether a decision may follow from an event: not if a worker answers, or is silent, as before."""
        match event:
            case protocol.LogLine():
                return False
            case protocol.Heartbeat() | protocol.WorkerUnreachable():
                worker = self.state.inventory.workers.get(event.worker)
                is_silent = isinstance(event, protocol.WorkerUnreachable)
                return self.silence.cut_off or (worker is not None and (worker.silent_since is not None) != is_silent)
            case _:
                return True

    def _queue_or_resume_configs(self) -> None:
        """Queue the configs, and take over the workers and jobs of an earlier process of the run."""
        now, previous = self.state.executor.now(), self.state.run_config.previous_run
        state, inventory = self.state, self.state.inventory
        if previous is not None:
            inventory.take_over_previous_run(previous, now)
            self.workers.request_count = len(previous.workers)
            self.workers.reclaim_count = sum(job.reclaimed for job in previous.jobs)
        for worker in inventory:
            state.queue.set_worker_machine_type(
                worker.name, state.run_config.planned_type_replaced_by(worker.record.type)
            )
        for estimate in self.state.run_config.estimates:
            if not self.jobs.resume_job(estimate):
                self.state.queue.add(estimate)
        for worker in inventory.alive_builders:
            if worker.assignment is None:
                self.jobs.assign_to_unready_worker(worker, now)
        self.state.submit_command(inventory.provision_command(worker.name for worker in inventory if worker.is_alive))
        for worker in inventory:
            worker.retries |= {} if worker.is_alive else {"": now}

    def _handle_event(self, event: protocol.Event) -> None:
        state = self.state
        if isinstance(event, protocol.LogLine):
            state.recorder.show_output_line(event.config, event.step, event.text)
        elif isinstance(event, protocol.ControllerDiskFull):
            self._on_disk_full(event)
        elif isinstance(event, protocol.CommandUndelivered):
            self._postpone_undelivered_command(event)
        elif isinstance(event, protocol.WorkersProbed):
            self.silence.on_workers_probed(event)
        elif not isinstance(event, OF_NO_WORKER) and event.worker in state.inventory.workers:
            self._handle_worker_event(state.inventory.workers[event.worker], event)

    def _on_disk_full(self, event: protocol.ControllerDiskFull) -> None:
        """Postpone a command: a full disk here is not the fault of workers, and their results are worth waiting for."""
        state, now = self.state, self.state.executor.now()
        state.disk_full_since = now if state.disk_full_since is None else state.disk_full_since
        state.postponed.append((now + RETRY, event.command))
        if isinstance(
            event.command,
            protocol.StartBuild | protocol.FollowBuild | protocol.CollectResults,
        ):
            text = f"waiting for space on this computer's disk: {event.reason}"
            state.recorder.show_output_line(event.command.config, text, "")

    def _postpone_undelivered_command(self, event: protocol.CommandUndelivered) -> None:
        """Postpone a command: an unreachable worker is not yet a lost one."""
        now, workers = self.state.executor.now(), self.state.inventory.workers
        if isinstance(event.command, protocol.ProvisionWorkers):
            self._on_provider_unreachable(event.command.workers, event, now)
        elif (
            not isinstance(event.command, protocol.ProbeWorkers | protocol.TearDownRun)
            and workers[event.command.worker].is_alive
        ):
            self.silence.on_worker_silent(workers[event.command.worker])
            self.state.postponed.append((now + RETRY, event.command))

    def _on_provider_unreachable(self, names: tuple[str, ...], event: protocol.CommandUndelivered, now: float) -> None:
        """Request workers again later; a provider that gave none so far gets a limited number of requests.

        One that answers that it cannot at the moment gets more, and ever later.
        """
        run_config, inventory = self.state.run_config, self.state.inventory
        never = run_config.previous_run is None and all(worker.record.provisioned is None for worker in inventory)
        for worker in [inventory.workers[name] for name in names]:
            worker.unreached_requests += 1
            tries = FAULTS if event.answered else TRIES
            if now >= worker.renewed_at + run_config.options.lease or (never and worker.unreached_requests >= tries):
                refusal = protocol.ProvisionFailed(worker=worker.name, reason=event.reason)
                self.workers.on_worker_refused(worker, refusal)
            else:
                delay = RETRY * 2 ** min(worker.unreached_requests - 1, FAULTS) if event.answered else RETRY
                self.state.postponed.append((now + delay, inventory.provision_command([worker.name])))

    def _handle_worker_event(self, worker: Worker, event: protocol.WorkerEvent) -> None:
        if isinstance(event, WROTE):
            self.state.disk_full_since = None
        if isinstance(event, ANSWERS):
            self.silence.on_worker_answered(worker)
        match event:
            case protocol.WorkerProvisioned():
                self.workers.on_worker_provisioned(worker, event.id)
                self.silence.audit.on_workers_provisioned()
            case protocol.ProvisionFailed():
                self.workers.on_worker_refused(worker, event)
                self.silence.audit.schedule_listing()
            case protocol.WorkerPrepared() if worker.is_alive:
                self.workers.on_worker_prepared(worker, event.cache)
            case protocol.JobsListed():
                self.workers.on_jobs_listed(worker, event.jobs)
            case protocol.CommandFailed() if worker.is_alive:
                self.workers.on_command_failed(worker, event.reason)
            case protocol.CommandFailed():
                worker.retries[""] = self.state.executor.now() + RETRY
            case protocol.WorkerTerminated():
                now = self.state.executor.now()
                self.state.inventory.update_worker(worker, state=WorkerState.TERMINATED, terminated=now)
            case protocol.LeaseRenewed():
                self.workers.on_lease_renewed(worker)
            case protocol.ReclaimNotice():
                self.workers.on_worker_reclaimed(worker, event.at)
            case _:
                self._handle_build_event(worker, event)

    def _handle_build_event(self, worker: Worker, event: protocol.WorkerEvent) -> None:
        match event:
            case protocol.WorkerUnreachable():
                self.silence.on_worker_silent(worker)
            case protocol.BuildStarted() | protocol.QueuedBuildStarted() if _is_assigned_config(worker, event.config):
                self.jobs.on_build_started(worker, event)
            case protocol.BuildFinished() if _is_assigned_config(worker, event.config):
                self.jobs.on_build_finished(worker, event)
            case collected.ResultsCollected() | protocol.CollectFailed() if event.config == worker.handover:
                self.jobs.on_handover(worker, event)
            case collected.ResultsCollected() if event.config in worker.uncollected:
                self.jobs.on_results_collected(worker, event)
                self.workers.losses.reset_outages()
            case protocol.CollectFailed() if event.config in worker.uncollected:
                if self.jobs.on_collect_failed(worker, event):
                    self.workers.give_up_worker(worker, event.reason)

    def _submit_due_commands(self) -> None:
        """Submit the commands that are due, or for which a worker has become free."""
        now = self.state.executor.now()
        self._stop_at_limits(now)
        self._resubmit_postponed_commands(now)
        for worker in self.state.inventory.present_workers:
            if self.state.stop is not None:
                return
            if worker.retries:
                self.workers.retry_due_commands(worker, now)
            if worker.silent_since is not None or (worker.is_building and now < worker.next_check):
                continue
            if worker.is_alive:
                self.jobs.stop_overdue_build(worker, now)
                self.workers.advance_worker(worker, now)
                worker.next_check = self._next_check_time(worker)
        self.silence.probe_when_due(now)
        if self.state.stop is None and not self.silence.cut_off:
            self.workers.request_workers(now)
        self._update_cost_forecast(now)

    def _next_check_time(self, worker: Worker) -> float:
        """Return when something is due for a worker that builds, should no event of it arrive."""
        renewal = NEVER if worker.record.state is WorkerState.REQUESTED else self.workers.renewal_due_time(worker)
        stop = self.jobs.build_stop_time(worker)
        return renewal if stop is None else min(renewal, stop)

    @property
    def _forecast_period(self) -> float:
        return FORECAST * max(1.0, len(self.state.queue) / FEW)

    def _update_cost_forecast(self, now: float) -> None:
        """Store the cost so far and in the end, when it may have changed."""
        state = self.state
        moves = state.moves - self._forecast_for
        if moves >= max(1, MOVED * len(state.queue)) or now >= self._forecast_at + self._forecast_period:
            self._forecast_at, self._forecast_for = now, state.moves
            most = self.workers.expected_worker_count(now)
            state.update_cost(
                fleet_inventory.forecast_run_cost(
                    state.run_config, state.inventory, state.queue, max_workers=most, now=now
                )
            )

    def _resubmit_postponed_commands(self, now: float) -> None:
        """Submit the postponed commands that are due; those to workers that were given up are dropped."""
        due = [command for time, command in self.state.postponed if time <= now]
        self.state.postponed = [(time, command) for time, command in self.state.postponed if time > now]
        for command in due:
            if (
                isinstance(
                    command,
                    protocol.ProvisionWorkers | protocol.TerminateWorker | protocol.ProbeWorkers | protocol.TearDownRun,
                )
                or self.state.inventory.workers[command.worker].is_alive
            ):
                self.state.submit_command(command)

    def _stop_at_limits(self, now: float) -> None:
        """Stop a run early enough to end its last worker within the limits, or when the disk stays full."""
        run_config, full = self.state.run_config, self.state.disk_full_since
        if full is not None and now >= full + run_config.options.lease:
            self.state.stop = DiskFull(
                "the disk of this computer is full, and the packages could not be collected",
                why=f"{len(self.state.postponed)} steps waited {(now - full) / 60:.0f} min for space",
                hint="free some space; what was collected is kept, and the same command builds the rest",
            )
            return
        end, tests = now + run_config.assumptions.teardown, run_config.tests
        most, limit = run_config.options.cost_limit, run_config.options.time_limit
        after, reserve = (0.0, 0.0) if tests is None else (tests.seconds, tests.cost)
        spent = self.state.inventory.total_cost_until
        hint = "what is finished is kept; the same command builds the rest"
        if limit is not None and end + after - self.state.started >= limit:
            self.state.stop = FleetLimit(f"the run was stopped at its time limit of {limit / 3600:.2f} h", hint=hint)
        elif most is not None and spent(end) + reserve > most:
            currency = run_config.machine_type.currency
            self.state.stop = FleetLimit(
                f"the run was stopped at its cost limit of {most:.2f} {currency}",
                why=f"{spent(now):.2f} {currency} are spent"
                + (f", and the tests that follow need {reserve:.2f} {currency}" if reserve else ""),
                hint=hint,
            )

    def _next_wake_time(self) -> float:
        """Return when to act at the latest, should no event arrive."""
        state, now = self.state, self.state.executor.now()
        due = [time for time, _ in state.postponed]
        due += [] if state.disk_full_since is None else [state.disk_full_since + state.run_config.options.lease]
        for worker in state.inventory.present_workers:
            if worker.retries:
                due += worker.retries.values()
        due += [
            worker.next_check if worker.is_building else self._next_check_time(worker)
            for worker in state.inventory.alive_workers
            if worker.silent_since is None
        ]
        due += self.silence.next_probe_times(now)
        due += [self.workers.next_request] if now < self.workers.next_request else []
        if state.run_config.options.time_limit is not None:
            tests = state.run_config.tests
            after = state.run_config.assumptions.teardown + (0.0 if tests is None else tests.seconds)
            due.append(state.started + state.run_config.options.time_limit - after)
        if state.run_config.options.cost_limit is not None:
            due.append(now + LOOK)
        time = min(due, default=NEVER)
        return max(now, time) if time < NEVER else now + LOOK


def _is_assigned_config(worker: Worker, config: str) -> bool:
    return worker.assignment is not None and worker.assignment.config == config
