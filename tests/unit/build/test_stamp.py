"""A finished package says what conda-build would have it say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.archive import read_info
from kiln.build.stamp import stamp
from tests.packages import conda_package

if TYPE_CHECKING:
    from pathlib import Path

INDEX = {"name": "app", "depends": ["lib ==1.0 h_0", "python >=3"], "constrains": ["zork ==2"]}


def test_fields_are_laid_over_the_index_and_specs_are_conda_builds(tmp_path: Path) -> None:
    old = conda_package(tmp_path / "old.conda", {"index.json": INDEX, "run_exports.json": {"weak": ["lib ==1.0"]}})
    stamp(old, tmp_path / "new.conda", index={"track_features": "cpu"})
    assert read_info(tmp_path / "new.conda", "index.json") == {
        "name": "app",
        "depends": ["lib 1.0 h_0", "python >=3"],
        "constrains": ["zork 2"],
        "track_features": "cpu",
    }
    assert read_info(tmp_path / "new.conda", "run_exports.json") == {"weak": ["lib 1.0"]}
