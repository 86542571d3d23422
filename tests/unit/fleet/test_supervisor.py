"""Whatever happens to workers, builds, controller or provider: every config has a result, and nothing remains."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import (
    BudgetSpent,
    BuildFailed,
    CredentialsRefused,
    DiskFull,
    FleetLimit,
    HashMismatch,
    MachinesUnknown,
    OutOfMemory,
    ProvisionRefused,
    TeardownIncomplete,
    WorkersLost,
)
from kiln.fleet.inventory import workers_cost
from kiln.fleet.model import FleetRun, JobRecord, JobState, Offer, WorkerState
from kiln.fleet.options import FleetOptions
from kiln.fleet.protocol import (
    BuildFinished,
    CollectFailed,
    CollectResults,
    CommandUndelivered,
    Event,
    Heartbeat,
    LogLine,
    PrepareWorker,
    ProbeWorkers,
    ProvisionWorkers,
    QueuedBuildStarted,
    RenewLease,
    StartBuild,
    StopBuild,
    TearDownRun,
    TerminateWorker,
)
from kiln.fleet.records import FleetLedger, RunRecorder
from kiln.fleet.run_config import cache_worker_type
from kiln.fleet.supervisor import FORECAST, Supervisor
from kiln.run.simulation import DEFAULT, HISTORY
from kiln.state.results import ConfigState, JobSize
from tests.fleets import (
    HOUR,
    MACHINE,
    NEVER,
    Faults,
    Killed,
    NullObserver,
    NullStore,
    Simulation,
    estimates,
    null_recorder,
    run_config,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.fleet.model import MachineType
    from kiln.state.results import JobEstimate, MatrixReport

pytestmark = pytest.mark.usefixtures("rare_forecasts")

FOUR = estimates(4, hours=1, groups=4)
ONE, TWO = "kiln-r1-1", "kiln-r1-2"


def supervisor(simulation: Simulation, **more: Any) -> Supervisor:
    expected = run_config(tuple(simulation.estimates.values()), **more)
    return Supervisor(expected, executor=simulation, recorder=null_recorder())


def states(report: MatrixReport) -> dict[str, ConfigState]:
    return {config.config: config.state for config in report.configs}


def all_done(report: MatrixReport) -> bool:
    return set(states(report).values()) == {ConfigState.DONE}


def commands(simulation: Simulation, kind: type) -> list[Any]:
    return [command for command in simulation.commands if isinstance(command, kind)]


def assert_nothing_left(run: Supervisor, simulation: Simulation) -> None:
    """Assert that all workers are terminated, in the simulation and in the store, and that the last command did so."""
    assert not simulation.workers
    assert isinstance(simulation.commands[-1], TearDownRun)
    over = {WorkerState.TERMINATED, WorkerState.REFUSED}
    assert {worker.record.state for worker in run.state.inventory} <= over


def built(simulation: Simulation, **more: Any) -> Supervisor:
    """Return a run that has ended as it should: all configs are built, and nothing is left."""
    run = supervisor(simulation, **more)
    assert all_done(run.execute_run())
    assert_nothing_left(run, simulation)
    return run


def test_two_workers_build_four_configs_and_are_torn_down_together() -> None:
    simulation = Simulation(FOUR)
    run = supervisor(simulation)
    report = run.execute_run()
    assert all_done(report)
    assert Counter(worker for _, worker in simulation.built) == {ONE: 2, TWO: 2}
    assert len(commands(simulation, ProvisionWorkers)) == 1
    assert not commands(simulation, TerminateWorker)
    assert not any(start.reclaimable for start in commands(simulation, StartBuild)), "they are on demand"
    assert report.finished is not None
    assert report.finished - report.started < 2 * HOUR + 240 + 60 + 30 + 60
    assert_nothing_left(run, simulation)


def test_a_worker_is_terminated_as_soon_as_no_config_waits() -> None:
    simulation = Simulation(estimates(3, hours=1, groups=3))
    built(simulation)
    assert [command.worker for command in commands(simulation, TerminateWorker)] == [TWO]


def test_packages_are_collected_while_the_next_config_is_built() -> None:
    simulation = Simulation(FOUR)
    supervisor(simulation).execute_run()
    kinds = [
        type(command)
        for command in simulation.commands
        if isinstance(command, StartBuild | CollectResults) and command.worker == ONE
    ]
    assert kinds == [StartBuild, CollectResults, StartBuild, CollectResults]
    assert simulation.clock - simulation.began < 2 * HOUR + simulation.up + simulation.home + 2 * simulation.down + 10


def test_warm_builds_reuse_the_compile_of_their_worker() -> None:
    simulation = Simulation(estimates(4, hours=1, warm=0.2, groups=2))
    run = supervisor(simulation)
    report = run.execute_run()
    assert all_done(report)
    assert report.finished is not None
    assert report.finished - report.started < 1.2 * HOUR + 600
    assert [config.cold for config in report.configs] == [True, True, False, False]


def test_a_worker_that_dies_while_building_is_replaced_and_its_config_built_again() -> None:
    run = built(Simulation(FOUR, faults=Faults(dies={ONE: 2000.0})))
    assert run.workers.losses.single == 1
    assert set(run.state.inventory.workers) == {ONE, TWO, "kiln-r1-3"}
    assert max(run.state.inventory.attempt_count(estimate.config) for estimate in FOUR) == 2


def test_a_config_whose_workers_all_die_fails_after_its_last_attempt() -> None:
    dies = {f"kiln-r1-{number}": 240.0 + number * 1000 for number in range(1, 9)}
    simulation = Simulation(estimates(1, hours=9), faults=Faults(dies=dies))
    run = supervisor(simulation, attempts=2, replacements=9)
    report = run.execute_run()
    assert states(report) == {"config00": ConfigState.FAILED}
    assert isinstance(run.state.errors["config00"], WorkersLost)
    assert "2 workers" in str(run.state.errors["config00"])
    assert_nothing_left(run, simulation)


def test_a_run_whose_workers_all_die_ends_with_what_was_finished() -> None:
    dies = {f"kiln-r1-{number}": 240.0 + number * 1000 for number in range(1, 9)}
    simulation = Simulation(FOUR, faults=Faults(dies=dies))
    run = supervisor(simulation, attempts=9, replacements=2)
    with pytest.raises(WorkersLost, match="were lost, and no more"):
        run.execute_run()
    assert_nothing_left(run, simulation)


def test_a_worker_that_cannot_be_prepared_is_replaced() -> None:
    run = built(Simulation(FOUR, faults=Faults(unprepared=frozenset({TWO}))))
    assert max(run.state.inventory.attempt_count(estimate.config) for estimate in FOUR) == 1


def test_a_preparation_that_fails_for_a_moment_is_tried_again() -> None:
    simulation = Simulation(FOUR, faults=Faults(hiccups={TWO: 2}))
    run = built(simulation, replacements=0)
    assert [command.worker for command in commands(simulation, PrepareWorker)].count(TWO) == 3
    assert [worker.name for worker in run.state.inventory] == [ONE, TWO]


def test_a_refused_worker_leaves_its_config_to_the_others_and_is_requested_again() -> None:
    """Three of six machines that are refused for a minute cost minutes, not another round of builds."""
    refused = frozenset(f"kiln-r1-{number}" for number in (4, 5, 6))
    simulation = Simulation(estimates(12, groups=12), faults=Faults(refused=refused))
    run = supervisor(simulation, max_workers=6)
    report = run.execute_run()
    assert all_done(report)
    assert report.finished is not None
    assert report.finished - report.started < 6.2 * HOUR
    assert len({worker for _, worker in simulation.built}) == 6
    assert len(commands(simulation, ProvisionWorkers)) == 2
    assert_nothing_left(run, simulation)


def test_a_refused_machine_that_exists_is_not_requested_again() -> None:
    simulation = Simulation(FOUR, faults=Faults(refused=frozenset({TWO})))
    built(simulation, machine_type=dataclasses.replace(MACHINE, provider="static"))
    assert {worker for _, worker in simulation.built} == {ONE}
    assert len(commands(simulation, ProvisionWorkers)) == 1


SPOT, ZONE_B = ("compute-16", True, "a"), ("compute-16", True, "b")
ON_DEMAND = ("compute-16", False, "a")
OFFERS = tuple(Offer(machine_type=MACHINE, spot=spot, zone=zone) for _, spot, zone in (SPOT, ZONE_B, ON_DEMAND))


def test_what_one_zone_refuses_is_taken_in_the_next_or_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults(scarce={SPOT: (0.0, NEVER), ZONE_B: (0.0, NEVER)})
    simulation = Simulation(FOUR, faults=faults)
    run = supervisor(simulation, type_offers={MACHINE: OFFERS}, spot=True)
    lines: list[str] = []
    monkeypatch.setattr(run.state.recorder, "show_output_line", lambda _config, step, _line: lines.append(step))
    report = run.execute_run()
    assert all_done(report)
    texts = [f"request kiln-r1-{number} as {offer}" for number, offer in zip((3, 5), OFFERS[1:], strict=True)]
    assert [line.partition(": ")[0] for line in lines if " as " in line][::2] == texts
    requests = [command.offers for command in commands(simulation, ProvisionWorkers)]
    assert [set(offers.values()) for offers in requests[:3]] == [{SPOT}, {ZONE_B}, {ON_DEMAND}]
    used = [worker.record for worker in run.state.inventory if worker.record.provisioned is not None]
    assert {(worker.offer_key, worker.hourly) for worker in used} == {(ON_DEMAND, MACHINE.hourly)}
    assert report.machine == "2 x compute-16 (made-up.16) in a (local)"
    assert report.finished is not None
    assert report.finished - report.started < 2.2 * HOUR, "nothing waits while an offer is left"
    assert_nothing_left(run, simulation)


def test_a_new_run_waits_for_capacity_until_its_patience_is_over() -> None:
    """Another reason than capacity, such as a quota, ends it at once, as before."""
    scarce = {offer.key: (0.0, HOUR / 2) for offer in OFFERS}
    run = supervisor(Simulation(FOUR, faults=Faults(scarce=scarce)), type_offers={MACHINE: OFFERS})
    assert all_done(run.execute_run())
    simulation = Simulation(FOUR, faults=Faults(scarce=scarce))
    run = supervisor(simulation, type_offers={MACHINE: OFFERS}, capacity_timeout=600.0)
    with pytest.raises(ProvisionRefused, match="refused all") as refused:
        run.execute_run()
    assert "compute-16 (made-up.16) spot in b: no capacity; compute-16 (made-up.16) in a: " in refused.value.why
    assert 600.0 <= simulation.clock - simulation.began < 1800.0
    assert_nothing_left(run, simulation)


def test_a_refusal_and_the_time_of_the_next_request_which_is_not_nothing_are_announced() -> None:
    """Refusals take longer than the first pause between requests, which is then over."""
    lines: list[str] = []

    class Lines(NullObserver):
        def output_line_received(self, config: str, step: str, line: str) -> None:
            lines.append(step)

    simulation = Simulation(FOUR, faults=Faults(scarce={offer.key: (0.0, HOUR / 2) for offer in OFFERS}))
    simulation.refusal = 150.0
    expected = run_config(FOUR, type_offers={MACHINE: OFFERS})
    Supervisor(expected, executor=simulation, recorder=RunRecorder(NullStore(), Lines())).execute_run()
    assert f"{ONE} was refused: no capacity" in lines
    moments = {line.partition("asking again ")[2].partition(":")[0] for line in lines if "asking again" in line}
    assert "now" in moments
    assert "in 0 min" not in moments


@pytest.mark.parametrize("scarce", [False, True])
def test_each_offer_is_asked_for_once_before_any_is_again_however_long_a_refusal_takes(*, scarce: bool) -> None:
    """A server that is refused only when it was scheduled takes longer than the pause after the first refusal."""
    always = (0.0, NEVER)
    faults = Faults(scarce={offer.key: always for offer in OFFERS}) if scarce else Faults(no_capacity=always)
    simulation = Simulation(FOUR, faults=faults)
    simulation.refusal = 150.0
    run = supervisor(simulation, type_offers={MACHINE: OFFERS}, capacity_timeout=1000.0)
    with pytest.raises(ProvisionRefused, match="refused all"):
        run.execute_run()
    requests = [next(iter(command.offers.values())) for command in commands(simulation, ProvisionWorkers)]
    assert requests[:3] == [offer.key for offer in OFFERS]
    assert (len(requests) > 3) == scarce, "a quota does not go away"
    assert simulation.clock - simulation.began < 450 + (1000 + 2 * 150 if scarce else 0) + 300
    assert_nothing_left(run, simulation)


def test_a_lost_worker_is_replaced_by_the_first_offer_again() -> None:
    faults = Faults(scarce={SPOT: (0.0, 600.0)}, dies={"kiln-r1-3": HOUR / 2})
    run = built(Simulation(FOUR, faults=faults), type_offers={MACHINE: OFFERS})
    offers = [worker.record.offer_key for worker in run.state.inventory]
    assert offers == [SPOT, SPOT, ZONE_B, ZONE_B, SPOT]


def test_a_worker_gets_no_build_that_its_lifetime_is_too_short_for() -> None:
    simulation = Simulation(estimates(6, hours=3.0, groups=6))
    run = built(simulation, max_workers=1, lifetime=8 * HOUR)
    assert Counter(worker for _, worker in simulation.built) == {ONE: 2, TWO: 2, "kiln-r1-3": 2}
    assert run.workers.losses.single == 0


def test_a_config_that_kills_its_workers_fails_though_it_is_tried_while_others_are_lost_as_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By itself it fails; where all workers die as often, none does."""
    for rate, expected in ((0.0, {ConfigState.FAILED}), (0.6, {ConfigState.DONE})):
        jobs = estimates(30, groups=30)
        simulation = Simulation(jobs, faults=Faults(preemption=rate), seed=5)
        run = supervisor(simulation, max_workers=10, is_strict=False, replacements=1000)
        started = simulation._started

        def start(worker: str, config: str, rate: float = rate, started: Any = started, fleet: Any = simulation) -> Any:
            event = started(worker, config)
            if config == "config00" and not rate:
                fleet.workers[worker].dies = fleet.clock + 600
            return event

        monkeypatch.setattr(simulation, "_started", start)
        report = run.execute_run()
        assert {config.state for config in report.configs if config.config == "config00"} == expected
        assert {config.state for config in report.configs if config.config != "config00"} == {ConfigState.DONE}
        attempts = [run.state.inventory.attempt_count(job.config) for job in jobs]
        assert (3 <= attempts[0] <= 8, max(attempts[1:])) == (True, 1) if not rate else max(attempts) > 3


