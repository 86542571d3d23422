"""Every form of pin gives a package the bounds of what was solved: conda-build's, compared with rattler-build's own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

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
# A pin in meta.yaml, and what conda-build makes of it; it derives the upper bound from the lower one, and counts no
# components that a version lacks. An epoch it would drop, so that nothing meets its bounds. numpy's form is its legacy
# x.x, for which it sets pin_run_as_build.
ROWS = {
    "'plain'": "plain >=1.2.3,<2.0a0",
    "'six'": "six >=1.17.0,<2.0a0",
    "'numpy', max_pin='x.x'": "numpy >=2.4,<2.5.0a0",
    "'plain', min_pin='x.x', max_pin='x.x'": "plain >=1.2,<1.3.0a0",
    "'fixed', exact=True": "fixed 3.1 h9_0",
    "'plain', max_pin=None": "plain >=1.2.3",
    "'plain', min_pin=None, max_pin='x.x'": "plain <1.3.0a0",
    "'plain', upper_bound='3'": "plain >=1.2.3,<3",
    "'plain', min_pin=None, upper_bound='3'": "plain <3",
    "'plain', lower_bound='1.0'": "plain >=1.0,<2.0a0",
    "'plain', lower_bound='0.8'": "plain >=0.8,<1.0a0",
    "'plain', lower_bound='1.0', upper_bound='4'": "plain >=1.0,<4",
    "'letter'": "letter >=1.1.1w,<2.0a0",
    "'letter', max_pin='x.x.x'": "letter >=1.1.1w,<1.1.2a",
    "'cram'": "cram >=9b,<10a",
    "'cram', max_pin='x.x'": "cram >=9b,<9c",
    "'short', max_pin='x.x'": "short >=5,<6.0a0",
    "'trail'": "trail >=1.0.1_,<2.0a0",
    "'trail', max_pin='x.x.x'": "trail >=1.0.1_,<1.0.2.0a0",
    "'epoch'": "epoch >=1!2.3,<1!3.0a0",
}
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
    step = step_of(tmp_path, [*ROWS])
    package = build_package(step, environment=environment(tmp_path))
    require_bounds(read_info_json(package, "index.json"), read_info_json(package, "run_exports.json"), ROWS.values())


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
