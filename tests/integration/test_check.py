"""``kiln check``: packages that lie there are installed and tested."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kiln import load, render
from kiln.cli import run
from kiln.errors import TestsFailed, UsageError
from kiln.expand import read
from tests.feedstocks import written
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


def made(folder: Path, word: str) -> Path:
    """A feedstock whose test looks for a word, and the package that it renders."""
    feedstock = written(folder / "feedstock", META.replace("{word}", word))
    assert run(["-C", str(feedstock.root), "rerender"]) == 0
    cell = read(feedstock, next(feedstock.configs.glob("*.yaml")).stem)
    output = render.finalise(render.render(load.find(feedstock.root), cell)).outputs[0]
    return release_package(folder / "built", "little", build=output.build_string)


def test_a_package_is_installed_and_its_tests_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = made(tmp_path, "little")
    capsys.readouterr()
    assert run(["-C", str(tmp_path / "feedstock"), "check", str(package), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(each["package"], each["verdict"], each["tests"]) for each in told] == [("little", "passed", 2)]


def test_a_test_that_fails_is_told_with_its_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = made(tmp_path, "large")
    assert run(["-C", str(tmp_path / "feedstock"), "check", str(package)]) == TestsFailed.exit_code
    assert "the tests of little fail with exit code 1" in capsys.readouterr().err


def test_a_package_of_no_cell_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, "little")
    other = release_package(tmp_path / "built", "other")
    assert run(["-C", str(tmp_path / "feedstock"), "check", str(other)]) == UsageError.exit_code
    assert "no cell of" in capsys.readouterr().err