def test_the_refusal_of_all_workers_is_an_error_with_the_reason() -> None:
    simulation = Simulation(FOUR, faults=Faults(refused=frozenset({ONE, TWO})))
    run = supervisor(simulation)
    with pytest.raises(ProvisionRefused) as refused:
        run.execute_run()
    assert refused.value.why == "quota exceeded"
    assert_nothing_left(run, simulation)


def test_a_run_that_has_lost_its_workers_asks_again_when_others_are_refused() -> None:
    """As of spot workers, which are reclaimed when there are none to replace them."""
    faults = Faults(dies={ONE: HOUR / 2, TWO: HOUR / 2}, no_capacity=(HOUR / 4, HOUR))
    simulation = Simulation(FOUR, faults=faults)
    run = supervisor(simulation)
    report = run.execute_run()
    assert all_done(report)
    assert report.finished is not None
    assert report.finished - report.started < 3.5 * HOUR, "both workers are asked for again, not one alone"
    assert 4 <= len(commands(simulation, ProvisionWorkers)) <= 8
    assert_nothing_left(run, simulation)


def test_a_provider_that_goes_on_refusing_ends_the_run() -> None:
    simulation = Simulation(FOUR, faults=Faults(dies={ONE: HOUR / 2, TWO: HOUR / 2}, no_capacity=(HOUR / 4, NEVER)))
    run = supervisor(simulation)
    with pytest.raises(ProvisionRefused, match="refused all"):
        run.execute_run()
    assert HOUR < simulation.clock - simulation.began < 2 * HOUR
    assert_nothing_left(run, simulation)


@pytest.mark.parametrize("seed", range(4))
def test_a_run_on_spot_workers_outlives_frequent_preemption(seed: int) -> None:
    """With the limits for other workers, three and three, four of five such runs ended without all configs."""
    workers = 6
    attempts, replacements = FleetOptions(spot=True).loss_limits(workers=workers, worker_seconds=45 * HOUR)
    built(
        Simulation(estimates(15), faults=Faults(preemption=0.2), seed=seed),
        max_workers=workers,
        attempts=attempts,
        replacements=replacements,
    )


