"""Match specs in every form, in a recipe that the real engine builds, and on the command line of ``kiln install``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.base.errors import UsageError
from kiln.build.engine.plan import plan_outputs
from kiln.build.engine.run import build_package
from kiln.conda.channel import LocalChannel
from kiln.conda.package_reader import read_info_json
from kiln.feedstock import matrix
from kiln.recipe import pins, render
from tests import builders
from tests.packages import release_package

ROOT = Path(__file__).parents[2]
META = """\
package:
  name: app
  version: 1
build:
  script:
    - mkdir -p $PREFIX/share
    - ls $PREFIX/conda-meta > $PREFIX/share/app
requirements:
  host:
    - small=1.2=cpu*
    - {channel}::named
    - "numbered[build_number='<2', version='>=1']"
  run:
    - small=1.2=cpu*
    - six >= 1.16, < 2
    - "named[version='1|2']"
    - "numbered[build_number='>=1']"
  run_constrained:
    - "small[build='cpu*']"
about:
  license: MIT
"""


@pytest.fixture
def channel(tmp_path: Path) -> LocalChannel:
    """Return a channel with several builds of its packages."""
    made = [
        release_package(tmp_path / "made", "small", "1.2", "cpu_0"),
        release_package(tmp_path / "made", "small", "1.2", "cuda_0", build_number=1),
        release_package(tmp_path / "made", "named", "2"),
        release_package(tmp_path / "made", "numbered", "1", "h_1", build_number=1),
        release_package(tmp_path / "made", "numbered", "1", "h_2", build_number=2),
    ]
    channel = LocalChannel(root=tmp_path / "channel")
    channel.add([(package, "linux-64") for package in made])
    return channel


def test_a_recipe_may_use_any_form(channel: LocalChannel, tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path / "feedstock", META.format(channel=channel.url))
    (config,) = matrix.configs(feedstock)
    (step,) = plan_outputs(
        pins.close_static_pins(render.render(feedstock, config)),
        recipe_folder=feedstock.recipe,
        folder=tmp_path / "work",
        channels=(channel.url,),
        compiled={},
        extra={},
    )
    lines: list[str] = []
    environment = {**os.environ, "RATTLER_CACHE_DIR": str(tmp_path / "cache")}
    package = build_package(step, environment=environment, on_line=lines.append)
    index = read_info_json(package, "index.json")
    exported = {"small >=1.2", "named >=2", "numbered >=1"}
    assert set(index["depends"]) - exported == {
        "small 1.2 cpu*",
        "six >=1.16,<2",
        "named 1|2",
        'numbered[build_number=">=1"]',
    }
    assert index["constrains"] == ["small * cpu*"]
    solved = [line.split()[1:6:2] for line in lines if line.startswith("│")]
    assert [row for row in solved if row[0] in {"small", "numbered"}][:2] == [
        ["numbered", "1", "h_1"],
        ["small", "1.2", "cpu_0"],
    ]


@pytest.mark.parametrize(
    ("spec", "build"),
    [("small=1.2=cpu*", "cpu_0"), ("small[build=cuda*]", "cuda_0"), ("small 1.2 cpu_0", "cpu_0"), ("small", "cuda_0")],
)
def test_the_command_line_takes_any_form(channel: LocalChannel, spec: str, build: str, tmp_path: Path) -> None:
    words = ("install", spec, "--prefix", str(tmp_path / "prefix"), "--from", channel.url, "--dry-run", "--json")
    result = subprocess.run(
        [sys.executable, "-m", "kiln", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert [package["build"] for package in json.loads(result.stdout)["packages"]] == [build]


def test_what_is_no_match_spec_is_refused_before_a_channel_is_read(tmp_path: Path) -> None:
    words = ("install", "small >=1,,<2", "--prefix", str(tmp_path / "prefix"), "--from", "https://nowhere.invalid/c")
    result = subprocess.run(
        [sys.executable, "-m", "kiln", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == UsageError.exit_code
    assert "'small >=1,,<2' is not a match spec" in result.stderr
    assert "a bound is empty" in result.stderr
