"""The parts of the sandbox: names without a value, and the bound on a template's steps."""

from __future__ import annotations

import jinja2
import pytest

from kiln.template.sandbox import COUNTED, Budget, Exhausted, UndefinedValue, Uses, spend


def rendered(text: str) -> tuple[str, list[str]]:
    """Render a template; return its text and the undefined names that it used."""
    uses = Uses()
    environment = jinja2.Environment(undefined=type("Recorded", (UndefinedValue,), {"uses": uses}))
    return environment.from_string(text).render(), uses.names


@pytest.mark.parametrize(
    ("text", "expected", "used"),
    [
        ("a{{ x }}b", "ab", ["x"]),
        ("{{ x + 1 }}{{ 1 + x }}{{ x * 2 }}{{ x - 1 }}{{ x / 2 }}", "", ["x"]),
        ("{{ x[0] }}", "", ["x"]),
        ("{% if x %}a{% else %}b{% endif %}", "b", []),
        ("{% if x is defined %}a{% endif %}{{ x | default('d') }}", "d", []),
        ("{{ 'a' if x == y else 'b' }}", "a", []),
        ("{{ 'a' if x < 1 else 'b' }}", "b", []),
        ("{% for i in x %}a{% endfor %}", "", []),
        ("{{ x | int }}{{ x | float }}", "00.0", ["x"]),
    ],
)
def test_an_undefined_name_is_empty_and_recorded_when_it_is_used(text: str, expected: str, used: list[str]) -> None:
    result, names = rendered(text)
    assert result == expected
    assert sorted(set(names)) == used


@pytest.mark.parametrize("text", ["{{ x.y }}", "{{ x() }}"])
def test_an_undefined_name_has_no_attributes_and_cannot_be_called(text: str) -> None:
    with pytest.raises(jinja2.UndefinedError, match="'x' is undefined"):
        rendered(text)


def test_a_missing_attribute_of_a_value_is_not_an_undefined_name() -> None:
    assert rendered("{% set x = {} %}{{ x.missing }}") == ("", [])


def test_a_budget_ends_after_its_steps_and_can_be_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.template.sandbox._MAX_STEPS", 3)
    budget = Budget()
    for _ in range(3):
        budget.step()
    with pytest.raises(Exhausted, match="more than 3 loop steps and calls"):
        budget.step()
    budget.restart()
    budget.step()


def test_each_iteration_of_each_loop_spends_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.template.sandbox._MAX_STEPS", 12)
    budget = Budget()
    environment = jinja2.Environment()
    environment.filters[COUNTED] = budget.counted
    tree = environment.parse("{% for i in range(3) %}{% for j in range(n) %}{{ j }}{% endfor %}{% endfor %}")
    spend(tree)
    template = jinja2.Template.from_code(environment, environment.compile(tree), environment.globals)
    assert template.render(n=3) == "012" * 3
    budget.restart()
    with pytest.raises(Exhausted):
        template.render(n=4)
