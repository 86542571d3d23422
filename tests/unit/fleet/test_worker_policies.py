"""Offers in the user's order, refusals that are waited out, and limits of lost workers."""

from __future__ import annotations

import dataclasses

import pytest

from kiln.base.errors import WorkersLost
from kiln.fleet.protocol import ProvisionWorkers
from kiln.fleet.supervisor import Supervisor
from kiln.fleet.worker_policies import (
    BACKOFF,
    ON_DEMAND,
    OUTAGES,
    LostWorkerLimits,
    OffersWithRefusals,
    joint_loss_limit,
    offers_in_request_order,
)
from kiln.state.results import ConfigState
from tests.fleets import HOUR, MACHINE, Faults, Simulation, estimates, null_recorder, run_config

OTHER = dataclasses.replace(MACHINE, type="other", name="made-up.other", hourly=1.0)


@pytest.mark.parametrize(
    ("fallbacks", "zones", "spot", "expected"),
    [
        ([], [], False, [(MACHINE, False, "")]),
        ([], ["a", "b"], True, [(MACHINE, True, "a"), (MACHINE, True, "b")]),
        ([OTHER], ["a", "b"], False, [(kind, False, zone) for kind in (MACHINE, OTHER) for zone in "ab"]),
        ([ON_DEMAND], [], True, [(MACHINE, True, ""), (MACHINE, False, "")]),
        (
            [OTHER, ON_DEMAND],
            [],
            True,
            [(MACHINE, True, ""), (OTHER, True, ""), (MACHINE, False, ""), (OTHER, False, "")],
        ),
        ([ON_DEMAND, OTHER], [], True, [(MACHINE, True, ""), (MACHINE, False, ""), (OTHER, False, "")]),
    ],
)
def test_offers_are_in_the_order_of_the_user_each_in_all_zones(
    fallbacks: list[object], zones: list[str], spot: bool, expected: list[tuple[object, bool, str]]
) -> None:
    result = offers_in_request_order(MACHINE, fallbacks, zones=zones, spot=spot)  # type: ignore[arg-type]
    assert [(offer.machine_type, offer.spot, offer.zone) for offer in result] == expected


def test_a_refused_offer_is_asked_for_again_after_the_others() -> None:
    first, second = offers_in_request_order(MACHINE, [OTHER])
    offers = OffersWithRefusals((first, second))
    offers.record_refusal(first.key, 0.0)
    offers.record_refusal(first.key, 1.0)  # another worker of the same request
    assert (offers.first_available_offer(1.0), offers.first_available_offer(BACKOFF[0])) == (second, second)
    assert offers.has_untried_offer(BACKOFF[0], (first, second))
    assert not offers.has_untried_offer(BACKOFF[0], (first,))
    offers.record_acceptance(second.key)
    assert (offers.first_available_offer(1.0), offers.first_available_offer(BACKOFF[0])) == (second, first)
    offers.record_refusal(second.key, 10.0)
    assert (offers.first_available_offer(11.0), offers.next_available_time()) == (None, BACKOFF[0])
    offers.record_refusal(first.key, BACKOFF[0])
    assert (offers.first_available_offer(BACKOFF[0]), offers.next_available_time()) == (None, 10.0 + BACKOFF[0])


def test_waits_grow_up_to_a_quarter_of_an_hour_and_begin_anew_after_a_success() -> None:
    (offer,) = offers_in_request_order(MACHINE, [])
    offers, now, waits = OffersWithRefusals((offer,)), 0.0, []
    for _ in range(7):
        offers.record_refusal(offer.key, now)
        waits.append(offers.next_available_time() - now)
        now = offers.next_available_time()
    assert waits == [60.0, 120.0, 240.0, 480.0, 900.0, 900.0, 900.0]
    offers.record_acceptance(offer.key)
    offers.record_refusal(offer.key, now)
    assert offers.next_available_time() == now + 60.0


EIGHT = estimates(8, hours=3, groups=8)


def test_an_outage_in_which_nothing_was_finished_since_the_last_one_delays_the_next_workers() -> None:
    count = LostWorkerLimits(run_config(EIGHT, max_workers=4))
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
    run = Supervisor(run_config(EIGHT, max_workers=4, is_strict=False), executor=simulation, recorder=null_recorder())
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
    run = Supervisor(run_config(EIGHT, max_workers=4, is_strict=False), executor=simulation, recorder=null_recorder())
    report = run.execute_run()
    assert {config.state for config in report.configs} == {ConfigState.DONE}
    assert (run.workers.losses.joint, run.workers.losses.outages, run.workers.losses.wait_until) == (4, 1, 0.0)


def test_fewer_workers_than_the_limit_allows_are_replaced_as_before() -> None:
    assert joint_loss_limit(47, 15) == 47
    assert joint_loss_limit(0, 4) == 12
