"""Rehearsals are never released."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.errors import ReleaseRefused
from kiln.publish import publish
from tests.packages import conda_package

if TYPE_CHECKING:
    from pathlib import Path


def test_one_rehearsal_among_packages_stops_all(tmp_path: Path) -> None:
    index = {"index.json": {"name": "p", "subdir": "linux-64"}}
    real = conda_package(tmp_path / "real-1-0.conda", index)
    rehearsed = conda_package(tmp_path / "tried-1-0.conda", {**index, "about.json": {"extra": {"rehearsal": True}}})
    with pytest.raises(ReleaseRefused, match=r"tried-1-0\.conda"):
        publish([real, rehearsed], tmp_path / "channel")
    assert not (tmp_path / "channel").exists()
