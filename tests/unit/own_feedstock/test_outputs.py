"""The outputs that a feedstock may publish are exactly those of its recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.feedstock import config_file
from kiln.publish.release import allowed_package_names
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import render

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("folder", [ROOT, ROOT / "serving"], ids=["tensorflow", "serving"])
def test_the_list_of_outputs_names_what_the_configs_render(folder: Path) -> None:
    feedstock = recipe_feedstock.load(folder)
    configs = [config_file.read_config(feedstock, file.stem) for file in feedstock.config_folder.glob("*.yaml")]
    names = {
        output.name for config in configs for output in render.render(feedstock, config).outputs if not output.skip
    }
    assert set(allowed_package_names(feedstock)) == names
