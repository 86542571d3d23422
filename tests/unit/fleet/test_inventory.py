"""The cost of a run, so far and in the end."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import FleetLimit
from kiln.fleet.inventory import recorded_run_cost, workers_cost
from kiln.fleet.model import FleetRun, JobRecord, JobState, WorkerRecord, WorkerState
from kiln.fleet.plan import output
from kiln.fleet.plan.plan import FleetLimits, plan_fleet, schedule_builds
from kiln.fleet.records import RunRecorder
from kiln.fleet.supervisor import Supervisor
from kiln.state.results import ControllerCharge, RunCost
from tests.fleets import (
    HOUR,
    MACHINE,
    Faults,
    NullObserver,
    NullStore,
    Simulation,
    assumed_overheads,
    estimates,
    run_config,
)

if TYPE_CHECKING:
    from kiln.state.results import JobEstimate

OVERHEADS = assumed_overheads(startup=240.0, collect=60.0, teardown=30.0, packages=2.0)
PRICED = dataclasses.replace(MACHINE, disk_hourly=0.02, address_hourly=0.005, egress=0.09)


class Recorder(NullObserver):
    """Records the forecasts of a run."""

    def __init__(self) -> None:
        self.costs: list[RunCost] = []

    def run_cost_changed(self, cost: RunCost) -> None:
        self.costs.append(cost)


def executed(configs: tuple[JobEstimate, ...], store: Any = None, **more: Any) -> tuple[Recorder, Supervisor]:
    faults = more.pop("faults", None)
    has_cache = more.get("cache") is not None
    simulation = Simulation(configs, faults=faults, up=240.0, home=60.0, down=30.0, cache=has_cache)
    fields = {"machine_type": PRICED, "max_workers": 3, "startup": 240.0, "teardown": 30.0, "packages": 2.0, **more}
    observer = Recorder()
    supervisor = Supervisor(
        run_config(configs, **fields), executor=simulation, recorder=RunRecorder(store or NullStore(), observer)
    )
    supervisor.execute_run()
    return observer, supervisor


@pytest.mark.parametrize(("count", "warm", "groups"), [(15, 1.0, 15), (15, 0.2, 3), (4, 0.2, 1)])
def test_the_first_forecast_is_the_plan_and_the_last_is_what_was_paid(count: int, warm: float, groups: int) -> None:
    configs = estimates(count, hours=3, warm=warm, groups=groups)
    selection = plan_fleet(
        {PRICED: configs}, assumptions=OVERHEADS, bounds=FleetLimits(workers=3), optimize="time"
    ).selection
    observer, supervisor = executed(configs, max_workers=selection.worker_count)
    first, last = observer.costs[0], observer.costs[-1]
    assert first.spent == pytest.approx(0.0)
    assert first.expected == pytest.approx(selection.cost, rel=0.02)
    assert first.end - supervisor.state.started == pytest.approx(selection.seconds, rel=0.02)
    assert first.config_ends.keys() == {config.config for config in configs}
    starts = {place.config: place.start for place in selection.placements}
    planned = {config: start - supervisor.state.started for config, start in first.config_starts.items()}
    assert planned == pytest.approx(starts, rel=0.02)
    # The simulated packages are empty, so that their traffic costs nothing.
    assert last.spent == last.expected == pytest.approx(first.expected - count * 2 * 0.09, rel=0.02)
    assert (last.currency, last.config_ends) == ("EUR", {})
    assert [cost.spent for cost in observer.costs] == sorted(cost.spent for cost in observer.costs)


def test_a_worker_that_is_requested_later_is_charged_from_then_on() -> None:
    configs = estimates(8, hours=3, warm=0.2, groups=1)
    way = schedule_builds(configs, types=[PRICED] * 4, assumptions=OVERHEADS, cache=PRICED)
    observer, _ = executed(configs, max_workers=4, cache=PRICED)
    assert observer.costs[0].expected == pytest.approx(way.cost, rel=0.02)
    assert observer.costs[-1].spent == pytest.approx(way.cost - 8 * 2 * 0.09, rel=0.02)


def test_a_scheduler_s_warm_builds_are_expected_after_their_cold_one() -> None:
    configs = estimates(4, hours=3, warm=0.2, groups=2)
    observer, supervisor = executed(configs, max_workers=4, is_scheduled=True)
    ends = {config: end - supervisor.state.started for config, end in observer.costs[0].config_ends.items()}
    cold, warm = 240.0 + 3 * HOUR + 60.0, 240.0 + 3.6 * HOUR + 60.0
    starts = {config: start - supervisor.state.started for config, start in observer.costs[0].config_starts.items()}
    begin = dict.fromkeys(("config00", "config01"), 240.0) | dict.fromkeys(("config02", "config03"), cold - 60.0)
    assert starts == pytest.approx(begin, rel=0.001)
    expected = {"config00": cold, "config01": cold, "config02": warm, "config03": warm}
    assert ends == pytest.approx(expected, rel=0.001)


def test_the_forecast_of_a_run_with_a_lost_worker_is_right_again_after_the_loss() -> None:
    configs = estimates(6, hours=3, groups=6)
    observer, _ = executed(configs, faults=Faults(dies={"kiln-r1-1": 2 * HOUR}))
    first, last = observer.costs[0], observer.costs[-1]
    middle = observer.costs[len(observer.costs) // 2]
    traffic = len(middle.config_ends) * 2 * 0.09
    assert last.spent > 1.05 * (first.expected - 6 * 2 * 0.09)
    assert middle.expected - traffic == pytest.approx(last.spent, rel=0.03)


def test_a_forecast_changes_nothing_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = estimates(15, hours=3, warm=0.2)
    forecasts, reports = [], []
    for period in (60.0, 1e9):
        monkeypatch.setattr("kiln.fleet.supervisor.FORECAST", period)
        observer, supervisor = executed(configs)
        forecasts.append(len(observer.costs))
        reports.append([(job.config, job.worker, job.started) for job in supervisor.state.inventory.latest_jobs()])
    assert forecasts[0] > forecasts[1]
    assert reports[0] == reports[1]


WORKER = WorkerRecord(
    name="w", type="t", state=WorkerState.READY, requested=0.0, hourly=0.72, egress=0.09, billed=3600.0, currency="USD"
)
JOB = JobRecord(config="a", worker="w", attempt=1, state=JobState.COLLECTED, started=0.0, traffic=2 * 10**9)


def test_a_worker_costs_its_begun_steps_and_what_was_fetched_from_it() -> None:
    assert workers_cost([WORKER], [], 1.0) == pytest.approx(0.72)
    assert workers_cost([WORKER], [JOB], 3601.0) == pytest.approx(2 * 0.72 + 0.18)
    ended = dataclasses.replace(WORKER, terminated=10.0)
    assert workers_cost([ended], [], 99_999.0) == pytest.approx(0.72)
    refused = dataclasses.replace(WORKER, state=WorkerState.REFUSED)
    assert workers_cost([refused], [JOB], 3601.0) == 0.0


def test_the_cost_of_a_run_without_its_controller_goes_on() -> None:
    forecast = RunCost(spent=0.1, expected=9.0, currency="USD", end=100.0, config_ends={"a": 100.0})
    run = FleetRun(
        id="r",
        provider="aws",
        type="t",
        started=0.0,
        finished=None,
        number=1,
        lives=True,
        workers=(WORKER,),
        jobs=(JOB,),
    )
    living = recorded_run_cost(run, forecast, now=3601.0)
    assert living is not None
    assert living.spent == pytest.approx(2 * 0.72 + 0.18)
    assert (living.expected, living.end) == (9.0, 100.0)
    gone = recorded_run_cost(dataclasses.replace(run, lives=False), forecast, now=3601.0)
    assert gone is not None
    assert gone.expected == gone.spent == pytest.approx(2 * 0.72 + 0.18)
    assert recorded_run_cost(dataclasses.replace(run, workers=()), None, now=1.0) is None


def test_a_run_without_a_forecast_has_the_cost_of_its_workers() -> None:
    live = FleetRun(
        id="r", provider="aws", type="t", started=0.0, finished=None, number=0, lives=True, workers=(WORKER,)
    )
    cost = recorded_run_cost(live, None, now=3601.0)
    assert cost is not None
    assert (cost.spent, cost.expected, cost.currency) == pytest.approx((2 * 0.72, 2 * 0.72, "USD"))
    text = output.status_as_text([live], {"r": cost})
    assert "r: aws, t, tests, running\ncost 1.44 USD so far\n" in text, "no invented end"
    ended = dataclasses.replace(live, finished=10.0, lives=False)
    cost = recorded_run_cost(ended, None, now=9e9)
    assert cost is not None
    assert "cost 0.72 USD\n" in output.status_as_text([ended], {"r": cost})
    assert output.status_as_json([ended], {"r": cost})[0]["cost"]["spent"] == pytest.approx(0.72)
    unpriced = dataclasses.replace(ended, workers=(dataclasses.replace(WORKER, currency="", hourly=0.0),))
    cost = recorded_run_cost(unpriced, None, now=9e9)
    assert cost is not None
    assert "cost price unknown" in output.status_as_text([unpriced], {"r": cost})


def test_the_controller_of_a_detached_run_is_part_of_its_cost() -> None:
    charge = ControllerCharge(hourly=0.5, billed=3600.0, since=1_790_000_000.0 - 600, currency="EUR", name="small")
    configs = estimates(2, hours=3, groups=2)
    alone, _ = executed(configs)
    detached, supervisor = executed(configs, own_charge=charge)
    assert detached.costs[0].spent - alone.costs[0].spent == pytest.approx(0.5), "from its provisioning on"
    assert detached.costs[0].expected - alone.costs[0].expected == pytest.approx(4 * 0.5), "to the end of the run"
    assert detached.costs[-1].expected - alone.costs[-1].expected == pytest.approx(4 * 0.5)
    end = supervisor.state.executor.now()
    run = FleetRun(
        id="r1", provider="aws", type="t", started=0.0, finished=end, number=1, lives=False, workers=(WORKER,)
    )
    cost = recorded_run_cost(run, detached.costs[-1], end + 9e9)
    assert cost is not None
    assert cost.spent - workers_cost(run.workers, (), end) == pytest.approx(4 * 0.5)
    assert "with 0.500 EUR an hour for the controller, a small, until" in output.status_as_text([run], {"r1": cost})


def test_a_cost_limit_pays_for_the_controller() -> None:
    charge = ControllerCharge(hourly=0.5, billed=1.0, since=1_790_000_000.0, currency="EUR", name="small")
    configs = estimates(1, hours=3, groups=1)
    alone, _ = executed(configs)
    with pytest.raises(FleetLimit):
        executed(configs, own_charge=charge, cost_limit=alone.costs[-1].spent + 0.1)
