"""A channel in a folder is written below that folder, whatever leads out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import NotWritable
from kiln.publish.stores.folder import FolderStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize(
    "act",
    [
        lambda store, _: store.write("linux-64/new", b"x"),
        lambda store, file: store.store_package(file, "linux-64/new", ""),
        lambda store, _: store.remove("linux-64/precious"),
        lambda store, _: store.move("noarch/own", "linux-64/new"),
        lambda store, _: store.move("linux-64/precious", "noarch/new"),
        lambda store, _: store.replace_indexes({"linux-64": {"repodata.json": b"{}"}}),
        lambda store, _: store.write("noarch/../../elsewhere/new", b"x"),
    ],
)
def test_a_subdir_that_leads_out_of_the_channel_is_refused(
    tmp_path: Path, act: Callable[[FolderStore, Path], object]
) -> None:
    channel, elsewhere = tmp_path / "channel", tmp_path / "elsewhere"
    (channel / "noarch").mkdir(parents=True)
    elsewhere.mkdir()
    for file in (elsewhere / "precious", channel / "noarch" / "own"):
        file.write_text("kept")
    (channel / "linux-64").symlink_to(elsewhere)
    with pytest.raises(NotWritable):
        act(FolderStore(root=channel), channel / "noarch" / "own")
    assert [path.name for path in elsewhere.iterdir()] == ["precious"]
    assert (channel / "noarch" / "own").exists()


def test_a_package_in_a_channel_does_not_change_with_the_file_that_was_built(tmp_path: Path) -> None:
    built, channels = tmp_path / "built-1-0.conda", [FolderStore(root=tmp_path / name) for name in ("one", "other")]
    built.write_bytes(b"built")
    for channel in channels:
        channel.store_package(built, "noarch/built-1-0.conda", "")
    built.write_bytes(b"other")
    (channels[1].root / "noarch/built-1-0.conda").write_bytes(b"third")
    assert channels[0].read("noarch/built-1-0.conda") == b"built"


@pytest.mark.parametrize("name", [".kiln", ".kiln/lock"])
def test_kilns_folder_in_a_channel_must_not_be_a_link(tmp_path: Path, name: str) -> None:
    channel, elsewhere = tmp_path / "channel", tmp_path / "elsewhere"
    (channel / name).parent.mkdir(parents=True)
    elsewhere.mkdir()
    (channel / name).symlink_to(elsewhere)
    with pytest.raises(NotWritable, match="is a link"), FolderStore(root=channel).exclusive_lock():
        pass
    assert list(elsewhere.iterdir()) == []
