"""The plan's bound of the cost of lost workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiln.fleet.model import Offer
from kiln.fleet.plan import output
from tests.fleets import MACHINE, estimates

PLAN = cast("Any", SimpleNamespace(estimates=estimates(2, hours=3.0)))
WAY = cast("Any", SimpleNamespace(machine_type=MACHINE, cost=1.0, spot=True))


def test_as_many_reclaimed_spot_workers_as_lost_ones_count() -> None:
    on_demand, spot = Offer(machine_type=MACHINE), Offer(machine_type=MACHINE, spot=True)
    greatest = output.greatest_cost_of_lost_workers
    assert greatest(PLAN, [on_demand], 10, 12, startup=0.0) == pytest.approx(22 * 3 * MACHINE.hourly)
    assert greatest(PLAN, [spot], 10, 12, startup=0.0) == pytest.approx(32 * 3 * 0.3)
    assert greatest(PLAN, iter([spot, on_demand]), 10, 12, startup=0.0) == pytest.approx(32 * 3 * 0.8)


def test_the_plan_says_that_the_replacements_of_reclaimed_workers_have_a_limit() -> None:
    spot = Offer(machine_type=MACHINE, spot=True)
    of_run = output.RunTerms(
        offers=(spot,), attempts=10, replacements=10, joint_replacements=12, losses=18.0, lifetime=86400.0
    )
    (losses, _) = output.run_terms_lines(of_run, WAY)
    assert losses == (
        "losses  10 lost workers are replaced, as many spot workers that are taken back after a notice, and 12 that are"
        " lost together, which costs 18.00 EUR more at most (--replacements, --cost-limit)"
    )
