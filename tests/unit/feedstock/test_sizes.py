"""The sizes of configs, from their recipe and from fleet-sizes.yml."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import MalformedYaml
from kiln.feedstock import config_file
from kiln.feedstock import sizes as feedstock_sizes
from kiln.fleet.model import MachineType
from kiln.fleet.plan.run import config_resource_needs, stated_durations
from kiln.recipe import feedstock as recipe_feedstock
from kiln.state.results import JobSize
from tests import builders

if TYPE_CHECKING:
    from collections.abc import Mapping

SMALL = Path(__file__).parents[2] / "fixtures" / "small-feedstock"
WORKER = """\
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


def small_with(folder: Path, text: str) -> Path:
    """Return a copy of the feedstock, whose recipe ends with some more lines."""
    root = folder / "small"
    shutil.copytree(SMALL, root)
    meta = root / "recipe" / "meta.yaml"
    meta.write_text(meta.read_text().rstrip("\n") + "\n" + text)
    return root


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return small_with(tmp_path, WORKER)


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
    configs = {
        f"linux_64_{number}": f"cuda_compiler_version:\n- '{version}'\ntarget_platform:\n- linux-64\n"
        for number, version in enumerate(("None", "12.9"))
    }
    builders.feedstock(tmp_path, V1, v1=True, configs=configs)
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
    root = small_with(tmp_path, text)
    line = len((root / "recipe" / "meta.yaml").read_text().splitlines())
    with pytest.raises(MalformedYaml) as refused:
        sizes(root)
    assert message in refused.value.what
    assert f"recipe/meta.yaml:{line}" in str(refused.value.at)


def test_a_recipe_without_the_key_is_not_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    feedstock = recipe_feedstock.load(SMALL)
    monkeypatch.setattr("kiln.recipe.render", None)
    configs = config_file.read_configs(feedstock, feedstock.config_names)
    made: Mapping[str, Mapping[str, float]] = feedstock_sizes.recipe_sizes(feedstock, tuple(configs))
    assert made == {}


TEXT = """\
- cores: 8
  disk: 100
- match: {cuda_compiler_version: "12.*"}
  cores: 32
  memory: 64.5
  time_limit: 90min
- match: {cuda_compiler_version: "12.9", python: "3.12.* *_cpython"}
  gpus: 1
  hours: 2.5
  cores: 16
"""


def write(folder: Path, text: str) -> Path:
    (folder / feedstock_sizes.FILE).write_text(text)
    return folder


def test_later_entries_prevail_for_the_configs_whose_variant_they_match(tmp_path: Path) -> None:
    entries = feedstock_sizes.read_size_file(write(tmp_path, TEXT))
    cpu = {"cuda_compiler_version": ("None",), "python": ("3.12.* *_cpython",)}
    old = {**cpu, "cuda_compiler_version": ("12.5",)}
    new = {**cpu, "cuda_compiler_version": ("12.9",)}
    assert feedstock_sizes.config_size(entries, cpu) == {"cores": 8, "disk": 100}
    assert feedstock_sizes.config_size(entries, old) == {"cores": 32, "memory": 64.5, "disk": 100, "time_limit": 5400}
    values = {"cores": 16, "memory": 64.5, "disk": 100, "gpus": 1, "time_limit": 5400, "hours": 2.5}
    assert feedstock_sizes.config_size(entries, new) == values
    assert feedstock_sizes.config_size(entries, {}) == {"cores": 8, "disk": 100}, (
        "a key that the variant lacks does not match"
    )


@pytest.mark.parametrize(
    ("settings", "size", "stated"),
    [
        ("", JobSize(), []),
        ("kiln: {build_hours: 6}", JobSize(), [(6, 4)]),
        ("kiln: {build_hours: 6}", JobSize(cores=32), [(6, 4)]),
        ("kiln: {build_hours: {cpu: 2, cuda: 9}}", JobSize(), [(9, 4)]),
        ("kiln: {build_hours: {cpu: 2}}", JobSize(), []),
        ("kiln: {build_hours: 6}", JobSize(hours=0.5), [(0.5, 4)]),
        ("kiln: {build_hours: 6}", JobSize(hours=0.5, cores=32), [(0.5, 32)]),
    ],
)
def test_the_file_of_sizes_states_the_hours_of_a_config_or_else_conda_forge_yml(
    small: Path, settings: str, size: JobSize, stated: list[tuple[float, float]]
) -> None:
    (small / "conda-forge.yml").write_text(f"{settings}\n")
    made = stated_durations(recipe_feedstock.load(small), {"a": size}, {"a": "cuda12.9"})
    assert [(duration.seconds / 3600, duration.cores) for duration in made] == stated


def test_a_config_without_a_file_needs_nothing(tmp_path: Path) -> None:
    assert feedstock_sizes.read_size_file(tmp_path) == ()
    assert feedstock_sizes.config_size((), {"python": ("3.12",)}) == {}


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("cores: 8", "is a list of entries", "fleet-sizes.yml"),
        ("- 8", "is a list of entries", "fleet-sizes.yml"),
        ("- cpus: 8", "unknown key 'cpus'", "fleet-sizes.yml:1:3"),
        ("- cores: 8\n- memory: much", "invalid memory 'much'", "fleet-sizes.yml:2:11"),
        ("- cores: 1.5", "invalid cores '1.5'", "fleet-sizes.yml:1:10"),
        ("- cores: nan", "invalid cores 'nan'", "fleet-sizes.yml:1:10"),
        ("- disk: inf", "invalid disk 'inf'", "fleet-sizes.yml:1:9"),
        ("- hours: long", "invalid hours 'long'", "fleet-sizes.yml:1:10"),
        ("- gpus: -1", "invalid gpus '-1'", "fleet-sizes.yml:1:9"),
        ("- cores: [8]", "invalid cores", "fleet-sizes.yml"),
        ("- time_limit: soon", "invalid time 'soon'", "fleet-sizes.yml:1:15"),
        ("- time_limit: 0h", "invalid time limit '0h'", "fleet-sizes.yml:1:15"),
        ("- match: 12.9\n  cores: 8", "match maps variant keys to values", "fleet-sizes.yml:1:3"),
        ("- match: {python: [3.12]}", "match maps variant keys to values", "fleet-sizes.yml:1:3"),
    ],
)
def test_an_invalid_file_is_refused_at_its_place(tmp_path: Path, text: str, message: str, place: str) -> None:
    with pytest.raises(MalformedYaml) as refused:
        feedstock_sizes.read_size_file(write(tmp_path, text))
    assert message in refused.value.what
    assert str(refused.value.at).startswith(place)


def test_a_size_fits_a_machine_type_that_has_as_much_or_is_unknown() -> None:
    kind = MachineType(provider="aws", type="compute-16", name="c7i.4xlarge", cores=16, memory=32, disk=150)
    assert JobSize(cores=16, memory=32, disk=150).fits(kind)
    assert not JobSize(cores=17).fits(kind)
    assert not JobSize(memory=32.5).fits(kind)
    assert not JobSize(disk=151).fits(kind)
    assert not JobSize(gpus=1).fits(kind)
    yours = MachineType(provider="static", type="static", name="yours", cores=0, memory=0, disk=0)
    assert JobSize(cores=64, memory=500).fits(yours)
    assert str(JobSize(cores=17, memory=64.5)) == "17 cores, 64.5 GB of memory"