def test_a_worker_that_its_provider_takes_back_is_drained_and_costs_no_attempt() -> None:
    """Its build is stopped, its config goes to a worker that is requested at the notice, and nothing starts there."""
    dies = HOUR / 2
    simulation = Simulation(estimates(1, hours=1.0), faults=Faults(dies={ONE: dies}, notice=True))
    run = supervisor(simulation, max_workers=1, attempts=1, replacements=0)
    report = run.execute_run()
    assert all_done(report)
    (stop,) = commands(simulation, StopBuild)
    assert (stop.worker, "takes kiln-r1-1 back in 120 s" in stop.reason) == (ONE, True)
    assert [command.worker for command in commands(simulation, StartBuild)] == [ONE, TWO]
    assert run.workers.losses.single == 0
    born = {name: born - simulation.began for name, born, _ in simulation.paid}
    assert dies - 120 <= born[TWO] < dies - 60, "it is not waited for the end of the first"
    assert {job.reclaimed for job in run.state.inventory.latest_jobs()} == {False}
    assert_nothing_left(run, simulation)


class SavingSimulation(Simulation):
    """Builds that are stopped in time hand over what they have made, unless this is ``lost`` on its way."""

    lost = False

    def _ended(self, name: str, worker: Any, config: str) -> Any:
        event = super()._ended(name, worker, config)
        if (name, config) not in self._killed_builds:
            return event
        return BuildFinished(worker=name, config=config, exit_code=BudgetSpent.exit_code)

    def _collected(self, name: str, config: str) -> Any:
        if self.lost and (name, config) in self._killed_builds:
            return CollectFailed(worker=name, config=config, reason="the connection was lost")
        return super()._collected(name, config)


@pytest.mark.parametrize("lost", [False, True])
def test_what_a_reclaimed_worker_has_built_is_saved_before_its_end(lost: bool) -> None:
    """The next worker starts after that, so that it can continue the build; if it is lost, it builds all again."""
    dies = HOUR / 2
    simulation = SavingSimulation(estimates(1, hours=1.0), home=20.0, faults=Faults(dies={ONE: dies}, notice=True))
    simulation.lost = lost
    run = built(simulation, max_workers=1, attempts=1, replacements=1, spot=True)
    (stop,) = commands(simulation, StopBuild)
    assert stop.until == pytest.approx(simulation.began + dies)
    saving, last = commands(simulation, CollectResults)
    assert (saving.worker, saving.until, last.worker, last.until) == (ONE, stop.until, TWO, None)
    starts = commands(simulation, StartBuild)
    assert [(start.worker, start.reclaimable) for start in starts] == [(ONE, True), (TWO, True)]
    order = [
        command for command in simulation.commands if isinstance(command, CollectResults | TerminateWorker | StartBuild)
    ]
    assert order[:4] == [starts[0], saving, order[2], starts[1]], "it is not terminated before"
    (lost_job,) = [job for job in run.state.inventory._jobs.values() if job.reclaimed]
    assert lost_job.reason.endswith("is lost: the connection was lost" if lost else "is handed on")
    assert run.workers.losses.single == 0


def test_a_build_whose_worker_dies_while_it_is_saved_is_built_by_another() -> None:
    dies = HOUR / 2
    simulation = SavingSimulation(estimates(1, hours=1.0), home=300.0, faults=Faults(dies={ONE: dies}, notice=True))
    built(simulation, max_workers=1, attempts=1, spot=True, unreachable_timeout=60.0)


def reclaiming(lives: int, **more: Any) -> tuple[Supervisor, Simulation]:
    """Return a run of one config of an hour whose first workers are taken back half an hour after their request."""
    simulation = Simulation(estimates(1, hours=1.0), faults=Faults(notice=True))
    bring, left = simulation._bring, [lives]

    def provision(name: str, command: ProvisionWorkers) -> None:
        bring(name, command)
        if left[0] and command.offers[name][1]:
            left[0] -= 1
            simulation.workers[name].dies = simulation.clock + HOUR / 2

    simulation._bring = provision  # type: ignore[method-assign]
    return supervisor(simulation, max_workers=1, spot=True, **more), simulation


def test_workers_that_are_taken_back_are_replaced_a_limited_number_of_times() -> None:
    run, simulation = reclaiming(3, replacements=3)
    assert all_done(run.execute_run())
    run, simulation = reclaiming(9, replacements=2)
    with pytest.raises(WorkersLost, match="took back 3 spot workers") as caught:
        run.execute_run()
    assert "--fallback on-demand" in str(caught.value)
    assert len(simulation.paid) == 3
    assert_nothing_left(run, simulation)


def test_a_run_whose_spot_workers_are_taken_back_too_often_goes_on_on_demand() -> None:
    offers = (Offer(machine_type=MACHINE, spot=True), Offer(machine_type=MACHINE))
    run, simulation = reclaiming(9, replacements=2, type_offers={MACHINE: offers})
    assert all_done(run.execute_run())
    assert [worker.record.spot for worker in run.state.inventory] == [True, True, True, False]
    assert_nothing_left(run, simulation)


def test_a_controller_that_begins_again_remembers_how_many_workers_were_taken_back() -> None:
    jobs = (JobRecord(config=FOUR[0].config, worker=ONE, attempt=1, state=JobState.LOST, started=0.0, reclaimed=True),)
    previous = FleetRun(
        id="r1", provider="local", type=MACHINE.type, started=0.0, finished=None, number=1, lives=False, jobs=jobs
    )
    run = supervisor(Simulation(FOUR), previous_run=previous, replacements=1)
    assert all_done(run.execute_run())
    assert run.workers.reclaim_count == 1


def test_a_build_that_ends_before_its_worker_is_taken_back_is_collected() -> None:
    up = 240 + 120.0
    simulation = Simulation(FOUR, faults=Faults(dies={ONE: HOUR + up}, notice=True))
    run = built(simulation)
    assert not commands(simulation, StopBuild)
    assert max(run.state.inventory.attempt_count(job.config) for job in FOUR) == 1
    assert Counter(worker for _, worker in simulation.built)[ONE] == 1, "nothing starts there after the notice"


def test_a_machine_that_a_failed_request_has_left_is_ended_while_the_run_goes_on() -> None:
    simulation = Simulation(FOUR, faults=Faults(half_made=frozenset({TWO})))
    built(simulation)
    ends = {name: end - simulation.began for name, _, end in simulation.paid}
    assert ends[TWO] < 240.0, "it is charged for minutes, not for the whole run"
    assert {worker for _, worker in simulation.built} == {ONE, "kiln-r1-3"}


def test_wrong_credentials_end_the_run_at_once() -> None:
    """The provider has never accepted them: there is nothing to tear down."""
    simulation = Simulation(FOUR, faults=Faults(credentials=True, stays=9))
    with pytest.raises(CredentialsRefused):
        supervisor(simulation).execute_run()
    assert not commands(simulation, PrepareWorker)
    assert not simulation.workers
    assert len(commands(simulation, TearDownRun)) == 1


