"""Installed files with which conda-build refuses a package end its build, with their names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BuildFailed
from kiln.build.engine import failures
from kiln.build.engine.failures import ENGINE_FOLDER
from kiln.build.engine.worker import refuse_unusable_files

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = {"package": {"name": "app", "version": "1.0"}, "build": {}}
SITE = "lib/python3.11/site-packages"


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """Return the folder of a step whose prefix has two good records, and good links."""
    prefix = prefix_of(tmp_path / "work" / "app-0")
    for name in (f"{SITE}/app-1.0.dist-info/METADATA", f"{SITE}/app_more-3.dist-info/METADATA", "share/x"):
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix / name).touch()
    (prefix / "share" / "own").symlink_to(prefix / "share" / "x")
    (prefix / "share" / "system").symlink_to("/usr/bin/env")
    return tmp_path / "work" / "app-0"


def prefix_of(step: Path) -> Path:
    return step / ENGINE_FOLDER / "rattler-build_app" / "host_env_placehold_placehold"


def test_good_files_are_no_fault(step: Path) -> None:
    refuse_unusable_files(step, RECIPE, by_conda_build_rules=True)


def test_a_record_of_another_version_is_refused(step: Path) -> None:
    (prefix_of(step) / SITE / "app-1.0.dist-info").rename(prefix_of(step) / SITE / "App-0.9.dist-info")
    with pytest.raises(
        ValueError, match=r"App-0\.9\.dist-info/METADATA is of version 0\.9, the package of version 1\.0"
    ):
        refuse_unusable_files(step, RECIPE, by_conda_build_rules=True)


def test_a_record_of_another_package_does_not_count(step: Path) -> None:
    prefix = prefix_of(step)
    (prefix / SITE / "app-1.0.dist-info").rename(prefix / SITE / "app-0.9.dist-info")
    (prefix / "conda-meta").mkdir()
    record = {"files": [f"{SITE}/app-0.9.dist-info/METADATA"]}
    (prefix / "conda-meta" / "app-0.json").write_text(json.dumps(record))
    refuse_unusable_files(step, RECIPE, by_conda_build_rules=True)


def test_files_that_the_recipe_does_not_choose_do_not_count(step: Path) -> None:
    """The prefix of an output with ``files`` has all that the shared step has installed."""
    (prefix_of(step) / "share" / "other").symlink_to(step.parent / "compile" / "work" / "file")
    refuse_unusable_files(step, {**RECIPE, "build": {"files": ["share/x"]}}, by_conda_build_rules=True)


@pytest.mark.parametrize("place", ["bld/rattler-build_app/work", "../compile/work"])
def test_a_link_to_a_folder_of_the_build_is_refused(step: Path, place: str) -> None:
    file = step / ("output" if place.startswith("bld") else "") / place / "file"
    file.parent.mkdir(parents=True)
    file.touch()
    (prefix_of(step) / "share" / "link").symlink_to(file)
    with pytest.raises(ValueError, match=r"share/link is a link to .*/work/file in the build's folder") as caught:
        refuse_unusable_files(step, RECIPE, by_conda_build_rules=True)
    failure = failures.classify_failure(str(caught.value), "")
    assert failure.error is BuildFailed
    assert "copy files in place of links" in failure.hint


def test_faults_are_separated_from_how_many_more_there_are() -> None:
    text = failures.message_naming_files(failures.UNUSABLE_TEXT, list("abcdefg"), separator="; ")
    assert text == "the package would not work: a; b; c; d; e; and 2 more"
