"""A channel in a folder has a subdir for each platform that packages were built for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.local_channel import Channel

if TYPE_CHECKING:
    from pathlib import Path


def test_the_folders_of_platforms_are_its_subdirs_and_no_others(tmp_path: Path) -> None:
    for name in ("noarch", "linux-aarch64", "linux-own", "win-64", "logs", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "osx-64").touch()
    assert Channel(root=tmp_path).subdirs == ("linux-64", "noarch", "linux-aarch64", "linux-own", "win-64")


def test_packages_for_all_platforms_are_found(tmp_path: Path) -> None:
    for place in ("linux-64/a-1-0.conda", "linux-aarch64/b-1-0.conda", "noarch/c-1-0.conda", "logs/d-1-0.conda"):
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).touch()
    assert Channel(root=tmp_path).package_names() == {"a", "b", "c"}