def test_a_replacement_that_expired_credentials_do_not_allow_leaves_the_builds_to_the_other_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Earlier requests to the provider stay: its builds go on, and the run ends with all packages."""
    simulation = Simulation(FOUR, faults=Faults(dies={TWO: 400.0}, expired=300.0))
    run = supervisor(simulation)
    with pytest.raises(MachinesUnknown) as unknown:
        run.execute_run()
    assert {config.state for config in run.state.configs.values()} == {ConfigState.DONE}
    assert {worker for _, worker in simulation.built} == {ONE}
    assert unknown.value.hint.startswith("kiln fleet down r1, with valid credentials; ")
    notes = [record.getMessage() for record in caplog.records if "credentials" in record.getMessage()]
    assert len(notes) == 1, "it is said once"
    assert len(commands(simulation, ProvisionWorkers)) > 2, "it is asked again"
    assert len(commands(simulation, TearDownRun)) == 3, "nobody waits for them to become valid"
    assert simulation.clock - simulation.began < 4.3 * HOUR


def test_credentials_that_are_valid_again_bring_the_replacement() -> None:
    simulation = Simulation(FOUR, faults=Faults(dies={TWO: 400.0}))
    original = simulation.next_event

    def next_event(until: float) -> Event | None:
        simulation.faults.credentials = 60 < simulation.clock - simulation.began < HOUR / 2
        return original(until)

    simulation.next_event = next_event  # type: ignore[method-assign]
    built(simulation)
    assert len({worker for _, worker in simulation.built}) == 2


def test_credentials_end_a_run_when_its_last_worker_is_lost() -> None:
    """The provider cannot be asked whether it exists: its lease says when it does not any more."""
    simulation = Simulation(FOUR, faults=Faults(dies={ONE: 5000.0, TWO: 400.0}, expired=300.0))
    run = supervisor(simulation)
    with pytest.raises(MachinesUnknown) as unknown:
        run.execute_run()
    assert isinstance(unknown.value.others[0], CredentialsRefused)
    assert Counter(config.state for config in run.state.configs.values())[ConfigState.DONE] == 1
    assert simulation.clock - simulation.began < 5000 + 2 * HOUR


def test_a_run_goes_on_without_a_cache_that_the_credentials_do_not_allow() -> None:
    simulation = Simulation(FOUR, cache=True)
    original = simulation._bring

    def bring(name: str, command: ProvisionWorkers) -> None:
        simulation.faults.credentials = name.endswith("cache")
        original(name, command)

    simulation._bring = bring  # type: ignore[method-assign]
    assert all_done(supervisor(simulation, cache=MACHINE).execute_run())
    assert len(simulation.built) == len(FOUR)


def test_a_worker_that_is_refused_during_the_tear_down_is_stored_as_refused() -> None:
    simulation = Simulation(FOUR, faults=Faults(refused=frozenset({TWO}), stopped=(5.0,)))
    run = supervisor(simulation)
    with pytest.raises(KeyboardInterrupt):
        run.execute_run()
    workers = {worker.name: (worker.record.state, worker.record.reason) for worker in run.state.inventory}
    assert workers == {ONE: (WorkerState.TERMINATED, ""), TWO: (WorkerState.REFUSED, "quota exceeded")}
    assert_nothing_left(run, simulation)


def test_credentials_that_are_refused_later_do_not_mean_that_nothing_exists(tmp_path: Path) -> None:
    simulation = Simulation(FOUR, faults=Faults(killed=1.0))
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            started(ledger, simulation).execute_run()
        simulation.revive()
        simulation.workers.clear()
        simulation.faults.credentials, simulation._stays = True, 9
        with pytest.raises(TeardownIncomplete):
            started(ledger, simulation, ledger.fleet_run("r1")).execute_run()


def test_a_config_that_does_not_compile_fails_alone() -> None:
    simulation = Simulation(FOUR, faults=Faults(codes={"config02": 17}))
    run = supervisor(simulation)
    report = run.execute_run()
    assert states(report) == {
        "config00": ConfigState.DONE,
        "config01": ConfigState.DONE,
        "config02": ConfigState.FAILED,
        "config03": ConfigState.DONE,
    }
    assert type(run.state.errors["config02"]) is BuildFailed
    assert {command.config for command in commands(simulation, CollectResults)} == {
        estimate.config for estimate in FOUR
    }
    assert len(commands(simulation, StartBuild)) == 4
    assert_nothing_left(run, simulation)


@pytest.mark.parametrize("kind", ["full", "read_only"])
def test_a_disk_that_takes_nothing_retires_the_worker_and_another_builds_the_config(kind: str) -> None:
    simulation = Simulation(FOUR, faults=Faults(**{kind: frozenset({ONE})}))  # type: ignore[arg-type] # by name
    built(simulation)
    assert [command.worker for command in commands(simulation, StartBuild)].count(ONE) == 1
    assert ONE not in {worker for _, worker in simulation.built}


def test_a_config_that_fills_two_disks_is_at_fault_itself() -> None:
    simulation = Simulation(estimates(1), faults=Faults(full=frozenset({ONE, TWO, "kiln-r1-3"})))
    run = supervisor(simulation)
    assert states(run.execute_run()) == {"config00": ConfigState.DISK_FULL}
    assert type(run.state.errors["config00"]) is DiskFull
    assert len(commands(simulation, StartBuild)) == 2
    assert_nothing_left(run, simulation)


def test_a_config_whose_worker_died_before_may_still_fill_one_disk() -> None:
    simulation = Simulation(estimates(1), faults=Faults(dies={ONE: 2000.0}, full=frozenset({TWO})))
    built(simulation)
    assert [worker for _, worker in simulation.built] == ["kiln-r1-3"]


def test_a_full_disk_here_is_waited_out_without_losing_a_worker_or_a_build() -> None:
    simulation = Simulation(FOUR, faults=Faults(no_room=(1000.0, 240 + 1.5 * HOUR)))
    built(simulation, attempts=1, replacements=0)
    assert len(simulation.built) == len(FOUR)
    assert {worker for _, worker in simulation.built} == {ONE, TWO}


def test_a_disk_that_stays_full_ends_the_run_as_that_when_a_lease_is_over() -> None:
    simulation = Simulation(FOUR, faults=Faults(no_room=(1000.0, NEVER)))
    run = supervisor(simulation, lease=HOUR)
    with pytest.raises(DiskFull, match="could not be collected") as full:
        run.execute_run()
    assert "60 min" in full.value.why
    assert simulation.clock - simulation.began < 240 + 2 * HOUR + 120
    assert ConfigState.RUNNING not in states(run.state.run_report()).values()
    assert_nothing_left(run, simulation)


def test_ctrl_c_does_not_wait_for_collections_without_disk_space() -> None:
    simulation = Simulation(FOUR, faults=Faults(no_room=(1000.0, NEVER), stopped=(240 + HOUR + 60,)))
    run = supervisor(simulation)
    with pytest.raises(KeyboardInterrupt):
        run.execute_run()
    assert simulation.clock - simulation.began < 240 + HOUR + 60 + 2 * simulation.down
    assert_nothing_left(run, simulation)


@pytest.mark.parametrize(("times", "state"), [(1, ConfigState.DONE), (2, ConfigState.DONE), (3, ConfigState.FAILED)])
def test_corrupt_packages_are_collected_again_and_then_fail(times: int, state: ConfigState) -> None:
    simulation = Simulation(FOUR, faults=Faults(corrupt={"config01": times}))
    run = supervisor(simulation)
    result = states(run.execute_run())
    assert result.pop("config01") is state
    assert set(result.values()) == {ConfigState.DONE}
    assert {type(error) for error in run.state.errors.values()} == (
        {HashMismatch} if state is ConfigState.FAILED else set()
    )
    assert_nothing_left(run, simulation)


def test_a_worker_that_dies_before_its_packages_are_collected_costs_another_build() -> None:
    simulation = Simulation(estimates(1, hours=1), faults=Faults(dies={ONE: 240 + HOUR + 10}))
    built(simulation)
    assert [worker for _, worker in simulation.built] == [ONE, TWO]


@pytest.mark.parametrize("moment", [1.0, 130.0, 1000.0, 240 + HOUR + 30, 2 * HOUR])
def test_ctrl_c_at_any_moment_tears_down_and_keeps_what_is_finished(moment: float) -> None:
    simulation = Simulation(FOUR, faults=Faults(stopped=(moment, moment + 5, moment + 20)))
    run = supervisor(simulation)
    with pytest.raises(KeyboardInterrupt):
        run.execute_run()
    assert ConfigState.RUNNING not in states(run.state.run_report()).values()
    assert sum(config.state is ConfigState.DONE for config in run.state.run_report().configs) <= len(simulation.built)
    assert_nothing_left(run, simulation)


def test_ctrl_c_is_answered_and_waits_for_running_collections(caplog: pytest.LogCaptureFixture) -> None:
    simulation = Simulation(FOUR, faults=Faults(stopped=(240 + HOUR + 30,)))
    run = supervisor(simulation)
    with pytest.raises(KeyboardInterrupt):
        run.execute_run()
    assert [config.state for config in run.state.run_report().configs if config.started] == [
        ConfigState.DONE,
        ConfigState.DONE,
        ConfigState.INTERRUPTED,
        ConfigState.INTERRUPTED,
    ]
    assert "note: interrupted: what is finished is collected, then the workers are terminated" in caplog.text


def test_a_stopped_run_sleeps_while_it_waits_for_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is due meanwhile, such as a list of the machines or a lease's renewal, does not keep it awake."""
    simulation = Simulation(FOUR, faults=Faults(stopped=(240 + HOUR + 60,)), home=250.0)
    cloud = dataclasses.replace(MACHINE, provider="openstack")
    run, waits = supervisor(simulation, machine_type=cloud), 0
    next_event = simulation.next_event

    def counted(until: float) -> Event | None:
        nonlocal waits
        waits += 1
        assert waits < 1000
        return next_event(until)

    monkeypatch.setattr(simulation, "next_event", counted)
    with pytest.raises(KeyboardInterrupt):
        run.execute_run()
    assert sum(config.state is ConfigState.DONE for config in run.state.run_report().configs) == 2


