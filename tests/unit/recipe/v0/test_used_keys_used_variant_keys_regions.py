from __future__ import annotations

import pytest

from kiln.recipe.v0.used_keys import text_regions

RECIPE = """\
package:
  name: a
build:
  number: 0
  string: h{{ PKG_HASH }}_0
requirements:
  host:
    - python
    - numpy x.x
outputs:
  - name: one
    requirements:
      run:
        - {{ pin_subpackage('two') }}
  - name: two
    test:
      commands: [true]
about:
  home: x
"""


def test_a_recipe_is_divided_into_its_top_and_its_outputs() -> None:
    text = text_regions(RECIPE)
    assert text.has_package_section
    assert text.text_before_requirements == RECIPE[: RECIPE.index("requirements:")]
    assert text.outputs_section.startswith("outputs:")
    assert text.outputs_section.endswith("[true]\n")
    assert [block.strip().splitlines()[0] for block in text.output_blocks] == ["- name: one", "- name: two"]
    assert "- name: one" not in text.text_without_outputs
    assert "about:" in text.text_without_outputs


def test_the_requirements_of_the_top_are_not_those_of_an_output() -> None:
    assert text_regions(RECIPE).requirements_section == "requirements:\n  host:\n    - python\n    - numpy x.x\n"
    block = text_regions(text_regions(RECIPE).output_blocks[0])
    assert not block.has_package_section
    assert block.requirements_section.split() == ["requirements:", "run:", "-", "{{", "pin_subpackage('two')", "}}"]


def test_pins_are_looked_for_in_the_regions_own_requirements() -> None:
    assert not text_regions(RECIPE).pins_subpackage
    assert text_regions(text_regions(RECIPE).output_blocks[0]).pins_subpackage


def test_a_hash_in_the_build_string_is_seen() -> None:
    assert text_regions(RECIPE).has_hash_in_build_string
    assert not text_regions(RECIPE.replace("string:", "strange:")).has_hash_in_build_string


@pytest.mark.parametrize(
    ("numpy", "in_name", "hidden"),
    [
        ("numpy x.x", True, True),
        ("{{ pin_compatible('numpy', max_pin='x.x') }}", True, True),
        ("{{ pin_subpackage('numpy', max_pin='x.x') }}", False, True),
        ("{{ pin_compatible('numpy', min_pin='x.x') }}", False, False),
        ("numpy", False, False),
    ],
)
def test_numpys_place_is_the_build_string_the_hash_or_neither(numpy: str, in_name: bool, hidden: bool) -> None:
    text = text_regions(RECIPE.replace("numpy x.x", numpy))
    assert (text.has_numpy_in_build_string, text.is_numpy_unhashed) == (in_name, hidden)
