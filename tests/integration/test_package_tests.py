"""``kiln test``: packages are installed into clean prefixes and tested."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.base.errors import TestsFailed, UsageError
from kiln.cli.main import run
from kiln.feedstock.config_file import read_config
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import pins, render
from tests import builders
from tests.packages import release_package

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

META = """
package:
  name: little
  version: "1"
build:
  number: 0
test:
  commands:
    - test "$(cat $PREFIX/share/little)" = little
    - grep -q {word} $PREFIX/share/little
"""


def package_of(folder: Path, word: str) -> Path:
    """Write a feedstock whose test looks for a word; return the package that it renders."""
    feedstock = builders.feedstock(folder / "feedstock", META.replace("{word}", word))
    assert run(["-C", str(feedstock.root), "rerender"]) == 0
    config = read_config(feedstock, next(feedstock.config_folder.glob("*.yaml")).stem)
    output = pins.close_static_pins(render.render(recipe_feedstock.load(feedstock.root), config)).outputs[0]
    return release_package(folder / "built", "little", build=output.build_string)


def test_a_failed_test_is_reported_with_its_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = package_of(tmp_path, "large")
    assert run(["-C", str(tmp_path / "feedstock"), "test", str(package)]) == TestsFailed.exit_code
    assert "the tests of little fail with exit code 1" in capsys.readouterr().err


def test_a_package_of_no_config_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package_of(tmp_path, "little")
    other = release_package(tmp_path / "built", "other")
    assert run(["-C", str(tmp_path / "feedstock"), "test", str(other)]) == UsageError.exit_code
    assert "no config of" in capsys.readouterr().err