def test_the_time_limit_is_kept_with_the_tear_down_in_it() -> None:
    simulation = Simulation(FOUR)
    run = supervisor(simulation, time_limit=1.5 * HOUR)
    with pytest.raises(FleetLimit, match=r"1\.50 h"):
        run.execute_run()
    assert simulation.clock - simulation.began <= 1.5 * HOUR
    assert list(states(run.state.run_report()).values()).count(ConfigState.DONE) == 2
    assert_nothing_left(run, simulation)


def test_the_spending_limit_is_kept_to_the_last_worker() -> None:
    simulation = Simulation(FOUR)
    run = supervisor(simulation, cost_limit=2.0)
    with pytest.raises(FleetLimit, match=r"2\.00 EUR"):
        run.execute_run()
    paid = sum(end - begin for _, begin, end in simulation.paid) / HOUR * MACHINE.hourly
    assert 1.9 < paid <= 2.0
    assert_nothing_left(run, simulation)


def test_leases_are_renewed_in_time_and_end_without_a_controller() -> None:
    simulation = Simulation(estimates(1, hours=9))
    run = built(simulation, lease=HOUR)
    assert len(commands(simulation, RenewLease)) >= 4 * 9
    assert run.workers.losses.single == 0


def test_a_tear_down_that_fails_is_retried_and_then_reported() -> None:
    simulation = Simulation(FOUR, faults=Faults(stays=2))
    run = supervisor(simulation)
    assert all_done(run.execute_run())
    assert_nothing_left(run, simulation)
    simulation = Simulation(FOUR, faults=Faults(stays=3))
    with pytest.raises(TeardownIncomplete) as left:
        supervisor(simulation).execute_run()
    assert "kiln fleet down r1" in left.value.hint
    assert left.value.why == "the provider does not answer"


def test_a_tear_down_without_a_listing_reports_that_workers_may_remain() -> None:
    simulation = Simulation(FOUR, faults=Faults(stays=1000, listed=False))
    run = supervisor(simulation)
    with pytest.raises(MachinesUnknown, match="may be left running"):
        run.execute_run()
    assert WorkerState.TERMINATED not in {worker.record.state for worker in run.state.inventory}


def test_a_cache_is_ready_before_the_first_build_and_its_loss_is_tolerated() -> None:
    configs = estimates(4, hours=1, warm=0.2, groups=2)
    for dies in ({}, {"kiln-r1-cache": 60.0}):
        simulation = Simulation(configs, faults=Faults(dies=dies), cache=not dies)
        run = supervisor(simulation, cache=dataclasses.replace(MACHINE, type="small", hourly=0.1))
        assert all_done(run.execute_run())
        assert {command.cache for command in commands(simulation, StartBuild)} == ({""} if dies else {"http://cache"})
        assert_nothing_left(run, simulation)


SMALL = dataclasses.replace(MACHINE, type="small", hourly=0.1)


def test_a_cache_that_dies_during_the_builds_is_terminated_and_the_run_continues_without() -> None:
    configs = estimates(8, hours=1, warm=0.2, groups=2)
    simulation = Simulation(configs, faults=Faults(dies={"kiln-r1-cache": 2000.0}), cache=True)
    run = built(simulation, cache=SMALL)
    caches = [command.cache for command in commands(simulation, StartBuild)]
    assert caches == ["http://cache"] * 2 + [""] * 6
    assert (run.workers.losses.single, run.workers.max_workers) == (0, 2)
    assert "does not list it" in run.state.inventory.workers["kiln-r1-cache"].record.reason


def test_a_run_continues_without_a_refused_cache() -> None:
    simulation = Simulation(FOUR, faults=Faults(refused=frozenset({"kiln-r1-cache"})))
    run = built(simulation, cache=SMALL)
    assert {command.cache for command in commands(simulation, StartBuild)} == {""}
    assert run.workers.max_workers == 2


def test_a_cache_is_leased_charged_and_terminated_like_other_workers() -> None:
    simulation = Simulation(estimates(2, hours=3), cache=True)
    run = built(simulation, cache=SMALL)
    assert "kiln-r1-cache" in {command.worker for command in commands(simulation, RenewLease)}
    cache = run.state.inventory.workers["kiln-r1-cache"].record
    assert cache.terminated is not None
    assert workers_cost([cache], (), simulation.clock) == pytest.approx(
        0.1 * (cache.terminated - cache.requested) / HOUR, abs=0.01
    )


def test_a_killed_controller_finds_its_cache_again(tmp_path: Path) -> None:
    simulation = Simulation(FOUR, faults=Faults(killed=1000.0), cache=True)
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            started(ledger, simulation, cache=SMALL).execute_run()
        before = ledger.fleet_run("r1")
        assert before is not None
        assert cache_worker_type(before) == "small"
        simulation.revive()
        run = started(ledger, simulation, before, cache=SMALL)
        assert all_done(run.execute_run())
        assert {command.cache for command in commands(simulation, StartBuild)} == {"http://cache"}
        assert sum("kiln-r1-cache" in command.workers for command in commands(simulation, ProvisionWorkers)) == 2
        assert_nothing_left(run, simulation)
        after = ledger.fleet_run("r1")
        assert after is not None
        assert cache_worker_type(after) is None


def test_a_cache_that_is_no_longer_requested_is_terminated(tmp_path: Path) -> None:
    simulation = Simulation(FOUR, faults=Faults(killed=1000.0), cache=True)
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            started(ledger, simulation, cache=SMALL).execute_run()
        simulation.revive()
        run = started(ledger, simulation, ledger.fleet_run("r1"))
        assert all_done(run.execute_run())
        assert commands(simulation, TerminateWorker)[0].worker == "kiln-r1-cache"
        assert_nothing_left(run, simulation)


def test_a_build_of_other_inputs_is_repeated() -> None:
    simulation = Simulation(FOUR, faults=Faults(foreign={"config01"}))
    built(simulation)
    assert [config for config, _ in simulation.built].count("config01") == 2


# A controller that is cut off

CUT_OFF = [300.0, 1000.0, 240 + HOUR + 1, 240 + HOUR + 30]


@pytest.mark.parametrize("minutes", [5, 10, 60])
@pytest.mark.parametrize("moment", CUT_OFF)
@pytest.mark.parametrize("wholly", [True, False])
def test_a_controller_that_is_cut_off_loses_no_build(wholly: bool, moment: float, minutes: float) -> None:
    """With default settings: whether it has lost its whole network, or its new address is not let in."""
    spans = ((moment, moment + 60 * minutes),)
    faults = Faults(offline=spans) if wholly else Faults(blocked=spans)
    simulation = Simulation(estimates(12, hours=3, groups=12), faults=faults)
    run = built(simulation, max_workers=6)
    assert {run.state.inventory.attempt_count(estimate.config) for estimate in simulation.estimates.values()} == {1}
    assert (run.workers.losses.single, len(run.state.inventory.workers)) == (0, 6)
    assert len(simulation.built) == 12


class SleepingSimulation(Simulation):
    """The controller is asleep in a span of the run: its clock jumps, and what happened meanwhile arrives late."""

    asleep = (0.0, 0.0)

    def next_event(self, until: float) -> Any:
        since, end = (self.began + moment for moment in self.asleep)
        event = super().next_event(min(until, since) if self.clock < since else until)
        if since <= self.clock < end:
            self.clock = end
        return event


@pytest.mark.parametrize("moment", CUT_OFF)
def test_a_controller_that_was_asleep_for_an_hour_goes_on_with_the_same_workers(moment: float) -> None:
    simulation = SleepingSimulation(estimates(12, hours=3, groups=12))
    simulation.asleep = (moment, moment + HOUR)
    run = built(simulation, max_workers=6)
    assert {run.state.inventory.attempt_count(estimate.config) for estimate in simulation.estimates.values()} == {1}
    assert (run.workers.losses.single, len(run.state.inventory.workers)) == (0, 6)
    assert simulation.clock - simulation.began < 6 * HOUR + 240 + HOUR + 900


@pytest.mark.parametrize("moment", [100.0, 200.0])
def test_a_controller_that_is_cut_off_during_provisioning_loses_no_worker(moment: float) -> None:
    run = built(Simulation(FOUR, faults=Faults(offline=((moment, moment + 600),))))
    assert (run.workers.losses.single, len(run.state.inventory.workers)) == (0, 2)


