"""A package of a recipe.yaml is tested by the tests that packages downstream of it carry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BrokenPackage, KilnError, TestsFailed
from kiln.conda import package_reader
from tests.integration.recipe_v1_feedstocks import built, channel, kiln
from tests.packages import conda_package, release_package

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled

# The tests of a package downstream: rattler-build's own file of a recipe with each kind of test.
CARRIED = """\
- script:
    interpreter: python
    env:
      GREETING: hello
    content:
    - import os, pathlib
    - prefix = pathlib.Path(os.environ["PREFIX"])
    - assert os.environ["PKG_NAME"] + os.environ["GREETING"] == "userhello"
    - assert (prefix / "share" / "tested").is_file()
    - assert (prefix / "share" / "exporter").is_file()
  requirements:
    run:
    - python 3.12.*
    - exporter
- script:
  - test ! -e $PREFIX/share/exporter  # an environment of its own
- ruby:
    requires:
    - "set"
- r:
    libraries:
    - stats
- perl:
    uses:
    - strict
"""
INTERPRETER = '#!/bin/sh\necho "$0" "$@" | sed "s|.*/bin/|loaded by |"\n'
TESTED = """\
schema_version: 1
package: {name: tested, version: "1.0"}
build:
  number: 0
  script: mkdir -p $PREFIX/share && touch $PREFIX/share/tested
tests:
  - downstream: user >=1
  - downstream: absent
about: {license: CC0-1.0}
"""


def feedstock_with_downstream(folder: Path, carried: str) -> Path:
    """Return a feedstock whose package is tested by another one of its channel, which carries tests."""
    made = channel(folder / "packages")
    index = {"name": "user", "version": "1.5", "build": "0", "build_number": 0, "subdir": "linux-64"}
    info = {
        "index.json": {**index, "depends": ["tested"]},
        "about.json": {},
        "paths.json": {"paths": [], "paths_version": 1},
        "tests/tests.yaml": carried,
    }
    interpreters = {"ruby": "ruby", "r-base": "Rscript", "perl": "perl"}
    programs = [
        release_package(folder / "packages", name, payload={f"bin/{program}": INTERPRETER.encode()})
        for name, program in interpreters.items()
    ]
    user = conda_package(folder / "packages" / "user-1.5-0.conda", info, payload={})
    made.add([(file, "linux-64") for file in (user, *programs)])
    root = folder / "feedstock"
    (root / "recipe").mkdir(parents=True)
    (root / "recipe" / "recipe.yaml").write_text(TESTED)
    (root / "recipe" / "variants.yaml").write_text(f"channel_sources:\n  - {made.url}\n")
    (root / "conda-forge.yml").write_text("conda_build_tool: rattler-build\n")
    assert kiln(root, "rerender").returncode == 0
    return root


def test_packages_downstream_are_tested_with_every_kind_of_test_that_they_carry(tmp_path: Path) -> None:
    root = feedstock_with_downstream(tmp_path, CARRIED)
    built(root, "--all")
    (config,) = json.loads(kiln(root, "report", "--json").stdout)["configs"]
    (package,) = config["packages"]
    tested, untested = package["tests"]["notes"]
    assert tested == "downstream user 1.5: 8 tests passed"
    assert untested.startswith("downstream absent was not tested: nothing in ")
    log = (root / "build_artifacts" / "logs" / "0001" / "linux_64_.log").read_text()
    for line in ("ruby -e require 'set'", "Rscript -e library(stats)", "perl -e use strict;"):
        assert f"loaded by {line}" in log
    (file,) = (root / "build_artifacts").glob("*/tested-*.conda")
    with package_reader.open_package_members(file) as members:
        (tests,) = (data.read().decode() for member, data in members if data and member.name == "info/tests/tests.yaml")
    assert tests == "- downstream: user >=1\n- downstream: absent\n"


@pytest.mark.parametrize(
    ("carried", "error", "text"),
    [
        (
            "- perl:\n    uses: [strict]\n- script: exit 3\n",
            TestsFailed,
            "user, downstream of tested fail with exit code 3",
        ),
        ("- lua:\n    uses: [x]\n", BrokenPackage, "tests of the kind 'lua' are not supported"),
    ],
)
def test_a_package_whose_downstream_fails_is_not_finished(
    carried: str, error: type[KilnError], text: str, tmp_path: Path
) -> None:
    root = feedstock_with_downstream(tmp_path, carried)
    ended = kiln(root, "build", "--all", "--container", "none")
    assert ended.returncode == error.exit_code, ended.stderr
    assert text in ended.stderr
    assert not list((root / "build_artifacts").glob("*/tested-*.conda"))
