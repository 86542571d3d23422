"""Jinja's statements become conditions of lines, unrolled loops, and entries of context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.feedstock.convert.statements import expand_statements

if TYPE_CHECKING:
    from kiln.feedstock.convert.composition import ExpandedRecipe


def walked(text: str, *always: str) -> ExpandedRecipe:
    return expand_statements(text, frozenset(always), {key: frozenset() for key in always})


def context(text: str, *always: str) -> dict[str, str]:
    return {item.name: item.value.text for item in walked(text, *always).settings}


def lines(text: str, *always: str) -> list[tuple[str, ...]]:
    return [
        (line.text, *(guard.text for guard in line.guards)) for line in walked(text, *always).lines if line.text.strip()
    ]


@pytest.mark.parametrize(
    ("text", "keys", "expected"),
    [
        ('{% set version = "1.0" %}\n{% set n = 3 %}\nversion: {{ version }}\n', (), {"version": '"1.0"', "n": "3"}),
        (  # selectors are a choice
            '{% set a = "x" %}  # [linux]\n{% set a = "y" %}  # [win]\n{% set a = "z" %}  # [osx]\na: {{ a }}\n',
            (),
            {"a": '"z" if osx else "y" if win else "x" if linux'},
        ),
        (  # opposite ones are two cases
            '{% set a = "x" %}  # [m == "n"]\n{% set a = "y" %}  # [m != "n"]\na: {{ a }}\n',
            ("m",),
            {"a": '"x" if m == "n" else "y"'},
        ),
        (  # a name that builds on itself gets versions
            '{% set a = "x" %}\n{% set a = a + "y" %}  # [win]\n{% set a = a + "z" %}  # [osx]\na: {{ a }}\n',
            (),
            {"a_1": '"xy" if win else "x"', "a": 'a_1 + "z" if osx else a_1'},
        ),
        (  # a key of the variant keeps its value where the recipe does not set it
            '{% if level is undefined %}\n{% set level = "1" %}\n{% endif %}\na: {{ level }}\n',
            ("level",),
            {"level": '"1" if level is undefined else level'},
        ),
        (  # a condition around all uses of a name is left out
            "{% if py == 311 %}\n{% set a = 'x' %}\n{% set a = a + 'y' %}  # [win]\n- {{ a }}\n{% endif %}\n",
            ("python",),
            {"a": '"xy" if win else "x"'},
        ),
    ],
)
def test_names_that_are_set_become_entries(text: str, keys: tuple[str, ...], expected: dict[str, str]) -> None:
    assert context(text, *keys) == expected


def test_an_earlier_value_is_used_where_it_counts() -> None:
    text = '{% set a = "x" %}\na: {{ a }}\n{% set a = "y" %}\nb: {{ a }}\n'
    result = walked(text)
    assert [item.text for item in result.expressions] == ['"x"', "a"]
    assert context(text) == {"a": '"y"'}


def test_conditions_of_blocks_and_of_lines_add_up() -> None:
    text = "{% if a == 'x' %}\n- one\n{% elif b %}\n- two  # [linux]\n{% else %}\n- three\n{% endif %}\n- four\n"
    assert lines(text, "a", "b") == [
        ("- one", 'a == "x"'),
        ("- two", 'a != "x"', "b", "linux"),
        ("- three", 'a != "x"', "not b"),
        ("- four",),
    ]


def test_a_loop_is_unrolled_with_the_conditions_of_its_items() -> None:
    text = "{% set l = ['a'] %}\n{% if c == '1' %}\n{% set l = l + ['b'] %}\n{% endif %}\n"
    text += "{% for i in l %}\n- run {{ i }}\n{% endfor %}\n"
    assert lines(text, "c") == [("- run a",), ("- run b", 'c == "1"')]


def test_a_list_that_is_replaced_keeps_its_items_elsewhere() -> None:
    text = "{% if c %}\n{% set l = ['a'] %}\n{% else %}\n{% set l = ['b'] %}\n{% endif %}\n"
    text += "{% for i in l %}\n- {{ i }}\n{% endfor %}\n"
    assert lines(text, "c") == [("- b", "not c"), ("- a", "c")]


def test_a_list_times_a_condition() -> None:
    text = "{% for i in ['a'] + (c != 'x') * ['b'] %}\n- {{ i }}\n{% endfor %}\n"
    assert lines(text, "c") == [("- a",), ("- b", 'c != "x"')]


def test_several_names_at_once() -> None:
    text = "{% set version = '1.2' %}\n{% set x, y = version.split('.') %}\na: {{ x }}{{ y }}\n"
    assert context(text)["y"] == '(version | split("."))[1]'


def test_lines_keep_their_numbers() -> None:
    text = "# c\n{% set a = [\n 1,\n] %}\n\n- x\n{% for i in a %}\n- {{ i }}\n{% endfor %}\n- y\n"
    assert [(line.number, line.text) for line in walked(text).lines if line.text] == [
        (6, "- x"),
        (8, "- 1"),
        (10, "- y"),
    ]


def test_comments_are_kept_with_the_settings_below_them() -> None:
    result = walked("# one\n# two\n{% set a = 1 %}\n\n# three\nb: c  # [linux] because\n")
    assert result.above == {3: ("# one", "# two")}
    assert result.comments == {5: "# three"}
    assert result.remarks == {6: "# because"}


def test_faults_are_collected_with_their_lines() -> None:
    text = "{% macro m() %}{% endmacro %}\na: {{ b.title() }}\n{% for i in c %}\n{% endfor %}\nd: e  # [linux and]\n"
    assert [number for number, _ in walked(text).faults] == [1, 2, 3, 5]


def test_malformed_jinja_is_a_fault() -> None:
    assert walked("a: b\n{% if %}\n").faults[0][0] == 2


def test_a_loop_without_end_is_a_fault() -> None:
    nested = "".join(f"{{% for a{i} in [1,2,3,4,5,6,7,8,9,10] %}}\n" for i in range(6)) + "- x\n" + "{% endfor %}\n" * 6
    assert "lines" in walked(nested).faults[0][1]