def test_a_provider_that_never_answers_is_not_waited_for() -> None:
    """It may be one that there is not."""
    simulation = Simulation(FOUR, faults=Faults(offline=((0.0, NEVER),)))
    with pytest.raises(MachinesUnknown) as unknown:
        supervisor(simulation).execute_run()
    assert [type(item) for item in unknown.value.others] == [ProvisionRefused]
    assert simulation.clock - simulation.began < 600


def test_an_outage_that_outlives_all_leases_costs_what_was_built_but_no_replacement() -> None:
    run = built(Simulation(FOUR, faults=Faults(offline=((1000.0, 1000.0 + 5 * HOUR),))), replacements=0)
    assert run.workers.losses.single == 0
    assert max(run.state.inventory.attempt_count(estimate.config) for estimate in FOUR) == 2


def test_no_worker_is_requested_while_none_answers() -> None:
    simulation = Simulation(estimates(12, groups=12), faults=Faults(offline=((1000.0, 4000.0),), dies={ONE: 1500.0}))
    run = built(simulation)
    assert len(commands(simulation, ProvisionWorkers)) == 2
    assert (run.workers.losses.single, set(run.state.inventory.workers)) == (1, {ONE, TWO, "kiln-r1-3"})
    assert run.state.inventory.attempt_count("config00") + run.state.inventory.attempt_count("config01") == 3


def test_one_worker_that_is_silent_alone_is_replaced_once_the_provider_was_asked() -> None:
    simulation = Simulation(FOUR, faults=Faults(cut={ONE: 1000.0}))
    run = built(simulation)
    lost = run.state.inventory.workers[ONE].record
    assert "no answer for 18" in lost.reason
    assert run.workers.losses.single == 1
    assert [command.workers for command in commands(simulation, ProbeWorkers)] == [(), (ONE, TWO)]


def test_the_only_worker_is_waited_for_until_it_has_ended_itself() -> None:
    """It may hang or be unreachable; its packages are worth waiting for until its lease is over."""
    simulation = Simulation(estimates(1, hours=9), faults=Faults(blocked=((1000.0, 1000.0 + HOUR),)))
    run = supervisor(simulation)
    assert all_done(run.execute_run())
    assert [worker for _, worker in simulation.built] == [ONE]
    simulation = Simulation(estimates(1, hours=9), faults=Faults(cut={ONE: 1000.0}))
    run = supervisor(simulation)
    assert all_done(run.execute_run())
    assert [worker for _, worker in simulation.built] == [TWO]
    assert_nothing_left(run, simulation)


def test_several_workers_reclaimed_at_once_are_replaced_and_do_not_count() -> None:
    dies = {f"kiln-r1-{number}": 2000.0 for number in range(1, 5)}
    run = built(Simulation(estimates(8, groups=8), faults=Faults(dies=dies)), max_workers=4, replacements=0)
    assert (run.workers.losses.single, len(run.state.inventory.workers)) == (0, 8)


