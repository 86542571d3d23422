"""Lost workers are replaced a limited number of times, also those that are lost together again and again."""

from __future__ import annotations

from typing import Any

import pytest

from kiln.base.errors import WorkersLost
from kiln.fleet.protocol import ProvisionWorkers
from kiln.fleet.run_config import FleetRunConfig
from kiln.fleet.supervisor import Supervisor
from kiln.fleet.worker_policies import OUTAGES, LostWorkerLimits, joint_loss_limit
from kiln.state.results import ConfigState
from tests.fleets import HOUR, MACHINE, Faults, Simulation, estimates, null_recorder

EIGHT = estimates(8, hours=3, groups=8)


def run_config(**more: Any) -> FleetRunConfig:
    settings = {"id": "r1", "command": "", "machine_type": MACHINE, "estimates": EIGHT, "max_workers": 4, **more}
    return FleetRunConfig(**settings)


def test_an_outage_in_which_nothing_was_finished_since_the_last_one_delays_the_next_workers() -> None:
    count = LostWorkerLimits(run_config())
    for number in range(4):
        count.count_lost_worker(1000.0 + 60 * number, together=True)
    assert (count.single, count.joint, count.outages, count.wait_until) == (0, 4, 1, 0.0)
    count.count_lost_worker(2000.0, together=True)
    assert (count.outages, count.wait_until) == (2, 2240.0)
    count.reset_outages()
    count.count_lost_worker(9000.0, together=True)
    assert (count.outages, count.wait_until) == (3, 2240.0)
    count.count_lost_worker(9900.0, together=False)
    assert (count.single, count.outages) == (1, 3)


@pytest.mark.parametrize("life", [600.0, 1800.0, 2.5 * HOUR])
def test_a_flaw_that_kills_all_workers_ends_the_run_and_costs_no_more_than_the_limit(life: float) -> None:
    simulation = Simulation(EIGHT, faults=Faults(life=life), home=60.0)
    run = Supervisor(run_config(is_strict=False), executor=simulation, recorder=null_recorder())
    with pytest.raises(WorkersLost, match="16 workers were lost together, in 4 outages") as lost:
        run.execute_run()
    assert "a flawed image" in lost.value.why
    assert not simulation.workers
    assert len(simulation.paid) == joint_loss_limit(3, 4) + 4
    requests = [command for command in simulation.commands if isinstance(command, ProvisionWorkers)]
    assert [len(request.workers) for request in requests] == [4] * (OUTAGES + 1)


def test_outages_between_which_configs_are_finished_are_survived_without_delay() -> None:
    """Every worker lives for one build and a half."""
    simulation = Simulation(EIGHT, faults=Faults(life=4.5 * HOUR))
    run = Supervisor(run_config(is_strict=False), executor=simulation, recorder=null_recorder())
    report = run.execute_run()
    assert {config.state for config in report.configs} == {ConfigState.DONE}
    assert (run.workers.losses.joint, run.workers.losses.outages, run.workers.losses.wait_until) == (4, 1, 0.0)


def test_fewer_workers_than_the_limit_allows_are_replaced_as_before() -> None:
    assert joint_loss_limit(47, 15) == 47
    assert joint_loss_limit(0, 4) == 12
