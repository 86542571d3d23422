"""Packages are tested with the other packages of their channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UnsupportedPlatform
from kiln.build.test.tester import channel_containing_package, find_output_of_package, require_runnable_package
from kiln.feedstock import matrix, rerender
from tests import builders

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
    assert channel_containing_package(folder / "a-1-0.conda") == (
        ((tmp_path / "a channel").as_uri(),) if is_channel else ()
    )


def test_a_package_is_tested_as_the_platform_of_its_folder_renders_it(tmp_path: Path) -> None:
    meta = "package:\n  name: a\n  version: 1\nbuild:\n  string: same\n"
    forge = "provider:\n  linux_64: default\n  linux_aarch64: default\n  osx_64: null\n  win_64: null\n"
    meta += "requirements:\n  build:\n    - {{ compiler('c') }}\n"
    feedstock = builders.feedstock(tmp_path / "feedstock", meta, "", forge)
    rerender.write_ci_support(feedstock, matrix.configs(feedstock))
    for subdir in ("linux-64", "linux-aarch64"):
        rendered, output = find_output_of_package(feedstock, tmp_path / "channel" / subdir / "a-1-same.conda")
        assert (rendered.config.platform, output.subdir) == (subdir, subdir)
    assert find_output_of_package(feedstock, tmp_path / "a-1-same.conda")[1].subdir == "linux-64"


def test_a_package_whose_programs_do_not_run_here_is_refused(tmp_path: Path) -> None:
    require_runnable_package(tmp_path / "a-1-0.conda", "noarch")
    with pytest.raises(UnsupportedPlatform, match=r"a-1-0\.conda cannot be tested on this machine"):
        require_runnable_package(tmp_path / "a-1-0.conda", "win-64")
