"""No file of a package, its metadata included, names a folder of the machine that built it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import engine_packages
from tests.compared_recipes import RECIPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine_packages import Package

OWN_VARIANTS = "info/recipe/parent/conda_build_config.yaml"  # the recipe's own file, which names the tests' channel
pytestmark = [pytest.mark.sampled, pytest.mark.needs("gcc")]


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("channel")
    return engine_packages.channel(folder).url


@pytest.mark.parametrize("recipe", ["single", "outputs", "python", "linked"])
def test_no_file_names_a_folder_of_the_build(recipe: str, channel: str, tmp_path: Path) -> None:
    """All but the prefix, which clients replace when they install the package."""
    meta, files = RECIPES[recipe]
    variants = f"channel_sources:\n  - {channel}\nflavour:\n  - sweet\nforced:\n  - a\nignored:\n  - b\n"
    made = engine_packages.packages(tmp_path, "rattler-build", meta, variants, files)
    assert made
    for package in made.values():
        assert list(paths_in(package, (str(tmp_path), channel.removeprefix("file://"), str(Path.home())))) == []
        assert os.uname().nodename.encode() not in b"".join(info for _, info in metadata(package))


def metadata(package: Package) -> list[tuple[str, bytes]]:
    return [(name, data) for name, data in package.contents.items() if name.startswith("info/")]


def paths_in(package: Package, folders: tuple[str, ...]) -> Iterator[tuple[str, str, bytes]]:
    """Yield each file that names one of the folders, with the text around it."""
    for name, data in package.contents.items():
        if name == OWN_VARIANTS:
            continue
        for folder in folders:
            at = data.find(folder.encode())
            if at >= 0:
                yield name, folder, data[max(0, at - 40) : at + 200]
