"""Offers are asked for in the user's order, and refused ones again after longer and longer waits."""

from __future__ import annotations

import dataclasses

import pytest

from kiln.fleet.worker_policies import BACKOFF, ON_DEMAND, OffersWithRefusals, offers_in_request_order
from tests.fleets import MACHINE

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
