"""Commands that need the clone say so if pip has installed kiln; lists of packages are found in both."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.base import environment
from kiln.base.errors import MissingTool

ROOT = Path(__file__).parents[3]


def test_this_clone_is_one() -> None:
    environment.require_clone("a test")
    assert environment.requirements_file("run.txt") == ROOT / "requirements" / "run.txt"


def test_an_installed_package_is_not_a_clone_and_has_its_own_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "PACKAGE", tmp_path / "kiln")
    assert environment.requirements_file("run.txt") == tmp_path / "kiln" / "requirements" / "run.txt"
    with pytest.raises(MissingTool, match="a test needs a clone of kiln's repository") as caught:
        environment.require_clone("a test", tmp_path)
    assert "FEEDSTOCK" in caught.value.hint
