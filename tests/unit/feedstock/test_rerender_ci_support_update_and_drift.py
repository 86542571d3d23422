"""rerender writes and removes files in the feedstock only, whatever links lead out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import NotWritable
from kiln.cli import main
from kiln.cli.main import run
from kiln.feedstock import pinning, rerender
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = "package:\n  name: small\n  version: 1\nbuild:\n  number: 0\n"
META = "package:\n  name: a\n  version: '1'\nrequirements:\n  host:\n    - zlib\n"


@pytest.mark.parametrize("name", [".ci_support", ".github", ".github/workflows"])
@pytest.mark.parametrize("inner", [False, True])
def test_rerender_writes_and_removes_nothing_through_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, inner: bool
) -> None:
    root = builders.feedstock(tmp_path / "feedstock", RECIPE).root
    (root / "build-locally.py").write_text("import kiln\n")
    elsewhere = root / "docs" if inner else tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious.yaml").write_text("kept\n")
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).symlink_to(elsewhere)
    assert main.run(["-C", str(root), "rerender"]) == NotWritable.exit_code
    said = capsys.readouterr().err
    assert f"{root / name} is a link" in said
    assert str(elsewhere) in said
    assert [path.name for path in elsewhere.iterdir()] == ["precious.yaml"]
    assert name == ".ci_support" or not (root / ".ci_support").exists()


@pytest.mark.parametrize("own_pinning", [False, True])
def test_changes_since_the_last_rerender_are_counted(tmp_path: Path, *, own_pinning: bool) -> None:
    feedstock = builders.feedstock(tmp_path, META, variants="zlib:\n  - '1'\n")
    if own_pinning:
        settings, file = feedstock.root / "conda-forge.yml", feedstock.recipe / "conda_build_config.yaml"
        settings.write_text(f"{settings.read_text()}exclusive_config_file: recipe/own.yaml\n")
        file.rename(feedstock.recipe / "own.yaml")
    assert run(["-C", str(feedstock.root), "rerender"]) == 0
    assert rerender.matrix_difference(feedstock) == ""
    (feedstock.recipe / ("own.yaml" if own_pinning else "conda_build_config.yaml")).write_text("zlib:\n  - '2'\n")
    assert rerender.matrix_difference(feedstock) == "1 changed"
    feedstock.meta.write_text(META.replace("zlib", "zlib {{"))
    assert rerender.matrix_difference(feedstock) == "", "which the build reports"


def test_a_feedstock_that_needs_a_pinning_is_not_compared(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, META, variants="")
    feedstock.config_folder.mkdir()
    (feedstock.config_folder / "linux_64_.yaml").write_text("zlib:\n- '1'\n")
    assert rerender.matrix_difference(feedstock) == ""


def test_own_values_are_compared_where_a_pinning_is_needed(tmp_path: Path) -> None:
    meta = META.replace("zlib", "zlib\n    - python\n    - other")
    feedstock = builders.feedstock(
        tmp_path, meta, variants="zlib:\n  - '1'\n  - '2'\nother:\n  - True\nabsent:\n  - a\n"
    )
    (feedstock.config_folder / "migrations").mkdir(parents=True)
    values = "zlib:\n- '{}'\nother:\n- true\npython:\n- 3.12.* *_cpython\nchannel_targets:\n- conda-forge main\n"
    for number in (1, 2):
        (feedstock.config_folder / f"linux_64_zlib{number}.yaml").write_text(values.format(number))
    assert pinning.keys_without_value(feedstock)
    assert rerender.matrix_difference(feedstock) == ""
    (feedstock.recipe / "conda_build_config.yaml").write_text("zlib:\n  - '1'\n  - '3'\nother:\n  - true\n")
    assert rerender.matrix_difference(feedstock) == "zlib in 1 of 2 configs"
    migration = "migrator_ts: 1\nzlib:\n  - '2'\n"  # it may have changed the value
    (feedstock.config_folder / "migrations" / "zlib2.yaml").write_text(migration)
    assert rerender.matrix_difference(feedstock) == ""
