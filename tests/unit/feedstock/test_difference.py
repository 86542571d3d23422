"""Two trees of a feedstock differ in the outputs that a build would make otherwise, and in no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import KilnError
from kiln.feedstock.difference import changed_outputs, with_recipe_text
from tests.builders import feedstock

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = """\
package:
  name: top
  version: "1"
build:
  number: 0
outputs:
  - name: one
    script: one.sh
    requirements:
      host:
        - zlib
  - name: two
    script: two.sh
    test:
      commands:
        - two --version  # [linux64]
"""
FILES = {"recipe/one.sh": "echo one\n", "recipe/two.sh": "echo two\n"}
CONFIGS = {"linux_64_": "zlib:\n- '1'\n", "linux_aarch64_": "zlib:\n- '1'\ntarget_platform:\n- linux-aarch64\n"}
BOTH = dict.fromkeys(CONFIGS, ("one", "two"))


@pytest.mark.parametrize(
    ("recipe", "files", "configs", "expected"),
    [
        (RECIPE, {}, {}, {}),
        (f"# a comment\n{RECIPE}", {}, {}, {}),
        (RECIPE.replace('"1"', '"2"'), {}, {}, BOTH),
        (RECIPE.replace("two --version", "two --help"), {}, {}, {"linux_64_": ("two",)}),
        (RECIPE.replace("- zlib", "- zlib >=1"), {}, {}, dict.fromkeys(CONFIGS, ("one",))),
        (RECIPE, {"recipe/two.sh": "echo other\n"}, {}, dict.fromkeys(CONFIGS, ("two",))),
        (RECIPE, {"recipe/helper.sh": "echo all\n"}, {}, BOTH),
        (RECIPE, {"conda-forge.yml": "conda_build: {pkg_format: '2'}\n"}, {}, BOTH),
        (RECIPE, {"conda-forge.yml": "# a comment\nprovider:\n  osx_64: null\n  win_64: null\n"}, {}, {}),
        (RECIPE, {}, {"linux_64_": "zlib:\n- '2'\n"}, {"linux_64_": ("one",)}),
        (RECIPE, {}, {"linux_64_new": "zlib:\n- '1'\n"}, {"linux_64_new": ("one", "two")}),
    ],
    ids=["same", "comment", "version", "test", "host", "script", "file", "setting", "note", "pin", "config"],
)
def test_an_output_differs_where_its_build_does(
    recipe: str, files: dict[str, str], configs: dict[str, str], expected: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    before = feedstock(tmp_path / "a", RECIPE, files=FILES, configs=CONFIGS)
    after = feedstock(tmp_path / "b", recipe, files={**FILES, **files}, configs={**CONFIGS, **configs})
    assert changed_outputs(before, after) == expected


def test_a_copy_with_another_recipe_leaves_the_feedstock_alone(tmp_path: Path) -> None:
    before = feedstock(tmp_path / "a", RECIPE, files=FILES, configs=CONFIGS)
    with with_recipe_text(before, RECIPE.replace('"1"', '"2"')) as after:
        assert changed_outputs(before, after) == BOTH
        assert after.root != before.root
    assert before.meta.read_text() == RECIPE
    with pytest.raises(KilnError), with_recipe_text(before, "package: [") as after:
        changed_outputs(before, after)
