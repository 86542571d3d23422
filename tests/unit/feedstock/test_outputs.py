"""The outputs that a feedstock may publish are exactly those of its recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln import expand, feedstock_folder_check, render
from kiln.release.candidate_packages import allowed_package_names

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("folder", [ROOT, ROOT / "serving"], ids=["tensorflow", "serving"])
def test_the_list_of_outputs_names_what_the_configs_render(folder: Path) -> None:
    feedstock = feedstock_folder_check.load(folder)
    configs = [expand.read_config(feedstock, file.stem) for file in feedstock.config_folder.glob("*.yaml")]
    names = {
        output.name for config in configs for output in render.render(feedstock, config).outputs if not output.skip
    }
    assert set(allowed_package_names(feedstock)) == names
