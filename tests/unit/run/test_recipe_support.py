"""Recipes that cannot be built are refused before anything is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.errors import RecipeFault, UsageError
from kiln.run import recipe_support
from tests.unit.render.test_v1 import HEAD, feedstock

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


def test_a_staging_output_that_requires_a_package_of_its_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeFault, match="requires lib, a package of this recipe") as caught:
        recipe_support.require(feedstock(tmp_path, STAGED), CONFIGS)
    assert caught.value.at
    assert caught.value.at.line == 4
    recipe_support.require(feedstock(tmp_path / "other", STAGED.replace("zlib, lib", "zlib")), CONFIGS)


def test_a_staging_output_without_a_name_is_an_error_of_the_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeFault):
        recipe_support.require(feedstock(tmp_path, STAGED.replace("name: compiled", "{}")), CONFIGS)


def test_other_engines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mambabuild cannot build a recipe"):
        recipe_support.require(feedstock(tmp_path, HEAD), CONFIGS, engine="mambabuild")


def test_a_recipe_with_a_key_that_no_build_honors_is_refused(tmp_path: Path) -> None:
    script = "build:\n  script: {interpreter: cmd, content: [dir]}\n"
    with pytest.raises(RecipeFault, match="'cmd' are not supported"):
        recipe_support.require(feedstock(tmp_path, f"{HEAD}{script}"), CONFIGS)
