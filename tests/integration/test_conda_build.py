"""conda-build itself, where this machine has it, makes and tests the packages that kiln has rendered."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.base.errors import TestsFailed
from kiln.conda.channel import LocalChannel
from kiln.conda.package_reader import read_info_json
from kiln.feedstock import config_file
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import pins, render
from tests.packages import release_package
from tests.waiting import CEILING

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "tests" / "fixtures" / "small-feedstock"

pytestmark = [pytest.mark.trial, pytest.mark.needs("conda-build")]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The small feedstock with a channel in a folder of this machine."""
    root = Path(shutil.copytree(SMALL, tmp_path / "small-feedstock"))
    channel = LocalChannel(root=tmp_path / "channel")
    channel.add([(release_package(tmp_path, "unused"), "linux-64")])
    with (root / "recipe" / "conda_build_config.yaml").open("a") as file:
        file.write(f"channel_sources:\n  - {channel.url}\n")
    assert kiln(root, "rerender").returncode == 0
    return root


def kiln(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of kiln's to its end."""
    return subprocess.run(
        (sys.executable, "-m", "kiln", "-C", str(root), *words),
        cwd=ROOT,
        env={**os.environ, "sha": "abc"},
        text=True,
        capture_output=True,
        check=False,
        timeout=CEILING,
    )


def build(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Build on this machine by conda-build."""
    return kiln(root, "build", "--engine", "conda-build", "--container", "none", *words)


def test_conda_build_makes_what_kiln_has_rendered(small: Path) -> None:
    for_cpu = ("--all", "--filter", "*None*", "-j", "2")  # both make a package of one name, and test it
    ended = build(small, *for_cpu)
    assert ended.returncode == 0, ended.stderr
    feedstock = recipe_feedstock.load(small)
    configs = sorted(file.stem for file in feedstock.config_folder.glob("*None*.yaml"))
    assert len(configs) == 2
    rendered = [
        pins.close_static_pins(render.render(feedstock, config_file.read_config(feedstock, config)))
        for config in configs
    ]
    outputs = {output.package_file_name: output for item in rendered for output in item.outputs}
    made = {file.name: file for file in (small / "build_artifacts" / "linux-64").glob("*.conda")}
    assert made.keys() == outputs.keys()
    for name, file in made.items():
        assert read_info_json(file, "hash_input.json") == outputs[name].used
        assert read_info_json(file, "about.json")["extra"]["sha"] == "abc"
    again = build(small, *for_cpu, "--json")
    assert {entry["state"] for entry in json.loads(again.stdout)["configs"]} == {"cached"}


def test_a_package_with_failed_tests_in_conda_build_is_not_published(small: Path) -> None:
    recipe = small / "recipe" / "meta.yaml"
    recipe.write_text(recipe.read_text().replace("bash check.sh", "echo looking; false; bash check.sh"))
    config = min(file.stem for file in (small / ".ci_support").glob("*.yaml"))
    ended = build(small, config)
    assert ended.returncode == TestsFailed.exit_code, ended.stderr
    assert "looking" in ended.stderr
    assert not list((small / "build_artifacts").glob("*/*.conda"))
