"""Every form of pin gives a package the bounds of what was solved: conda-build's, compared with rattler-build's own."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from kiln.base.errors import BuildFailed
from kiln.build.engine.plan import plan_outputs
from kiln.build.engine.run import build_package
from kiln.conda.channel import LocalChannel
from kiln.conda.package_reader import read_info_json
from kiln.feedstock import matrix
from kiln.recipe import pins as recipe_pins
from kiln.recipe import render
from tests import builders
from tests.packages import release_package

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kiln.build.steps import BuildStep

HOST = {
    "plain": ("1.2.3", "h1_0"),
    "fixed": ("3.1", "h9_0"),
    "six": ("1.17.0", "py_0"),
    "letter": ("1.1.1w", "h2_0"),
    "cram": ("9b", "0"),
    "short": ("5", "0"),
    "trail": ("1.0.1_", "0"),
    "epoch": ("1!2.3", "0"),
    "perl": ("5.32.1", "7_perl5"),
    "numpy": ("2.4.6", "py311_0"),
}


class Row(NamedTuple):
    """A pin in the terms of meta.yaml, what conda-build makes of it, the same in recipe.yaml, and its result there."""

    v0: str
    wanted: str
    v1: str
    rattler: str = ""  # empty: the same
    conda_build: str = ""  # what conda-build writes where the result is another; empty: the same


ROWS = [
    Row("'plain'", "plain >=1.2.3,<2.0a0", "'plain'"),
    Row("'six'", "six >=1.17.0,<2.0a0", "'six'"),
    # This form is conda-build's legacy numpy x.x, for which it sets pin_run_as_build, which has the last word.
    Row("'numpy', max_pin='x.x'", "numpy >=2.4,<2.5.0a0", "'numpy', upper_bound='x.x'", "numpy >=2.4.6,<2.5.0a0"),
    Row("'plain', min_pin='x.x', max_pin='x.x'", "plain >=1.2,<1.3.0a0",
        "'plain', lower_bound='x.x', upper_bound='x.x'"),
    Row("'fixed', exact=True", "fixed 3.1 h9_0", "'fixed', exact=true"),  # in addition, others of a name do not count
    Row("'plain', max_pin=None", "plain >=1.2.3", "'plain', upper_bound=none"),
    Row("'plain', min_pin=None, max_pin='x.x'", "plain <1.3.0a0", "'plain', lower_bound=none, upper_bound='x.x'"),
    Row("'plain', upper_bound='3'", "plain >=1.2.3,<3", "'plain', upper_bound='3'"),
    Row("'plain', min_pin=None, upper_bound='3'", "plain <3", "'plain', lower_bound=none, upper_bound='3'"),
    Row("'plain', lower_bound='1.0'", "plain >=1.0,<2.0a0", "'plain', lower_bound='1.0'"),
    # conda-build derives the upper bound from the lower one, rattler-build from the version.
    Row("'plain', lower_bound='0.8'", "plain >=0.8,<1.0a0", "'plain', lower_bound='0.8'", "plain >=0.8,<2.0a0"),
    Row("'plain', lower_bound='1.0', upper_bound='4'", "plain >=1.0,<4", "'plain', lower_bound='1.0', upper_bound='4'"),
    Row("'letter'", "letter >=1.1.1w,<2.0a0", "'letter'"),
    Row("'letter', max_pin='x.x.x'", "letter >=1.1.1w,<1.1.2a", "'letter', upper_bound='x.x.x'"),
    Row("'cram'", "cram >=9b,<10a", "'cram'"),
    Row("'cram', max_pin='x.x'", "cram >=9b,<9c", "'cram', upper_bound='x.x'", "cram >=9b,<9b.1.0a0"),
    # conda-build has no component to count where the version is shorter than the pin, rattler-build appends zeros.
    Row("'short', max_pin='x.x'", "short >=5,<6.0a0", "'short', upper_bound='x.x'", "short >=5,<5.1.0a0"),
    # rattler-build cannot pin it.
    Row("'trail'", "trail >=1.0.1_,<2.0a0", "'trail'", "trail >=1.0.1_,<2.0a0"),
    Row("'trail', max_pin='x.x.x'", "trail >=1.0.1_,<1.0.2.0a0", "'trail', exact=true", "trail 1.0.1_ 0"),
    # conda-build drops the epoch, and nothing meets its bounds.
    Row("'epoch'", "epoch >=1!2.3,<1!3.0a0", "'epoch'", conda_build="epoch >=2.3,<3.0a0"),
]  # fmt: skip
META = """\
package:
  name: pinned
  version: 2.1.0
build:
  number: 0
  script:
    - mkdir -p $PREFIX/share
    - echo > $PREFIX/share/pinned
  run_exports:
    weak:
      - {first}
      - "{{{{ pin_subpackage('pinned', max_pin='x.x') }}}}"
    strong:
      - "{{{{ pin_compatible('numpy', max_pin='x.x') }}}}"
    weak_constrains:
      - "{{{{ pin_compatible('letter', max_pin='x.x.x') }}}}"
requirements:
  host:
    - {host}
  run:
    - perl
    - perl 5.* *_perl5
    - short
    - absent >=3
    - {run}
  run_constrained:
    - "{{{{ pin_compatible('six', exact=True) }}}}"
about:
  license: MIT
