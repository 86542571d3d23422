"""kiln's answers on this project's own recipes are those of conda-smithy and conda-build; tests/fixtures/README.md."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from kiln.feedstock import config_file, matrix, rerender
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import render
from tests.builders import FIXTURES

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock

RECIPES = FIXTURES / "recipes"


@pytest.fixture(params=["tensorflow", "serving"])
def recipe(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Feedstock, dict[str, Any]]:
    """A recipe where it may be written, and what the reference tools make of it without any pinning."""
    root = tmp_path / f"{request.param}-feedstock"
    shutil.copytree(RECIPES / request.param, root)
    return recipe_feedstock.load(root), json.loads((root / "expected.json").read_text())


def test_the_configs_are_conda_smithys(recipe: tuple[Feedstock, dict[str, Any]]) -> None:
    feedstock, expected = recipe
    result = {f"{config.name}.yaml": config_file.config_file_text(config) for config in matrix.configs(feedstock)}
    assert result == expected["ci_support"]


def test_the_outputs_are_conda_builds(recipe: tuple[Feedstock, dict[str, Any]]) -> None:
    feedstock, expected = recipe
    rerender.write_ci_support(feedstock, matrix.configs(feedstock))
    for config, outputs in expected["render"].items():
        result = render.as_plain_data(render.render(feedstock, config_file.read_config(feedstock, config)))
        assert {item["name"]: item for item in result} == {item["name"]: item for item in outputs}
        assert len(result) == len(outputs)
