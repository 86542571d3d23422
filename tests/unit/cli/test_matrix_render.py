"""Rendered configs are shown as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kiln.base.errors import UnknownConfig
from kiln.cli import matrix
from kiln.cli.main import make_pasteable, run
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

META = """
package:
  name: small
  version: "1.2"
build:
  number: 3
  script: make install
requirements:
  run:
    - python >=3.10
    - numpy
about:
  license: MIT
test:
  commands:
    - small --version
"""


def test_a_config_is_shown_with_its_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = builders.feedstock(tmp_path, META)
    assert run(["-C", str(feedstock.root), "rerender"]) == 0
    capsys.readouterr()
    assert run(["-C", str(feedstock.root), "render"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("linux_64_")
    assert "  small 1.2 3  [linux-64]" in lines
    assert "    run         python >=3.10, numpy" in lines
    assert "    tests       small --version" in lines


def test_configs_are_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = builders.feedstock(tmp_path, META)
    assert run(["-C", str(feedstock.root), "rerender"]) == 0
    capsys.readouterr()
    assert run(["-C", str(feedstock.root), "render", "--json"]) == 0
    (outputs,) = json.loads(capsys.readouterr().out).values()
    assert [(output["name"], output["version"]) for output in outputs] == [("small", "1.2")]


def test_a_feedstock_without_configs_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = builders.feedstock(tmp_path, META)
    assert run(["-C", str(feedstock.root), "render"]) == UnknownConfig.exit_code
    assert make_pasteable("kiln rerender writes them", tmp_path) in capsys.readouterr().err


def test_items_are_wrapped_but_never_inside_a_requirement() -> None:
    lines = matrix.labeled_lines("run", [f"package-{number} >=1.{number},<2" for number in range(12)])
    assert len(lines) > 1
    assert all(line.startswith("    ") and len(line) <= 110 for line in lines)
    assert all(line.rstrip(",").endswith("<2") for line in lines)


def test_separate_items_keep_their_lines() -> None:
    assert matrix.labeled_lines("tests", ["a\nb", "c"], apart=True) == [
        "    tests       a\n                b",
        "                c",
    ]
    assert matrix.labeled_lines("tests", []) == []


FAULTY = "package:\n  name: a\n  version: 1\nbuild:\n  numbr: 2\n  pin_depends: strict\n"


def test_keys_at_fault_are_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = builders.feedstock(tmp_path, f"{FAULTY}foo: 1\n")
    feedstock.config_folder.mkdir(exist_ok=True)
    (feedstock.config_folder / "linux_64_.yaml").write_text("target_platform:\n- linux-64\n")
    assert run(["-C", str(tmp_path), "render", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["linux_64_"][0]["build_number"] == 0
    assert printed.err.splitlines() == [
        "warning: recipe/meta.yaml:5:3: unknown key 'build/numbr' (did you mean 'number'?)",
        "warning: recipe/meta.yaml:6:3: the engine rattler-build does not have 'build/pin_depends'",
        "warning: recipe/meta.yaml:7:1: unknown section 'foo'",
    ]
