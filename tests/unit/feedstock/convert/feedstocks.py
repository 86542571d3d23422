"""The feedstocks of conversions: a meta.yaml, its variants, and the recipe.yaml that it becomes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from kiln.feedstock import config_file, matrix
from kiln.recipe import feedstock as recipe_feedstock
from tests import builders
from tests.builders import FIXTURES

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock

CONVERSIONS = FIXTURES / "conversions"
_FORGE = {
    "single": "provider:\n  osx_64: null\n  linux_aarch64: default\n",
    "outputs": "provider:\n  osx_64: null\n  win_64: null\n",
}
_SCRIPTS = {
    "build.sh": "make $machine_mode\n",
    "install-lib.sh": "make install\n",
    "install-py.sh": "echo $machine_mode \n",
}
_config_texts: dict[str, dict[str, str]] = {}  # by conversion and file, expanded once for all tests


def conversion(name: str, folder: Path) -> Feedstock:
    """Return the feedstock of a conversion with its configs, without its recipe.yaml."""
    recipe = folder / "recipe"
    recipe.mkdir(parents=True)
    for file in ("meta.yaml", "conda_build_config.yaml"):
        shutil.copyfile(CONVERSIONS / name / file, recipe / file)
    if name == "outputs":
        for script, text in _SCRIPTS.items():
            (recipe / script).write_text(text)
    (folder / "conda-forge.yml").write_text(f"# settings\n{_FORGE[name]}")
    feedstock = recipe_feedstock.load(folder)
    if name not in _config_texts:
        _config_texts[name] = {
            f"{config.name}.yaml": config_file.config_file_text(config) for config in matrix.configs(feedstock)
        }
    builders.write_files(feedstock.config_folder, _config_texts[name])
    return feedstock


def expected(name: str) -> str:
    """Return the recipe.yaml of a conversion."""
    return (CONVERSIONS / name / "recipe.yaml").read_text()
