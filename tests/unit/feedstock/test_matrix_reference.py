"""kiln's answers on the fixtures are those of conda-smithy and conda-build, byte for byte and field for field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kiln.feedstock import config_file, matrix
from kiln.recipe import render
from tests.builders import NAMES, PINNING, copied, expected

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_conda_smithys(name: str, tmp_path: Path) -> None:
    target = expected(name)
    result = {
        f"{config.name}.yaml": config_file.config_file_text(config)
        for config in matrix.configs(copied(name, tmp_path), PINNING)
    }
    assert target["ci_support"].items() <= result.items()
    assert not target["complete"] or result.keys() == target["ci_support"].keys()


@pytest.mark.parametrize("name", [name for name in NAMES if expected(name)["render"]])
def test_the_outputs_are_conda_builds(name: str, tmp_path: Path) -> None:
    feedstock, target = copied(name, tmp_path), expected(name)
    for file, text in target["ci_support"].items():
        (feedstock.config_folder / file).parent.mkdir(exist_ok=True)
        (feedstock.config_folder / file).write_text(text)
    for config, outputs in target["render"].items():
        result = render.as_plain_data(render.render(feedstock, config_file.read_config(feedstock, config)))
        assert sorted(result, key=identity) == sorted(outputs, key=identity)


def identity(output: dict[str, Any]) -> tuple[str, str, str]:
    return output["name"], output["version"], output["build"]
