from __future__ import annotations

import jinja2
import pytest

from kiln.template.step_limit import COUNTED, Exhausted, StepBudget, insert_spending


def test_a_budget_ends_after_its_steps_and_can_be_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.template.step_limit._MAX_STEPS", 3)
    budget = StepBudget()
    for _ in range(3):
        budget.step()
    with pytest.raises(Exhausted, match="more than 3 loop steps and calls"):
        budget.step()
    budget.restart()
    budget.step()


def test_each_iteration_of_each_loop_spends_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.template.step_limit._MAX_STEPS", 12)
    budget = StepBudget()
    environment = jinja2.Environment()
    environment.filters[COUNTED] = budget.counted
    tree = environment.parse("{% for i in range(3) %}{% for j in range(n) %}{{ j }}{% endfor %}{% endfor %}")
    insert_spending(tree)
    template = jinja2.Template.from_code(environment, environment.compile(tree), environment.globals)
    assert template.render(n=3) == "012" * 3
    budget.restart()
    with pytest.raises(Exhausted):
        template.render(n=4)
