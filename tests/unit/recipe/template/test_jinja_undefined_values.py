"""Names without a value in templates."""

from __future__ import annotations

import jinja2
import pytest

from kiln.recipe.template.jinja import UndefinedValue


def rendered(text: str) -> tuple[str, list[str]]:
    """Render a template; return its text and the undefined names that it used."""
    uses: list[str] = []
    environment = jinja2.Environment(undefined=type("Recorded", (UndefinedValue,), {"uses": uses}))
    return environment.from_string(text).render(), uses


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


@pytest.mark.parametrize("text", ["{{ x.y }}", "{{ x() }}", "{{ x.y().z[0](1)[:2] }}", "{{ (x.y + 1).z }}"])
def test_whatever_is_done_with_an_undefined_name_is_undefined(text: str) -> None:
    result, names = rendered(text)
    assert (result, set(names)) == ("", {"x"})


def test_a_missing_attribute_of_a_value_is_not_an_undefined_name() -> None:
    assert rendered("{% set x = {} %}{{ x.missing }}") == ("", [])
