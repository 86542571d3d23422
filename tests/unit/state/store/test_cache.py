"""The folders of finished configs: removed when a killed process has left them, and kept where somebody needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base import files
from kiln.state.store import cache
from kiln.state.store.layout import ArtifactLayout
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def layout(tmp_path: Path) -> ArtifactLayout:
    """Return the layout of a feedstock in which the folders of the config ``a`` are left."""
    layout = ArtifactLayout(root=tmp_path)
    for folder in (layout.work_folder("a"), layout.staging_folder("a")):
        folder.mkdir(parents=True)
        (folder / "file").write_text("")
    return layout


def test_folders_that_a_killed_process_left_of_a_finished_config_are_removed(layout: ArtifactLayout) -> None:
    files.create_empty_file(layout.published_marker_file("a"))
    cache.remove_leftover_work_folders(layout, ["a", "b"])
    assert not [path for path in layout.work_folder("a").parent.iterdir() if path.suffix != ".lock"]


def test_a_folder_without_the_mark_is_kept_for_a_build_from_a_later_step(layout: ArtifactLayout) -> None:
    cache.remove_leftover_work_folders(layout, ["a"])
    assert (layout.work_folder("a") / "file").exists()


def test_a_config_that_is_being_built_keeps_its_folder(layout: ArtifactLayout) -> None:
    files.create_empty_file(layout.published_marker_file("a"))
    with files.held_lock_file(layout.lock_file("a")):
        cache.remove_leftover_work_folders(layout, ["a"])
        assert (layout.work_folder("a") / "file").exists()
    cache.remove_leftover_work_folders(layout, ["a"])
    assert not layout.work_folder("a").exists()


def test_a_changed_variable_of_scripts_changes_the_hashes_of_a_config(tmp_path: Path) -> None:
    def hashes(place: str, values: dict[str, str]) -> cache.InputHashes:
        digest = cache.values_digest(ArtifactLayout(root=tmp_path / place), values)
        return cache.input_hashes(feedstock, "a", recipe="r", engine="rattler-build", where="host", values=digest)

    feedstock = builders.feedstock(tmp_path / "f", "package:\n  name: a\n  version: 1\n")
    (tmp_path / "f/.ci_support").mkdir()
    (tmp_path / "f/.ci_support/a.yaml").write_text("")
    first = hashes("one", {"TOKEN": "1", "FOO": ""})
    assert hashes("one", {"FOO": "", "TOKEN": "1"}) == first
    variants = [{"TOKEN": "2", "FOO": ""}, {"TOKEN": "1"}, {}]
    others = [hashes("one", values) for values in variants] + [hashes("two", {"TOKEN": "1", "FOO": ""})]
    for name in ("key", "shared"):
        assert len({getattr(each, name) for each in [first, *others]}) == len(variants) + 2
    key = ArtifactLayout(root=tmp_path / "one").values_key
    assert (key.stat().st_mode & 0o777, len(key.read_bytes())) == (0o600, cache.KEY_BYTES)
    assert not ArtifactLayout(root=tmp_path / "three").values_key.exists()
