"""Packages are tested with the other packages of their channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.install.package_tests import channels_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("subdir", "index", "is_channel"),
    [
        ("linux-64", "repodata.json", True),
        ("noarch", "repodata.json.zst", True),
        ("noarch", "index.html", False),
        ("downloads", "repodata.json", False),
    ],
)
def test_the_channel_of_a_package_is_the_indexed_folder_around_it(
    tmp_path: Path, subdir: str, index: str, is_channel: bool
) -> None:
    folder = tmp_path / "a channel" / subdir
    folder.mkdir(parents=True)
    (folder / index).write_text("{}")
    assert channels_of(folder / "a-1-0.conda") == (((tmp_path / "a channel").as_uri(),) if is_channel else ())
