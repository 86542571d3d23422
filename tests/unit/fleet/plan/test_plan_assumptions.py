"""The table of assumptions is complete and plausible."""

from __future__ import annotations

import re
from pathlib import Path

from kiln.fleet.plan.plan import Assumptions

COST = Path(__file__).parents[4] / "docs" / "explanation" / "cost.md"


def test_the_table_of_assumptions_can_be_read() -> None:
    assumptions = Assumptions.read()
    assert 0.05 <= assumptions.warm <= 0.3


def test_the_plan_assumes_the_compile_of_the_page_about_costs() -> None:
    figure = re.search(r"(\d+) h on (\d+) cores, (\d+) core-hours", COST.read_text(encoding="utf-8"))
    assert figure is not None
    hours, cores, work = map(int, figure.groups())
    assumptions = Assumptions.read()
    assert (assumptions.compile, assumptions.cores) == (hours * 3600, cores)
    assert hours * cores == work
    assert assumptions.compile * assumptions.slowdown(16, assumptions.cores) > 5 * 3600, "half the cores, nearly twice"
