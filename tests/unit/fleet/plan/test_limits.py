"""The sizes of configs that a recipe states, rendered for each config."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import MalformedYaml
from kiln.feedstock import config_file
from kiln.fleet.plan import limits
from kiln.fleet.plan.limits import config_resource_needs
from kiln.recipe import feedstock as recipe_feedstock
from kiln.state.results import JobSize

if TYPE_CHECKING:
    from collections.abc import Mapping

SMALL = Path(__file__).parents[3] / "fixtures" / "small-feedstock"
WORKER = """
  worker:
    memory: {{ 64 if cuda_compiler_version != "None" else 8 }}
    cores: 32  # [cuda_compiler_version != "None"]
    gpus: 1    # [cuda_compiler_version == "12.9" and interpreter == "3.12"]
    time_limit: 90min
"""
V1 = """\
schema_version: 1
package: {name: sized, version: "1"}
build:
  string: c${{ cuda_compiler_version | replace(".", "") }}
  script: "true"
extra:
  worker:
    memory: ${{ 64 if cuda_compiler_version != "None" else 8 }}
    disk: 100
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    root = tmp_path / "small"
    shutil.copytree(SMALL, root)
    meta = root / "recipe" / "meta.yaml"
    meta.write_text(meta.read_text().rstrip("\n") + WORKER)
    return root


def sizes(root: Path) -> dict[str, JobSize]:
    feedstock = recipe_feedstock.load(root)
    return config_resource_needs(feedstock, feedstock.config_names)


def test_each_config_has_the_sizes_that_its_recipe_renders(small: Path) -> None:
    made = {name.partition("version")[2]: size for name, size in sizes(small).items()}
    assert made == {
        "Noneinterpreter3.11": JobSize(memory=8.0, time_limit=5400.0),
        "Noneinterpreter3.12": JobSize(memory=8.0, time_limit=5400.0),
        "12.9interpreter3.11": JobSize(memory=64.0, cores=32, time_limit=5400.0),
        "12.9interpreter3.12": JobSize(memory=64.0, cores=32, gpus=1, time_limit=5400.0),
    }
    (small / "fleet-sizes.yml").write_text("- match: {cuda_compiler_version: '12.9'}\n  cores: 16\n")
    prevailing = {size for name, size in sizes(small).items() if "12.9" in name}
    assert {size.cores for size in prevailing} == {16}, "the file prevails"
    assert {size.memory for size in prevailing} == {64.0}


def test_a_recipe_yaml_has_sizes_too(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / ".ci_support").mkdir()
    (tmp_path / "conda-forge.yml").write_text("conda_build_tool: rattler-build\n")
    (tmp_path / "recipe" / "recipe.yaml").write_text(V1)
    for number, version in enumerate(("None", "12.9")):
        text = f"cuda_compiler_version:\n- '{version}'\ntarget_platform:\n- linux-64\n"
        (tmp_path / ".ci_support" / f"linux_64_{number}.yaml").write_text(text)
    assert sizes(tmp_path) == {
        "linux_64_0": JobSize(memory=8.0, disk=100.0),
        "linux_64_1": JobSize(memory=64.0, disk=100.0),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  worker: 8\n", "worker in extra maps sizes to numbers"),
        ("  worker: {cpus: 8}\n", "unknown key 'cpus' of a size"),
        ("  worker: {match: {a: b}}\n", "unknown key 'match' of a size"),
        ("  worker: {memory: much}\n", "invalid memory 'much'"),
        ("  worker: {time_limit: 0h}\n", "invalid time limit '0h'"),
    ],
)
def test_invalid_sizes_are_refused_with_the_recipe_s_line(tmp_path: Path, text: str, message: str) -> None:
    root = tmp_path / "small"
    shutil.copytree(SMALL, root)
    meta = root / "recipe" / "meta.yaml"
    meta.write_text(meta.read_text().rstrip("\n") + "\n" + text)
    line = len(meta.read_text().splitlines())
    with pytest.raises(MalformedYaml) as refused:
        sizes(root)
    assert message in refused.value.what
    assert f"recipe/meta.yaml:{line}" in str(refused.value.at)


def test_a_recipe_without_the_key_is_not_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    feedstock = recipe_feedstock.load(SMALL)
    monkeypatch.setattr("kiln.recipe.render", None)
    configs = config_file.read_configs(feedstock, feedstock.config_names)
    made: Mapping[str, Mapping[str, float]] = limits.recipe_sizes(feedstock, tuple(configs))
    assert made == {}
