"""rerender writes and removes files in the feedstock only, whatever links lead out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln import cli
from kiln.errors import NotWritable
from tests.feedstocks import written

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = "package:\n  name: small\n  version: 1\nbuild:\n  number: 0\n"


@pytest.mark.parametrize("name", [".ci_support", ".github", ".github/workflows"])
@pytest.mark.parametrize("inner", [False, True])
def test_rerender_writes_and_removes_nothing_through_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, inner: bool
) -> None:
    root = written(tmp_path / "feedstock", RECIPE).root
    (root / "build-locally.py").write_text("import kiln\n")
    elsewhere = root / "docs" if inner else tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious.yaml").write_text("kept\n")
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).symlink_to(elsewhere)
    assert cli.run(["-C", str(root), "rerender"]) == NotWritable.exit_code
    said = capsys.readouterr().err
    assert f"{root / name} is a link" in said
    assert str(elsewhere) in said
    assert [path.name for path in elsewhere.iterdir()] == ["precious.yaml"]
    assert name == ".ci_support" or not (root / ".ci_support").exists()
