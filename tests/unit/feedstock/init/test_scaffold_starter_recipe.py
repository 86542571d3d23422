"""The starter has no lints in both formats, and its text holds whatever version it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.feedstock import matrix, pinning
from kiln.feedstock.init import scaffold
from kiln.feedstock.init.scaffold import KilnRequirement, RecipeFormat, starter_recipe
from kiln.feedstock.lint import check
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import render

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("version", ["0.1.0", "1.10", "2", "1e3", "1!2.0+x"])
@pytest.mark.parametrize("form", RecipeFormat)
def test_a_starter_renders_as_asked_and_has_no_lints(tmp_path: Path, form: RecipeFormat, version: str) -> None:
    root = tmp_path / "f"
    recipe = starter_recipe("a-b.c", version, form, ["jane", "org/team"])
    scaffold.write_planned_files(root, scaffold.new_feedstock_files(root, recipe, KilnRequirement(line="kiln==1")))
    feedstock = recipe_feedstock.load(root)
    assert check.check(feedstock) == []
    (config,) = matrix.configs(feedstock, None, {})
    (output,) = render.render(feedstock, config).outputs
    assert (output.name, output.version, output.noarch) == ("a-b.c", version, "generic")
    assert (root / "outputs.txt").read_text().splitlines()[1:] == ["a-b.c"]
    assert pinning.keys_without_value(feedstock) == ()
