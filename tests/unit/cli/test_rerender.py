"""``kiln rerender`` writes a feedstock's files, or checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.base.errors import MatrixDrift
from kiln.cli.main import run
from tests.feedstocks import written

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

META = "package:\n  name: a\n  version: '1'\n"


def test_written_files_pass_the_check_until_the_recipe_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feedstock = written(tmp_path, META + "requirements:\n  host:\n    - zlib\n", variants="zlib:\n  - '1'\n")
    words = ["-C", str(feedstock.root), "rerender"]
    assert run(words) == 0
    assert run([*words, "--check"]) == 0
    assert "1 config in" in capsys.readouterr().out
    (feedstock.recipe / "conda_build_config.yaml").write_text("zlib:\n  - '1'\n  - '2'\n")
    before = sorted(feedstock.config_folder.iterdir())
    assert run([*words, "--check"]) == MatrixDrift.exit_code
    assert "is not up to date with the recipe" in capsys.readouterr().err
    assert sorted(feedstock.config_folder.iterdir()) == before
