from __future__ import annotations

import time

import pytest

from kiln.base.errors import MalformedYaml, RecipeFault
from kiln.base.limits.errors import SECONDS
from kiln.conda.specs import with_version_wildcard
from kiln.recipe.v0.used_keys import (
    UsedKeySearch,
    keys_in_batch_script,
    keys_in_shell_script,
    requirements_by_section,
    spec_package_name,
    specs_without_package,
    text_regions,
    with_variant_versions,
)

KEYS = (
    "python", "libfoo", "c_compiler", "c_compiler_version", "c_stdlib", "r_base", "mpi", "cdt_name",
    "CONDA_BUILD_SYSROOT",
)  # fmt: skip


@pytest.mark.parametrize(
    ("line", "used"),
    [
        ("    - python", {"python"}),
        ("    - python >=3", set()),
        ("    - r-base  # [linux]", {"r_base"}),
        ("    - libfoo-dev", set()),
        ("    - libfoo {{ libfoo }}", {"libfoo"}),
        ("    - {{ compiler('c') }}", {"c_compiler", "c_compiler_version", "CONDA_BUILD_SYSROOT"}),
        ('    - {{ stdlib("c") }}', {"c_stdlib", "CONDA_BUILD_SYSROOT"}),
        ("    - {{ compiler('cxx') }}", set()),
        ("    - {{ pin_compatible('libfoo') }}", {"libfoo"}),
        ("    - {{ cdt('x') }}", {"cdt_name"}),
        ("{% if mpi == 'x' %}", {"mpi"}),
        ("{% set x = python %}", {"python"}),
        ("{% set x = pythons %}", set()),
        ("{% for x in libfoo %}", {"libfoo"}),
        ("  skip: true  # [python]", set()),
    ],
)
def test_the_keys_that_a_line_uses(line: str, used: set[str]) -> None:
    assert UsedKeySearch(KEYS).keys_outside_selectors(f"a\n{line}\nb") == used


@pytest.mark.parametrize(
    ("line", "used"),
    [
        ("a  # [python == '3']", {"python"}),
        ("a  # [not mpi]", {"mpi"}),
        ("a  # [pythons]", set()),
        ("a  # [win and libfoo<3]", {"libfoo"}),
        ("- python", set()),
    ],
)
def test_the_keys_that_a_selector_uses(line: str, used: set[str]) -> None:
    assert UsedKeySearch(KEYS).keys_in_selectors(line) == used


def test_the_keys_that_scripts_use() -> None:
    assert keys_in_shell_script(("a", "b", "c", "d"), "echo ${a} \nfoo $b\nx $$c\ny $zz $d\n") == {"a", "b"}
    assert keys_in_batch_script(("a", "b"), "echo %a% %bb%") == {"a"}


@pytest.mark.parametrize("line", ["- " + "{" * 20_000, "{%if " * 4_000 + "%}", "{{ python" * 5_000])
def test_very_long_lines_are_refused_soon(line: str) -> None:
    begin = time.process_time()
    with pytest.raises(MalformedYaml):
        UsedKeySearch(KEYS).keys_outside_selectors(line)
    assert time.process_time() - begin < SECONDS


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("gcc 12", "gcc 12.*"), ("gcc 12.*", "gcc 12.*"), ("gcc >=12", "gcc >=12"), ("gcc 12 h1_0", "gcc 12 h1_0"),
        ("gcc", "gcc"), ("numpy x.x", "numpy x.x"), ("python 3.10.* *_cpython", "python 3.10.* *_cpython"),
    ],
)  # fmt: skip
def test_a_plain_version_may_go_on(spec: str, wanted: str) -> None:
    assert with_version_wildcard(spec) == wanted


def test_bare_names_take_the_variants_versions() -> None:
    value = {
        "build": ["make"],
        "host": ["python", "r-base", "libfoo >=1", "numpy x.x"],
        "run": ["python", "make", "r-base"],
    }
    variant = {"python": "3.10.* *_cpython", "r_base": "4.3", "numpy": "2", "make": "4"}
    assert with_variant_versions(value, variant) == {
        "build": ["make 4.*"],
        "host": ["python 3.10.* *_cpython", "r-base 4.3.*", "libfoo >=1", "numpy 2.*"],
        "run": ["python", "make", "r-base"],
    }


def test_small_readings_of_specs() -> None:
    assert spec_package_name("conda-forge::Zlib>=1") == "zlib"
    assert requirements_by_section(["a", "b"]) == {"host": ["a", "b"], "run": ["a", "b"]}
    assert specs_without_package(["a", "a 1", "ab"], "a") == ["ab"]


def test_a_section_that_packages_do_not_have_may_hold_anything() -> None:
    assert requirements_by_section({"host": "zlib", "run_exports": [{"a": "b"}]})["host"] == ["zlib"]


def test_a_mapping_is_not_a_requirement() -> None:
    with pytest.raises(RecipeFault):
        requirements_by_section({"run": [{"a": "b"}]})


REGIONS = """\
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
    text = text_regions(REGIONS)
    assert text.has_package_section
    assert text.text_before_requirements == REGIONS[: REGIONS.index("requirements:")]
    assert text.outputs_section.startswith("outputs:")
    assert text.outputs_section.endswith("[true]\n")
    assert [block.strip().splitlines()[0] for block in text.output_blocks] == ["- name: one", "- name: two"]
    assert "- name: one" not in text.text_without_outputs
    assert "about:" in text.text_without_outputs


def test_the_requirements_of_the_top_are_not_those_of_an_output() -> None:
    assert text_regions(REGIONS).requirements_section == "requirements:\n  host:\n    - python\n    - numpy x.x\n"
    block = text_regions(text_regions(REGIONS).output_blocks[0])
    assert not block.has_package_section
    assert block.requirements_section.split() == ["requirements:", "run:", "-", "{{", "pin_subpackage('two')", "}}"]


def test_pins_are_looked_for_in_the_regions_own_requirements() -> None:
    assert not text_regions(REGIONS).pins_subpackage
    assert text_regions(text_regions(REGIONS).output_blocks[0]).pins_subpackage


def test_a_hash_in_the_build_string_is_seen() -> None:
    assert text_regions(REGIONS).has_hash_in_build_string
    assert not text_regions(REGIONS.replace("string:", "strange:")).has_hash_in_build_string


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
    text = text_regions(REGIONS.replace("numpy x.x", numpy))
    assert (text.has_numpy_in_build_string, text.is_numpy_unhashed) == (in_name, hidden)
