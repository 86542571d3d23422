"""The table of assumptions is complete and plausible."""

from __future__ import annotations

from kiln.fleet.assumptions import Assumptions


def test_the_table_of_assumptions_can_be_read() -> None:
    assumptions = Assumptions.read()
    assert 0.05 <= assumptions.warm <= 0.3
    assert assumptions.overheads.startup == assumptions.startup
    assert assumptions.overheads.collect == assumptions.collect
    assert assumptions.overheads.teardown == assumptions.teardown
