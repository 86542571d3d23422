from __future__ import annotations

import pytest

from kiln.recipe.usage import region

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
    text = region(RECIPE)
    assert text.is_top
    assert text.identity == RECIPE[: RECIPE.index("requirements:")]
    assert text.outputs.startswith("outputs:")
    assert text.outputs.endswith("[true]\n")
    assert [block.strip().splitlines()[0] for block in text.blocks] == ["- name: one", "- name: two"]
    assert "- name: one" not in text.without_outputs
    assert "about:" in text.without_outputs


def test_the_requirements_of_the_top_are_not_those_of_an_output() -> None:
    assert region(RECIPE).own_requirements == "requirements:\n  host:\n    - python\n    - numpy x.x\n"
    block = region(region(RECIPE).blocks[0])
    assert not block.is_top
    assert block.own_requirements.split() == ["requirements:", "run:", "-", "{{", "pin_subpackage('two')", "}}"]


def test_pins_are_looked_for_in_the_regions_own_requirements() -> None:
    assert not region(RECIPE).pins_subpackage
    assert region(region(RECIPE).blocks[0]).pins_subpackage


def test_a_hash_in_the_build_string_is_seen() -> None:
    assert region(RECIPE).wants_hash
    assert not region(RECIPE.replace("string:", "strange:")).wants_hash


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
    text = region(RECIPE.replace("numpy x.x", numpy))
    assert (text.numpy_in_name, text.numpy_hidden) == (in_name, hidden)