def test_a_run_that_ends_while_the_controller_is_cut_off_waits_to_tear_down(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packages are here, and the workers are terminated as soon as the provider can be asked."""
    simulation = Simulation(estimates(1, hours=1.0))
    run = supervisor(simulation, max_workers=1)
    collected, begin = simulation._collected, simulation.began

    def collect(worker: str, config: str) -> Any:
        event = collected(worker, config)
        simulation.faults.offline = [(simulation.clock - begin, simulation.clock - begin + 2400)]
        return event

    monkeypatch.setattr(simulation, "_collected", collect)
    report = run.execute_run()
    assert all_done(report)
    assert report.finished is not None
    assert HOUR + 2400 < report.finished - report.started < HOUR + 3600
    assert "the provider cannot be asked" in caplog.text
    assert_nothing_left(run, simulation)


def test_ctrl_c_while_the_controller_is_cut_off_reports_that_workers_may_remain() -> None:
    simulation = Simulation(FOUR, faults=Faults(offline=((1000.0, NEVER),), stopped=(2000.0,)))
    run = supervisor(simulation)
    with pytest.raises(MachinesUnknown, match="may be left running"):
        run.execute_run()
    assert simulation.workers


# A controller that is killed


def started(ledger: FleetLedger, simulation: Simulation, before: FleetRun | None = None, **more: Any) -> Supervisor:
    result = () if before is None else (ledger.run_report(before.number) or pytest.fail("no report")).configs
    done = tuple(config for config in result if config.state is ConfigState.DONE)
    left = tuple(
        estimate
        for estimate in simulation.estimates.values()
        if estimate.config not in {config.config for config in done}
    )
    return Supervisor(
        run_config(left, cached_configs=done, previous_run=before, **more),
        executor=simulation,
        recorder=RunRecorder(ledger, NullObserver()),
    )


@pytest.mark.parametrize(
    "moment",
    [0.0, 1.0, 119.0, 121.0, 239.0, 241.0, 1000.0, 240 + HOUR, 240 + HOUR + 30, 240 + HOUR + 70, 2 * HOUR + 250],
)
def test_a_killed_controller_is_resumed_with_nothing_built_twice_and_nothing_left(
    moment: float, tmp_path: Path
) -> None:
    simulation = Simulation(FOUR, faults=Faults(killed=moment))
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            started(ledger, simulation).execute_run()
        before = ledger.fleet_run("r1")
        assert before is not None
        assert before.finished is None
        assert set(simulation.workers) <= {worker.name for worker in before.workers}
        simulation.revive()
        simulation.clock += 300
        run = started(ledger, simulation, before)
        assert all_done(run.execute_run())
        assert len(set(simulation.built)) == len(FOUR)
        assert {worker for _, worker in simulation.built} == {ONE, TWO}
        assert_nothing_left(run, simulation)
        after = ledger.fleet_run("r1")
        assert after is not None
        assert after.finished is not None
        assert {job.state for job in {job.config: job for job in after.jobs}.values()} == {JobState.COLLECTED}


def test_workers_whose_lease_expired_meanwhile_are_provisioned_anew(tmp_path: Path) -> None:
    simulation = Simulation(FOUR, faults=Faults(killed=1000.0))
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            started(ledger, simulation).execute_run()
        simulation.revive()
        simulation.clock += 2 * HOUR
        run = started(ledger, simulation, ledger.fleet_run("r1"))
        assert all_done(run.execute_run())
        assert len(simulation.built) == len(FOUR)
        assert_nothing_left(run, simulation)


def test_a_resumed_run_has_spent_what_its_earlier_process_has(tmp_path: Path) -> None:
    uneven = (*estimates(1, hours=4, groups=1), *(dataclasses.replace(job, cold=600.0) for job in FOUR[1:2]))
    simulation = Simulation(uneven, faults=Faults(killed=3 * HOUR))
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            started(ledger, simulation).execute_run()
        before = ledger.fleet_run("r1")
        assert before is not None
        assert {worker.state for worker in before.workers} == {WorkerState.TERMINATED, WorkerState.READY}
        simulation.revive()
        run = started(ledger, simulation, before)
        run.execute_run()
        after, report = ledger.fleet_run("r1"), ledger.run_report(run.state.number)
        assert after is not None
        assert report is not None
        assert report.cost is not None
        assert report.cost.spent == pytest.approx(workers_cost(after.workers, after.jobs, simulation.clock))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("cache", [False, True])
def test_under_preemption_every_config_is_built_once_it_can_be_and_nothing_is_left(seed: int, cache: bool) -> None:
    configs = estimates(15, warm=0.2 if cache else 1.0)
    simulation = Simulation(configs, faults=Faults(preemption=0.2), seed=seed, cache=cache)
    built(simulation, max_workers=5, attempts=99, replacements=999, cache=MACHINE if cache else None)
    assert {config for config, _ in simulation.built} == {estimate.config for estimate in configs}


SHARED = estimates(6, hours=3, warm=0.2, groups=2)
FAILS = {"config00": BuildFailed.exit_code}  # of group cuda0, with config02 and config04


@pytest.mark.parametrize("workers", [1, 2])  # more would compile the group twice from the start
@pytest.mark.parametrize("cache", [None, SMALL])
def test_a_compile_that_failed_is_not_repeated_by_the_configs_that_share_it(
    workers: int, cache: MachineType | None
) -> None:
    simulation = Simulation(SHARED, faults=Faults(codes=FAILS), cache=cache is not None)
    run = supervisor(simulation, max_workers=workers, cache=cache)
    report = run.execute_run()
    configs = {config.config: config for config in report.configs}
    assert [configs[f"config0{number}"].state for number in (1, 3, 5)] == [ConfigState.DONE] * 3
    assert configs["config00"].state is ConfigState.FAILED
    for name in ("config02", "config04"):
        assert configs[name].state is ConfigState.WAITING
        assert configs[name].reason == "not compiled: config00 failed in the compile that both share"
    assert {command.config for command in commands(simulation, StartBuild)}.isdisjoint({"config02", "config04"})
    assert set(run.state.errors) == {"config00"}
    assert_nothing_left(run, simulation)


def attempted(faults: Faults, **more: Any) -> set[str]:
    """Return the configs that a run of two groups has started."""
    simulation = Simulation(SHARED, faults=faults)
    run = supervisor(simulation, **more)
    run.execute_run()
    assert_nothing_left(run, simulation)
    return {command.config for command in commands(simulation, StartBuild)}


def test_the_others_are_built_where_the_fault_is_not_the_compile_s() -> None:
    every = {estimate.config for estimate in SHARED}
    assert attempted(Faults(codes=FAILS)) == every - {"config02", "config04"}
    assert attempted(Faults(codes=FAILS), keep_going=True) == every
    assert attempted(Faults(codes=FAILS, failing_step="test tensorflow")) == every
    assert attempted(Faults(codes={"config00": OutOfMemory.exit_code})) == every
    assert attempted(Faults(codes={"config02": BuildFailed.exit_code})) == every, "a warm build: the compile is done"
    assert attempted(Faults(codes=FAILS, foreign={"config00"})) == every - {"config02", "config04"}
    assert attempted(Faults(codes=FAILS, corrupt={"config00": 9})) == every, "it is not known why it failed"


def test_a_worker_that_is_lost_before_its_failure_is_collected_holds_nobody_back_for_ever() -> None:
    ends = 240 + 2 + 3 * HOUR
    every = {estimate.config for estimate in SHARED}
    started = attempted(Faults(codes=FAILS, dies={ONE: ends + 30}), max_workers=1)
    assert started == every - {"config02", "config04"}, "its config was built again, and failed again"


def test_a_scheduler_gets_all_configs_at_once_and_warm_builds_depend_on_their_cold_one() -> None:
    configs = estimates(5, warm=0.3, groups=2)
    simulation = Simulation(configs)
    run = built(simulation, max_workers=5, is_scheduled=True)
    starts = commands(simulation, StartBuild)
    assert {start.config: (start.after, start.attempt) for start in starts} == {
        "config00": ("", 1),
        "config01": ("", 1),
        "config02": ("config00", 1),
        "config03": ("config01", 1),
        "config04": ("config00", 1),
    }
    assert {config.config for config in run.state.configs.values() if config.cold} == {"config00", "config01"}


def test_a_scheduler_is_not_asked_again_to_compile_what_has_failed_in_the_compile() -> None:
    simulation = Simulation(SHARED, faults=Faults(codes=FAILS))
    run = supervisor(simulation, max_workers=6, is_scheduled=True)
    original = simulation._watched

    def watched(name: str, config: str) -> Any:
        job = run.state.inventory.latest_job("config00")
        if config not in {"config02", "config04"}:
            return original(name, config)
        if job is not None and job.exit_code is not None:  # it has ended, and is not collected yet
            return BuildFinished(worker=name, config=config, exit_code=None, reason="it was not started")
        simulation._soon(1.0, lambda: watched(name, config))
        return None

    simulation._watched = watched  # type: ignore[method-assign]
    configs = {config.config: config for config in run.execute_run().configs}
    assert Counter(command.config for command in commands(simulation, StartBuild)) == dict.fromkeys(configs, 1)
    assert configs["config02"].reason == "not compiled: config00 failed in the compile that both share"
    assert_nothing_left(run, simulation)


def test_a_build_that_waited_in_a_queue_began_when_its_provider_says() -> None:
    simulation = Simulation(estimates(1))
    run = supervisor(simulation, max_workers=1, is_scheduled=True)
    begun = simulation.clock + HOUR
    original = simulation._watched

    def watched(name: str, config: str) -> Any:
        if run.state.configs[config].started != begun:
            simulation._soon(1.0, lambda: original(name, config))
            return QueuedBuildStarted(worker=name, config=config, at=begun)
        return original(name, config)

    simulation._watched = watched  # type: ignore[method-assign]
    run.execute_run()
    job = run.state.inventory.latest_job("config00")
    assert job is not None
    assert job.started == run.state.configs["config00"].started == begun


class FaultySimulation(Simulation):
    """A provider that answers the first ``faults_left`` requests that it cannot at the moment."""

    faults_left = 0

    def _bring(self, name: str, command: ProvisionWorkers) -> None:
        if not self.faults_left:
            super()._bring(name, command)
            return
        self.faults_left -= 1
        again = ProvisionWorkers(workers=(name,), offers=command.offers)
        self._soon(1.0, CommandUndelivered(command=again, reason="(HTTP 503)", answered=True))


@pytest.mark.parametrize(("faults", "seconds"), [(1, 20), (4, 20 + 40 + 80 + 160), (9, None)])
def test_a_new_run_outlasts_a_provider_s_own_faults_asking_ever_later(faults: int, seconds: float | None) -> None:
    simulation = FaultySimulation(estimates(1))
    simulation.faults_left = faults
    run = supervisor(simulation, max_workers=1)
    if seconds is None:
        with pytest.raises(ProvisionRefused) as refused:
            run.execute_run()
        assert "status" in refused.value.hint
        assert simulation.clock - simulation.began > 600
        return
    assert all_done(run.execute_run())
    assert simulation.clock - simulation.began == pytest.approx(3 * HOUR + simulation.up + seconds, abs=300)


@pytest.mark.parametrize("source", [DEFAULT, HISTORY])
def test_a_short_cold_build_says_what_its_siblings_take_where_that_was_assumed(source: str) -> None:
    """Configs of half a minute were expected to take seven hours each to the end of their run."""
    short = estimates(6, hours=32 / 3600, warm=0.5, groups=2)
    simulation = Simulation(short)
    planned = tuple(dataclasses.replace(job, cold=7 * HOUR, warm=2 * HOUR, source=source) for job in short)
    run = Supervisor(run_config(planned, max_workers=1), executor=simulation, recorder=null_recorder())
    after: list[JobEstimate] = []
    original = simulation._collected

    def collected(name: str, config: str) -> Any:
        after.extend(run.state.queue if not after else ())
        return original(name, config)

    simulation._collected = collected  # type: ignore[method-assign]
    assert all_done(run.execute_run())
    assert after
    assert all(
        (job.cold < 60, job.warm < 60) == ((True, True) if source == DEFAULT else (False, False)) for job in after
    )


def test_a_controller_that_was_away_records_the_time_of_the_worker_s_own_clock() -> None:
    simulation = Simulation(estimates(1))
    run = supervisor(simulation, max_workers=1)
    original = simulation._ended

    def ended(name: str, worker: Any, config: str) -> Any:
        event: Any = original(name, worker, config)
        return dataclasses.replace(event, seconds=146.0)

    simulation._ended = ended  # type: ignore[method-assign]
    (config,) = run.execute_run().configs
    assert config.started is not None
    assert config.finished == config.started + 146.0


def test_a_build_that_takes_longer_than_it_may_is_stopped_and_fails_alone() -> None:
    hours = (2, 3.1, 3.1)
    limited, *rest = (
        dataclasses.replace(job, size=JobSize(time_limit=limit * HOUR))
        for job, limit in zip(estimates(3, hours=3, groups=3), hours, strict=True)
    )
    simulation = Simulation((limited, *rest))
    run = supervisor(simulation, max_workers=1)
    report = run.execute_run()
    (config,) = [config for config in report.configs if config.config == limited.config]
    assert config.state is ConfigState.FAILED
    assert config.reason == "stopped at its time limit of 2 h 00 min, which fleet-sizes.yml or the recipe sets"
    assert config.finished is not None
    assert config.started is not None
    assert config.finished - config.started == pytest.approx(2 * HOUR, abs=60)
    assert isinstance(run.state.errors[limited.config], FleetLimit)
    assert Counter(states(report).values())[ConfigState.DONE] == 2
    assert len(commands(simulation, StopBuild)) == 1
    assert_nothing_left(run, simulation)


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_build_that_a_scheduler_ends_at_its_time_limit_is_repeated_and_fails_as_such(attempts: int) -> None:
    """However long the other builds are not lost: a limit is reached by the build itself."""
    simulation = Simulation(estimates(2, hours=1, groups=2))
    run = supervisor(simulation, is_scheduled=True, is_strict=False, attempts=attempts)
    original = simulation._watched

    def watched(name: str, config: str) -> Any:
        if config != "config00":
            return original(name, config)
        return BuildFinished(worker=name, config=config, exit_code=None, reason="at its limit", overdue=True)

    simulation._watched = watched  # type: ignore[method-assign]
    run.execute_run()
    error = run.state.errors["config00"]
    assert isinstance(error, FleetLimit)
    count = "once" if attempts == 1 else "2 times"
    assert error.what == f"config00 was submitted {count}, and not built"
    assert error.why.endswith(": at its limit")
    assert sum(command.config == "config00" for command in commands(simulation, StartBuild)) == attempts


def test_a_build_that_is_repeated_is_stopped_at_its_time_limit_too() -> None:
    slow = dataclasses.replace(estimates(1, hours=3)[0], size=JobSize(time_limit=2 * HOUR))
    stop = 240 + 2 + 2 * HOUR  # the worker dies before it has stopped the build
    simulation = Simulation((slow,), faults=Faults(dies={ONE: stop + 1}))
    run = supervisor(simulation)
    (config,) = run.execute_run().configs
    assert [command.worker for command in commands(simulation, StopBuild)][-1] == TWO
    assert (config.worker, config.state) == (TWO, ConfigState.FAILED)
    assert config.started is not None
    assert config.finished is not None
    assert config.finished - config.started == pytest.approx(2 * HOUR, abs=60)
    assert_nothing_left(run, simulation)


def test_a_build_is_stopped_once_its_worker_can_be_reached_again() -> None:
    slow = dataclasses.replace(estimates(1, hours=3)[0], size=JobSize(time_limit=2 * HOUR))
    simulation = Simulation((slow,), faults=Faults(blocked=[(1.99 * HOUR, 2.2 * HOUR)]))
    run = supervisor(simulation)
    (config,) = run.execute_run().configs
    assert config.state is ConfigState.FAILED
    assert "time limit" in config.reason
    assert_nothing_left(run, simulation)


GPU = dataclasses.replace(MACHINE, type="gpu", hourly=2.0)


def of_types(*types: str) -> tuple[JobEstimate, ...]:
    jobs = estimates(len(types), hours=1, warm=0.5, groups=1)
    return tuple(dataclasses.replace(job, type=name) for job, name in zip(jobs, types, strict=True))


def types_of(run: Supervisor) -> dict[str, str]:
    return {worker.name: worker.record.type for worker in run.state.inventory}


def test_each_config_is_built_on_a_worker_of_its_machine_type() -> None:
    jobs = of_types("compute-16", "gpu", "compute-16", "gpu", "compute-16")
    simulation = Simulation(jobs)
    run = supervisor(simulation, type_workers={MACHINE: 1, GPU: 1})
    report = run.execute_run()
    assert all_done(report)
    (provision,) = commands(simulation, ProvisionWorkers)
    assert sorted(kind for kind, _, _ in provision.offers.values()) == ["compute-16", "gpu"]
    planned, types = {job.config: job.type for job in jobs}, types_of(run)
    assert {config: types[worker] for config, worker in simulation.built} == planned
    assert sum(config.cold for config in report.configs) == 2, "a compile on each type"
    gpu = next(name for name, kind in types.items() if kind == "gpu")
    assert [command.worker for command in commands(simulation, TerminateWorker)] == [gpu], "as soon as it has no work"
    assert (report.machine, report.cores) == ("1 x made-up.16 (local), 1 x made-up.16 (local)", 32)
    assert_nothing_left(run, simulation)


def test_a_lost_worker_is_replaced_by_one_of_its_type() -> None:
    run = built(
        Simulation(of_types("gpu", "compute-16", "compute-16"), faults=Faults(dies={ONE: 1000.0})),
        type_workers={MACHINE: 1, GPU: 1},
    )
    types = types_of(run)
    assert types["kiln-r1-3"] == types[ONE]


def test_a_killed_run_of_several_types_resumes_with_its_workers(tmp_path: Path) -> None:
    jobs = of_types("compute-16", "gpu", "gpu", "compute-16")
    simulation = Simulation(jobs, faults=Faults(killed=HOUR / 2))
    expected = run_config(jobs, type_workers={MACHINE: 1, GPU: 1})
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            Supervisor(expected, executor=simulation, recorder=RunRecorder(ledger, NullObserver())).execute_run()
        simulation.revive()
        (previous,) = ledger.fleet_runs()
        assert previous.machine_types == ("compute-16", "gpu")
        run = Supervisor(
            dataclasses.replace(expected, previous_run=previous),
            executor=simulation,
            recorder=RunRecorder(ledger, NullObserver()),
        )
        assert all_done(run.execute_run())
    types = types_of(run)
    assert set(types) == {ONE, TWO}
    assert {config: types[worker] for config, worker in simulation.built} == {job.config: job.type for job in jobs}


def test_a_worker_of_a_type_that_is_not_planned_any_more_builds_what_it_has_and_nothing_else(tmp_path: Path) -> None:
    """A resumed run is planned on its larger type alone: the smaller worker, still there, does not get its configs."""
    jobs = of_types("gpu", "compute-16", "gpu", "gpu", "gpu")
    simulation = Simulation(jobs, faults=Faults(killed=HOUR / 2))
    expected = run_config(jobs, type_workers={MACHINE: 1, GPU: 1})
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            Supervisor(expected, executor=simulation, recorder=RunRecorder(ledger, NullObserver())).execute_run()
        simulation.revive()
        (previous,) = ledger.fleet_runs()
        run = Supervisor(
            run_config(of_types(*["gpu"] * 5), machine_type=GPU, type_workers={GPU: 2}, previous_run=previous),
            executor=simulation,
            recorder=RunRecorder(ledger, NullObserver()),
        )
        assert all_done(run.execute_run())
    types = types_of(run)
    assert {config for config, worker in simulation.built if types[worker] == "compute-16"} <= {"config01"}
    assert_nothing_left(run, simulation)


def test_a_machine_type_that_is_refused_holds_back_only_its_own_configs() -> None:
    """The GPU's offers are refused for an hour; a fall-back takes its place later, and gets its configs."""
    other = dataclasses.replace(GPU, type="gpu-2")
    simulation = Simulation(of_types("compute-16", "gpu", "compute-16", "gpu"), faults=Faults(refused=frozenset({ONE})))
    offers = {MACHINE: (Offer(machine_type=MACHINE),), GPU: (Offer(machine_type=GPU), Offer(machine_type=other))}
    run = built(simulation, type_workers={GPU: 1, MACHINE: 1}, type_offers=offers)
    types = types_of(run)
    assert types[ONE] == "gpu", "which was refused"
    assert {config: types[worker] for config, worker in simulation.built} == {
        "config00": "compute-16",
        "config01": "gpu-2",
        "config02": "compute-16",
        "config03": "gpu-2",
    }


class Talking(Simulation):
    """A simulation whose first build prints a line each second, which its worker answers with a heartbeat."""

    def __init__(self, configs: tuple[JobEstimate, ...]) -> None:
        super().__init__(configs)
        self._last = self.clock

    def next_event(self, until: float) -> Event | None:
        if self.built == [] and ONE in self.workers and self.workers[ONE].jobs and until > self._last + 1.0:
            event = super().next_event(self._last + 1.0)
            self._last = self.clock
            line = LogLine(config="config00", step="compile", text="a line")
            return event or (Heartbeat(worker=ONE) if int(self.clock) % 2 else line)
        return super().next_event(until)


def test_output_and_heartbeats_of_builds_cost_no_decisions_and_forecasts_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3,600 lines and heartbeats each alone was once followed by a look at all workers."""
    steps, costs, advance = [], [], Supervisor._submit_due_commands

    def counted(run: Supervisor) -> None:
        steps.append(run.state.executor.now())
        advance(run)

    monkeypatch.setattr("kiln.fleet.supervisor.FORECAST", FORECAST)  # as imported, before the fixture
    monkeypatch.setattr(Supervisor, "_submit_due_commands", counted)
    monkeypatch.setattr(NullStore, "update_cost", lambda *arguments: costs.append(arguments))
    assert all_done(supervisor(Talking(FOUR[:1]), max_workers=1).execute_run())
    assert len(steps) < 200
    assert len(costs) >= 60
