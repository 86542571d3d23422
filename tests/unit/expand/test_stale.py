"""Checks that .ci_support is up to date with the recipe and the variant files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln import expand
from kiln.cli import run
from tests.feedstocks import written

if TYPE_CHECKING:
    from pathlib import Path

META = "package:\n  name: a\n  version: '1'\nrequirements:\n  host:\n    - zlib\n"


@pytest.mark.parametrize("own_pinning", [False, True])
def test_changes_since_the_last_rerender_are_counted(tmp_path: Path, *, own_pinning: bool) -> None:
    feedstock = written(tmp_path, META, variants="zlib:\n  - '1'\n")
    if own_pinning:
        settings, file = feedstock.root / "conda-forge.yml", feedstock.recipe / "conda_build_config.yaml"
        settings.write_text(f"{settings.read_text()}exclusive_config_file: recipe/own.yaml\n")
        file.rename(feedstock.recipe / "own.yaml")
    assert run(["-C", str(feedstock.root), "rerender"]) == 0
    assert expand.changes_since_rerender(feedstock) == ""
    (feedstock.recipe / ("own.yaml" if own_pinning else "conda_build_config.yaml")).write_text("zlib:\n  - '2'\n")
    assert expand.changes_since_rerender(feedstock) == "1 changed"
    feedstock.meta.write_text(META.replace("zlib", "zlib {{"))
    assert expand.changes_since_rerender(feedstock) == "", "which the build reports"


def test_a_feedstock_that_needs_a_pinning_is_not_compared(tmp_path: Path) -> None:
    feedstock = written(tmp_path, META, variants="")
    feedstock.configs.mkdir()
    (feedstock.configs / "linux_64_.yaml").write_text("zlib:\n- '1'\n")
    assert expand.changes_since_rerender(feedstock) == ""