"""
PINS = """\
pin_run_as_build:
  perl:
    min_pin: x.x.x
    max_pin: x.x.x
  short:
    max_pin: x.x
  absent:
    max_pin: x.x
perl:
  - 5.32.1
numpy:
  - 2.4
"""
LINE = "\n    - "


def channel_of(folder: Path) -> LocalChannel:
    """Return a channel with HOST's packages."""
    channel = LocalChannel(root=folder / "channel")
    channel.add([(release_package(folder / "made", name, *what), "linux-64") for name, what in HOST.items()])
    return channel


def recipe_of(run: list[str]) -> str:
    """Return a recipe whose packages in host are HOST's, with pins in ``run``."""
    quoted = [f'"{{{{ pin_compatible({arguments}) }}}}"' for arguments in run]
    return META.format(first=quoted[0], host=LINE.join(HOST), run=LINE.join(quoted))


def step_of(folder: Path, run: list[str]) -> BuildStep:
    """Return the step that builds a recipe whose packages in host are HOST's."""
    channel = channel_of(folder)
    feedstock = builders.feedstock(folder / "feedstock", recipe_of(run), PINS)
    (config,) = matrix.configs(feedstock)
    rendered = recipe_pins.close_static_pins(render.render(feedstock, config))
    (step,) = plan_outputs(
        rendered,
        recipe_folder=feedstock.recipe,
        folder=folder / "work",
        channels=(channel.url,),
        compiled={},
        extra={},
    )
    return step


# What the packages in host export, the engine adds.
EXPORTED = {f"{name} >={version}" for name, (version, _) in HOST.items()}


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "RATTLER_CACHE_DIR": str(folder / "cache")}


def test_each_pin_has_the_bounds_that_conda_build_writes(tmp_path: Path) -> None:
    step = step_of(tmp_path, [row.v0 for row in ROWS])
    package = build_package(step, environment=environment(tmp_path))
    wanted = [row.wanted for row in ROWS]
    require_bounds(read_info_json(package, "index.json"), read_info_json(package, "run_exports.json"), wanted)


@pytest.mark.trial
@pytest.mark.needs("conda-build")
def test_the_bounds_of_the_table_are_those_of_conda_build(tmp_path: Path) -> None:
    """The column ``wanted`` is written by hand: here conda-build writes it, without a test of the package."""
    settings = {"channels": [channel_of(tmp_path).url], "default_channels": []}
    (tmp_path / "condarc").write_text(json.dumps(settings))
    folders = {"CONDA_PKGS_DIRS": str(tmp_path / "fetched"), "CONDA_BLD_PATH": str(tmp_path / "croot")}
    recipe = builders.feedstock(tmp_path / "feedstock", recipe_of([row.v0 for row in ROWS]), PINS).recipe
    argv = ("conda-build", str(recipe), "--no-test", "--no-anaconda-upload", "--package-format", "2")
    environment = {**os.environ, "CONDARC": str(tmp_path / "condarc"), **folders}
    ended = subprocess.run(argv, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (package,) = (tmp_path / "croot" / "linux-64").glob("pinned-*.conda")
    index, exports = read_info_json(package, "index.json"), read_info_json(package, "run_exports.json")
    require_bounds(index, exports, [row.conda_build or row.wanted for row in ROWS])


def require_bounds(index: Mapping[str, Any], exports: Mapping[str, Any], wanted: Iterable[str]) -> None:
    """Compare the metadata of a package with the bounds of a column."""
    as_built = ["perl >=5.32.1,<5.32.2.0a0", "perl >=5.32.1,<5.32.2.0a0 *_perl5", "short >=5,<6.0a0", "absent >=3"]
    bounds = {*as_built, *wanted}
    assert bounds <= set(index["depends"])
    assert set(index["depends"]) - bounds <= EXPORTED
    assert index["constrains"] == ["six 1.17.0 py_0"]
    assert exports == {
        "weak": ["plain >=1.2.3,<2.0a0", "pinned >=2.1.0,<2.2.0a0"],
        "strong": ["numpy >=2.4.6,<2.5.0a0"],
        "weak_constrains": ["letter >=1.1.1w,<1.1.2a"],
    }


def test_a_pin_to_a_package_that_host_lacks_fails_before_the_script_runs(tmp_path: Path) -> None:
    lines: list[str] = []
    with pytest.raises(BuildFailed, match="nowhere"):
        build_package(step_of(tmp_path, ["'nowhere'"]), environment=environment(tmp_path), on_line=lines.append)
    assert not any("share/pinned" in line for line in lines)


@pytest.mark.sampled
def test_rattler_build_alone_gives_the_same_bounds_but_where_its_rules_differ(tmp_path: Path) -> None:
    step = step_of(tmp_path, ["'plain'"])
    pins = [f"${{{{ pin_compatible({row.v1}) }}}}" for row in ROWS if row.v1 != "'trail'"]
    requirements = {"host": list(HOST), "run": pins}
    recipe = {**step.recipe, "requirements": requirements}
    (tmp_path / "job.json").write_text(json.dumps(recipe))
    alone = dataclasses.replace(step, recipe=recipe, pins=())
    package = build_package(alone, environment=environment(tmp_path))
    depends = set(read_info_json(package, "index.json")["depends"])
    bounds = {row.rattler or row.wanted for row in ROWS if row.v1 != "'trail'"}
    assert bounds <= depends
    assert depends - bounds <= EXPORTED
