"""kiln's answers on this project's own recipes are those of conda-smithy and conda-build; tests/fixtures/README.md."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from kiln import expand, feedstock_folder_check, render
from tests.feedstocks import FIXTURES

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.feedstock import Feedstock

RECIPES = FIXTURES / "recipes"


@pytest.fixture(params=["tensorflow", "serving"])
def recipe(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Feedstock, dict[str, Any]]:
    """A recipe where it may be written, and what the reference tools make of it without any pinning."""
    root = tmp_path / f"{request.param}-feedstock"
    shutil.copytree(RECIPES / request.param, root)
    return feedstock_folder_check.load(root), json.loads((root / "expected.json").read_text())


def test_the_configs_are_conda_smithys(recipe: tuple[Feedstock, dict[str, Any]]) -> None:
    feedstock, expected = recipe
    result = {f"{config.name}.yaml": expand.config_file_text(config) for config in expand.configs(feedstock)}
    assert result == expected["ci_support"]


def test_the_outputs_are_conda_builds(recipe: tuple[Feedstock, dict[str, Any]]) -> None:
    feedstock, expected = recipe
    expand.write_ci_support(feedstock, expand.configs(feedstock))
    for config, outputs in expected["render"].items():
        result = render.as_plain_data(render.render(feedstock, expand.read_config(feedstock, config)))
        assert {item["name"]: item for item in result} == {item["name"]: item for item in outputs}
        assert len(result) == len(outputs)
