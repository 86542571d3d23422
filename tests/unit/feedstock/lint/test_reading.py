from __future__ import annotations

import pytest

from kiln.base.errors import TemplateFault, UnsafeTemplate
from kiln.feedstock.lint.reading import RecipeYamlRenderer, render_meta_yaml

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
