from __future__ import annotations

import time
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.base.errors import KilnError, TemplateFault, UnsafeTemplate
from kiln.base.limits.errors import SECONDS
from kiln.recipe.template.jinja import (
    COUNTED,
    StepBudget,
    StepBudgetExhausted,
    StepLimitedEnvironment,
    Template,
    UndefinedValue,
    insert_step_counting,
)
from kiln.recipe.template.names import cut_into_pieces
from kiln.recipe.template.selectors import SelectedText


def environment() -> StepLimitedEnvironment:
    return StepLimitedEnvironment(lambda name: f"included {name}")


def rendered(text: str, **context: Any) -> str:
    selected = SelectedText(text=text, numbers=tuple(range(1, text.count("\n") + 2)))
    return Template(selected, "f", environment()).render(context, lambda name: name == "maybe", context)


def test_a_template_is_filled_in() -> None:
    text = "{% set v = x|upper %}\na: {{ v }}\n{% for i in range(2) %}\n- {{ i }}{% endfor %}\nb: {{ 1 if v else 0 }}\n"
    assert rendered(text, x="q") == "\na: Q\n\n- 0\n- 1\nb: 1"


def test_undefined_names_are_false_and_empty_where_they_may_be() -> None:
    text = "{% if maybe %}a{% endif %}{{ maybe }}{{ maybe|default('d') }}{{ maybe == 'x' }}{{ 'y' in maybe }}"
    assert rendered(text) == "dFalseFalse"


def test_an_undefined_name_is_placed_and_the_nearest_suggested() -> None:
    with pytest.raises(TemplateFault) as caught:
        rendered("{% set version = 1 %}\na: 1\nb: x{{ versoin }}\n")
    assert str(caught.value.at) == "f:3:8"
    assert "'version'" in caught.value.hint


def test_an_undefined_name_may_be_asked_about() -> None:
    assert rendered("{{ 'a' if nowhere is defined else 'b' }}{% if nowhere == 'x' %}c{% endif %}") == "b"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a\n{% if %}\n", "f:2"),
        ("a\n{{ 1 + 'x' }}\n", "f:2"),
        ("a\nb {{ none.x.y() }}\n", "f:2"),
        ("{% endif %}", "f:1"),
    ],
)
def test_a_failing_template_names_its_line(text: str, place: str) -> None:
    with pytest.raises(TemplateFault) as caught:
        rendered(text)
    assert str(caught.value.at).startswith(place)


HOSTILE = [
    "{{ ''.__class__.__mro__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ namespace.__init__ }}",
    "{{ x.__globals__ }}",
    "{{ ''|attr('__class__') }}",
    "{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ " + "(" * 5_000 + ")" * 5_000 + " }}",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_templates_end_soon_in_an_error(text: str) -> None:
    begin = time.process_time()
    with pytest.raises(KilnError) as caught:
        rendered(f"a: 1\n{text}\n", x=environment)
    assert isinstance(caught.value, (UnsafeTemplate, TemplateFault))
    assert time.process_time() - begin < SECONDS


LINES = st.sampled_from(
    [
        "",
        "plain: text",
        "  - {{ a }}",
        "{% set b = a ~ 'x' %}",
        "x: {{ b|default('none') }} {# note #}",
        "{% if a == 'q' %}",
        "{% else %}",
        "{% endif %}",
        "{% for i in [1, 2] %}",
        "{% endfor %}",
        "{% set c = {",
        "  'k': {'n': 1},",
        "} %}",
        "y: {{ c.k }}",
        "{{ '}}' }}",
        "{{ {'a': 1}['a'] }}",
        "{% set d %}",
        "{% endset %}",
        "{% raw %}",
        "{% endraw %}",
        "z: {{ a -}}",
        "{{ undefined_thing is defined }}",
        "{% set a = 'new' %}",
        "",
    ]
)


def outcome(text: str, *, whole: bool) -> str:
    made = environment()
    if whole:
        try:
            return "".join(
                made.compiled_piece(text).template.root_render_func(
                    made.compiled_piece(text).template.new_context({"a": "q"})
                )
            )
        except Exception:  # noqa: BLE001 - a mistake of either kind is the same outcome here
            return "fault"
    try:
        selected = SelectedText(text=text, numbers=tuple(range(1, text.count("\n") + 2)))
        return Template(selected, "f", made).render({"a": "q"}, lambda _: True, ())
    except KilnError:
        return "fault"


@given(st.lists(LINES, max_size=12))
def test_pieces_give_what_the_whole_template_gives(lines: list[str]) -> None:
    text = "\n".join([*lines, ""])
    assert outcome(text, whole=False) == outcome(text, whole=True)


def test_pieces_are_cut_at_the_outermost_level() -> None:
    text = "a\nb\n{% if x %}\nc\n{% endif %}\n{{ y }}\nd\n"
    assert cut_into_pieces(text) == [
        (0, "a\nb", False),
        (2, "{% if x %}\nc\n{% endif %}", True),
        (5, "{{ y }}", True),
        (6, "d", False),
    ]


def test_each_iteration_of_each_loop_spends_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.recipe.template.jinja._MAX_STEPS", 12)
    budget = StepBudget()
    environment = jinja2.Environment()
    environment.filters[COUNTED] = budget.count_iterations
    tree = environment.parse("{% for i in range(3) %}{% for j in range(n) %}{{ j }}{% endfor %}{% endfor %}")
    insert_step_counting(tree)
    template = jinja2.Template.from_code(environment, environment.compile(tree), environment.globals)
    assert template.render(n=3) == "012" * 3
    budget.reset()
    with pytest.raises(StepBudgetExhausted):
        template.render(n=4)


def rendered_undefined(text: str) -> tuple[str, list[str]]:
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
    result, names = rendered_undefined(text)
    assert result == expected
    assert sorted(set(names)) == used


@pytest.mark.parametrize("text", ["{{ x.y }}", "{{ x() }}", "{{ x.y().z[0](1)[:2] }}", "{{ (x.y + 1).z }}"])
def test_whatever_is_done_with_an_undefined_name_is_undefined(text: str) -> None:
    result, names = rendered_undefined(text)
    assert (result, set(names)) == ("", {"x"})


def test_a_missing_attribute_of_a_value_is_not_an_undefined_name() -> None:
    assert rendered_undefined("{% set x = {} %}{{ x.missing }}") == ("", [])
