from __future__ import annotations

import pytest

from kiln.base.errors import MalformedYaml, TemplateFault, UnsafeTemplate
from kiln.base.yaml import PlacedText
from kiln.feedstock.lint.reading import (
    RecipeYamlRenderer,
    branch_items,
    branch_texts,
    read_values,
    render_meta_yaml,
    repeated_keys,
)

TEXTS = [
    ("{{ unknown }}", "unknown"),
    ("{{ unknown.part }} {{ unknown['key'] }}", 'unknown.part unknown["key"]'),
    (
        "{{ compiler('c') }} {{ stdlib('c') }} {{ cdt('mesa-libgl') }}",
        "c_compiler_stub c_stdlib_stub mesa_libgl_cdt_stub",
    ),
    (
        "{{ pin_subpackage('a', exact=True) }}|{{ pin_compatible('b', max_pin='x') }}",
        "subpackage_pin a|compatible_pin b",
    ),
    ("{{ environ.get('X', '') }}{{ os.environ['HOME'] }}", ""),
    ("{{ load_setup_py_data().get('version') }}", "None"),
    ("{% set python_min = '3.12' %}\n{{ python_min }}", "\n9999"),
    ("{% if cuda_compiler_version != 'None' %}a{% endif %}", "a"),
    ("{% if cuda_compiler_version.startswith('12') %}a{% endif %}{{ x.lower() }}", "ax.lower()"),
    ("{% for dep in deps.split(',') %}{% endfor %}{{ deps.split(',')[0] }}", "d"),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_what_has_no_value_without_a_variant_is_its_own_name(text: str, expected: str) -> None:
    assert render_meta_yaml(text, "recipe/meta.yaml").text == f"{expected}\n"


def test_lines_keep_their_numbers_in_the_file() -> None:
    rendered = render_meta_yaml("a\n{% for x in [1, 2] %}\n- {{ x }}\n{% endfor %}\nb", "recipe/meta.yaml")
    lines = rendered.text.split("\n")
    assert rendered.line_in_file(lines.index("a") + 1) == 1
    assert rendered.line_in_file(lines.index("b") + 1) == 5


def test_no_file_of_the_machine_is_read() -> None:
    with pytest.raises(TemplateFault):
        render_meta_yaml("{% include '/etc/passwd' %}", "recipe/meta.yaml")


def test_the_sandbox_holds() -> None:
    with pytest.raises(UnsafeTemplate):
        render_meta_yaml("{{ ''.__class__.__mro__ }}", "recipe/meta.yaml")
    with pytest.raises(UnsafeTemplate):
        render_meta_yaml(
            "{% for x in range(99999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}", "recipe/meta.yaml"
        )


def test_expressions_of_recipe_yaml_use_the_context_and_stay_where_they_cannot() -> None:
    renderer = RecipeYamlRenderer({"name": "small", "full": "${{ name }}-full", "number": 3}, "recipe/recipe.yaml")
    assert renderer.render_value({"a": ["${{ full | upper }}", "${{ other }}", "${{ number + 1 }}"]}) == {
        "a": ["SMALL-FULL", "${{ other }}", "4"]
    }
    assert renderer.render_text("${{ pin_subpackage(name) }}") == "subpackage_pin small"
    assert renderer.render_text("${{ broken") == "${{ broken"
    assert renderer.render_text("${{ ''.__class__ }}") == "${{ ''.__class__ }}"


VALUES = [
    ("1", 1), ("-3", -3), ("0x10", 16), ("0o17", 15), ("010", 10), ("1_000", 1000), ("1.10", 1.1), ("1e3", 1000.0),
    (".5", 0.5), ("1.2.3", "1.2.3"), ("true", True), ("yes", "yes"), ("on", "on"), ("~", None), ("", None),
    ("null", None), ("'1.10'", "1.10"), ("2024-01-01", "2024-01-01"), ("1" * 200, "1" * 200),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_scalars_have_the_types_of_yaml_1_2(text: str, value: object) -> None:
    answer = read_values(f"a: {text}", "f")["a"]
    assert answer == value
    assert type(answer) is type(value) or (isinstance(answer, PlacedText) and isinstance(value, str))


def test_the_first_of_repeated_keys_counts_and_repetitions_are_reported() -> None:
    text = "a: 1\nb:\n  c: 2\n  c: 3\na: 4\n"
    assert read_values(text, "f") == {"a": 1, "b": {"c": 2}}
    assert [(key, key.line) for key in repeated_keys(text, "f")] == [("c", 4), ("a", 5)]


def test_merged_keys_do_not_replace_own_ones() -> None:
    assert read_values("x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\n", "f")["y"] == {"a": 1, "b": 3}


def test_malformed_yaml_has_its_place() -> None:
    with pytest.raises(MalformedYaml) as caught:
        read_values("a: [1\nb: 2", "f.yaml")
    assert str(caught.value).startswith("f.yaml:")


def test_branches_of_conditions_are_flat() -> None:
    value = read_values("a:\n- x\n- if: b\n  then: y\n  else:\n  - if: c\n    then: [z, w]\n", "f")["a"]
    assert list(branch_items(value)) == ["x", "y", "z", "w"]
    assert branch_texts("x") == ["x"]
    assert branch_texts(None) == []
