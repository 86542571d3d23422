"""A feedstock whose recipe is recipe.yaml expands as conda-smithy expands it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import RecipeFault, SelectorFault, VariantFault
from kiln.feedstock import config_file, matrix, pinning, rerender
from tests import builders
from tests.builders import LINUX_ONLY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock

RECIPE = """
package:
  name: p
  version: "1"
build:
  skip: match(python, "<3.10")
requirements:
  build:
    - ${{ compiler("c") }}
  host:
    - python
    - ${{ mpi }}
  run:
    - if: with_gui
      then: qt
"""
PYTHONS = "python:\n  - 3.9.* *_cpython\n  - 3.10.* *_cpython\n  - 3.11.* *_cpython\n"


def feedstock(
    folder: Path,
    recipe: str,
    variants: str = "",
    old: str = "",
    forge: str = LINUX_ONLY,
    more: Mapping[str, str] | None = None,
) -> Feedstock:
    files = {**({"recipe/variants.yaml": variants} if variants else {}), **(more or {})}
    return builders.feedstock(folder, recipe, old, forge, files, v1=True)


def texts(found: Feedstock) -> dict[str, str]:
    return {config.name: config_file.config_file_text(config) for config in matrix.configs(found)}


def test_the_keys_that_the_packages_read_make_the_configs(tmp_path: Path) -> None:
    variants = PYTHONS + "mpi: [openmpi, mpich]\nwith_gui: ['yes']\nunused: [1, 2]\n"
    found = texts(feedstock(tmp_path, RECIPE, variants))
    assert found.keys() == {
        f"linux_64_mpi{mpi}python3.{minor}.____cpython" for mpi in ("mpich", "openmpi") for minor in (10, 11)
    }
    assert found["linux_64_mpimpichpython3.10.____cpython"] == (
        "c_compiler:\n- gcc\ndocker_image:\n- quay.io/condaforge/linux-anvil-comp7\nmpi:\n- mpich\n"
        "pin_run_as_build:\n  python:\n    min_pin: x.x\n    max_pin: x.x\n"
        "python:\n- 3.10.* *_cpython\ntarget_platform:\n- linux-64\nwith_gui:\n- 'yes'\n"
    )


def test_numbers_and_truth_values_of_variants_yaml_keep_their_kind(tmp_path: Path) -> None:
    recipe = 'package:\n  name: p\n  version: "1"\nbuild:\n  number: ${{ number if flag else 0 }}\n'
    found = texts(feedstock(tmp_path, recipe, "flag: [true, false]\nnumber: [9, 10]\n"))
    assert found.keys() == {"linux_64_flagFalse", "linux_64_flagTrue"}
    assert "flag:\n- true\n" in found["linux_64_flagTrue"]
    assert "flag:\n- false\n" in found["linux_64_flagFalse"]
    assert all("number:\n- 9\n- 10\n" in text for text in found.values())


def test_a_number_of_conda_build_config_yaml_is_text(tmp_path: Path) -> None:
    recipe = 'package:\n  name: p\n  version: "${{ number }}"\n'
    (text,) = texts(feedstock(tmp_path, recipe, old="number:\n  - 9  # [linux]\n  - 8  # [win]\n")).values()
    assert "number:\n- '9'\n" in text


def test_variants_yaml_comes_after_conda_build_config_yaml(tmp_path: Path) -> None:
    recipe = 'package:\n  name: p\n  version: "${{ a }}${{ b }}"\n'
    (text,) = texts(feedstock(tmp_path, recipe, "a: ['2']\n", old="a:\n  - 1\nb:\n  - 1\n")).values()
    assert "a:\n- '2'\nb:\n- '1'\n" in text


def test_conditions_choose_the_values_of_variants_yaml(tmp_path: Path) -> None:
    recipe = 'package:\n  name: p\n  version: "${{ a }}"\n'
    variants = "a:\n  - if: linux and not aarch64\n    then: one\n    else: [two, three]\n  - if: win\n    then: four\n"
    forge = "provider: {linux_aarch64: default, osx_64: null, win_64: null}\n"
    found = texts(feedstock(tmp_path, recipe, variants, forge=forge))
    assert found.keys() == {"linux_64_", "linux_aarch64_athree", "linux_aarch64_atwo"}


def test_zipped_keys_of_variants_yaml_advance_together(tmp_path: Path) -> None:
    recipe = 'package:\n  name: p\n  version: "${{ a }}.${{ b }}"\n'
    found = texts(feedstock(tmp_path, recipe, "a: ['1', '2']\nb: ['3', '4']\nzip_keys:\n  - [a, b]\n"))
    assert found.keys() == {"linux_64_a1b3", "linux_64_a2b4"}
    assert all("zip_keys:\n- - a\n  - b\n" in text for text in found.values())


def test_a_migration_applies(tmp_path: Path) -> None:
    migration = "migrator_ts: 1\n__migrator:\n  kind: version\na:\n  - '2'\n"
    recipe = 'package:\n  name: p\n  version: "1"\nrequirements:\n  host: [a]\n'
    more = {".ci_support/migrations/a2.yaml": migration}
    (text,) = texts(feedstock(tmp_path, recipe, "a: ['1']\n", more=more)).values()
    assert "a:\n- '2'\n" in text


def test_a_noarch_package_is_built_on_one_platform(tmp_path: Path) -> None:
    recipe = 'package:\n  name: p\n  version: "1"\nbuild:\n  noarch: python\nrequirements:\n  host: [python]\n'
    found = texts(feedstock(tmp_path, recipe, PYTHONS, forge=""))
    assert found.keys() == {"linux_64_"}
    assert "target_platform" not in found["linux_64_"]
    assert "python:" not in found["linux_64_"].replace("pin_run_as_build:\n  python:", "")


def test_the_smallest_python_stands_in_the_files_when_the_text_names_it(tmp_path: Path) -> None:
    recipe = 'package:\n  name: p\n  version: "1"\nbuild:\n  skip: win\n# ${{ python_min }}\n'
    (text,) = texts(feedstock(tmp_path, recipe, "python_min: ['3.10']\n")).values()
    assert "python_min:\n- '3.10'\n" in text


def test_what_rattler_build_is_to_build_needs_a_recipe_yaml(tmp_path: Path) -> None:
    forge = f"{LINUX_ONLY}conda_build_tool: rattler-build\n"
    with pytest.raises(RecipeFault) as caught:
        matrix.configs(builders.feedstock(tmp_path, "package:\n  name: p\n", forge=forge))
    assert str(caught.value.at) == "conda-forge.yml:4:1"


def test_conda_build_takes_the_meta_yaml_beside_a_recipe_yaml(tmp_path: Path) -> None:
    files = {"recipe/recipe.yaml": "nothing: here\n"}
    found = matrix.configs(builders.feedstock(tmp_path, "package:\n  name: p\n  version: 1\n", files=files))
    assert [config.name for config in found] == ["linux_64_"]


@pytest.mark.parametrize(
    ("variants", "error", "line"),
    [
        ("a: [1]\nb:\n  - if: nowhere\n    then: x\n", SelectorFault, 3),
        ("a: [1]\nb:\n  - if: open('x')\n    then: x\n", SelectorFault, 3),
        ("a:\n  - {b: c}\n", VariantFault, 2),
        ("a-b: [1]\n", VariantFault, 1),
        ("a: [1, 2]\nb: [1]\nzip_keys: [[a, b]]\n", VariantFault, 2),
    ],
)
def test_a_fault_of_variants_yaml_names_its_line(
    variants: str, error: type[Exception], line: int, tmp_path: Path
) -> None:
    recipe = 'package:\n  name: p\n  version: "1"\n'
    with pytest.raises(error) as caught:
        matrix.configs(feedstock(tmp_path, recipe, variants))
    at = caught.value.at  # type: ignore[attr-defined]  # both are errors of kiln
    assert (at.file, at.line) == ("recipe/variants.yaml", line)


def test_the_keys_without_a_value_are_told_with_their_lines(tmp_path: Path) -> None:
    recipe = (
        'package:\n  name: p\n  version: "1"\nrequirements:\n  build:\n    - ${{ stdlib("c") }}\n  host:\n    - zlib\n'
    )
    files = {".ci_support/linux_64_.yaml": "zlib:\n- '1'\ngone:\n- '1'\n"}
    error = pinning.missing_values_error(pinning.keys_without_value(feedstock(tmp_path, recipe, more=files)))
    told = {need.what.split(";")[0]: str(need.at) for need in error.others}
    assert told == {"c_stdlib has no value": "recipe/recipe.yaml:6:7", "zlib has no value": "recipe/recipe.yaml:8:7"}


def test_names_with_a_default_or_only_compared_need_no_value(tmp_path: Path) -> None:
    recipe = """
package:
  name: p
  version: "1"
build:
  string: ${{ 'a' if b == 'c' else d | default('e') }}h${{ hash }}_0
  script: echo ${{ PYTHON }}
"""
    assert pinning.keys_without_value(feedstock(tmp_path, recipe)) == ()


def test_what_is_written_is_as_it_is_expanded(tmp_path: Path) -> None:
    found = feedstock(tmp_path, RECIPE, PYTHONS + "mpi: [openmpi]\nwith_gui: [1]\n")
    rerender.write_ci_support(found, matrix.configs(found))
    assert not rerender.ci_support_drift(found, matrix.configs(found))
