"""Recipes that cannot be built are refused before anything is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import RecipeFault, UsageError
from kiln.run import recipe_checks
from kiln.run.recipe_checks import check_keys_and_find_stagings
from tests.unit.recipe.v1.test_rendering_v1 import HEAD, feedstock

if TYPE_CHECKING:
    from pathlib import Path

STAGED = """\
recipe: {name: whole, version: '1'}
outputs:
  - staging:
      name: compiled
    requirements:
      host: [zlib, lib]
  - package:
      name: lib
  - package:
      name: app
    inherit: compiled
"""
CONFIGS = ("linux_64_",)
RECIPE = """\
schema_version: 1
recipe:
  name: whole
  version: "1"
outputs:
  - staging:
      name: s
    build:
      script:
        interpreter: pyton
        content: [pass]
  - package:
      name: p
    build:
      script:
        interpreter: python
        content: [pass]
    tests:
      - if: linux
        then:
          - script:
              interpreter: brush
              content: [ls]
      - script:
          interpreter: powershell
          content: [Get-Item .]
          secrets: [TOKEN]
"""


def test_a_staging_output_that_requires_a_package_of_its_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeFault, match="requires lib, a package of this recipe") as caught:
        recipe_checks.require_supported_recipe(feedstock(tmp_path, STAGED), CONFIGS)
    assert caught.value.at
    assert caught.value.at.line == 4
    recipe_checks.require_supported_recipe(feedstock(tmp_path / "other", STAGED.replace("zlib, lib", "zlib")), CONFIGS)


def test_a_staging_output_without_a_name_is_an_error_of_the_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeFault):
        recipe_checks.require_supported_recipe(feedstock(tmp_path, STAGED.replace("name: compiled", "{}")), CONFIGS)


def test_other_engines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mambabuild cannot build a recipe"):
        recipe_checks.require_engine_of_recipe(feedstock(tmp_path, HEAD), "mambabuild")


def test_a_recipe_with_a_key_that_no_build_honors_is_refused(tmp_path: Path) -> None:
    script = "build:\n  script: {interpreter: cmd, content: [dir]}\n"
    with pytest.raises(RecipeFault, match="'cmd' are not supported"):
        recipe_checks.require_supported_recipe(feedstock(tmp_path, f"{HEAD}{script}"), CONFIGS)


def test_every_fault_has_its_line(tmp_path: Path) -> None:
    with pytest.raises(RecipeFault) as caught:
        check_keys_and_find_stagings(feedstock(tmp_path, RECIPE))
    faults = [caught.value, *caught.value.others]
    assert [(fault.at.line, fault.at.column) for fault in faults if fault.at] == [
        (10, 22),
        (22, 28),
        (25, 24),
        (27, 11),
    ]
    assert "python" in caught.value.hint
    words = ("pyton", "brush", "powershell", "secrets of a test")
    assert [word in fault.what for word, fault in zip(words, faults, strict=True)] == [True] * 4


def test_all_other_kinds_of_tests_and_scripts_are_built(tmp_path: Path) -> None:
    text = (
        RECIPE.replace("          secrets: [TOKEN]\n", "")
        .replace("pyton", "${{ interpreter }}")
        .replace("brush", "nu")
        .replace("powershell", "bash")
    )
    check_keys_and_find_stagings(feedstock(tmp_path, f"{text}      - downstream: other\n"))
