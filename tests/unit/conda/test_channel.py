"""A channel in a folder has a subdir for each platform that packages were built for."""

from __future__ import annotations

import http.client
import io
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import LimitExceeded, UsageError
from kiln.conda.channel import LocalChannel, channel_reader, read_stream_within_limits
from kiln.conda.rattler import client, limits
from kiln.conda.rattler.limits import Limits
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def indexings(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return whether each indexing reads all packages again."""
    calls: list[bool] = []

    def call(_operation: str, *, root: str, force: bool) -> None:
        calls.append(force)

    monkeypatch.setattr(client, "run_operation", call)
    return calls


def indexed_channel(root: Path) -> LocalChannel:
    """Return a channel with an index."""
    channel = LocalChannel(root=root / "channel")
    builders.write_files(channel.root, {f"{subdir}/repodata.json": "{}" for subdir in channel.subdirs})
    return channel


def package(folder: Path, name: str, content: str = "") -> tuple[Path, str]:
    """Return a package file with its subdir."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}-1-0.conda").write_text(content)
    return folder / f"{name}-1-0.conda", "noarch"


def test_packages_that_were_only_added_do_not_have_the_others_read_again(tmp_path: Path, indexings: list[bool]) -> None:
    channel = indexed_channel(tmp_path)
    channel.add([package(tmp_path / "made", "a")], index=False)
    channel.add([package(tmp_path / "made", "b")], index=False)
    assert (channel.is_unindexed, indexings) == (True, [])
    channel.repair_index()
    channel.repair_index()
    assert (channel.is_unindexed, indexings) == (False, [False])


def test_after_a_package_was_replaced_all_are_read_again(tmp_path: Path, indexings: list[bool]) -> None:
    channel = indexed_channel(tmp_path)
    channel.add([package(tmp_path / "made", "a")], index=False)
    channel.add([package(tmp_path / "again", "a", "other")], index=False)
    channel.add([package(tmp_path / "made", "b")], index=False)
    channel.repair_index()
    assert indexings == [True]


def test_after_an_indexing_that_did_not_end_all_are_read_again(
    tmp_path: Path, indexings: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    channel = indexed_channel(tmp_path)
    channel.add([package(tmp_path / "made", "a")], index=False)
    with monkeypatch.context() as patch:
        patch.setattr(client, "run_operation", killed)
        with pytest.raises(KeyboardInterrupt):
            channel.repair_index()
    assert channel.is_unindexed
    channel.repair_index()
    assert (channel.is_unindexed, indexings) == (False, [True])


def test_the_folders_of_platforms_are_its_subdirs_and_no_others(tmp_path: Path) -> None:
    for name in ("noarch", "linux-aarch64", "linux-own", "win-64", "logs", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "osx-64").touch()
    assert LocalChannel(root=tmp_path).subdirs == ("linux-64", "noarch", "linux-aarch64", "linux-own", "win-64")


def test_packages_for_all_platforms_are_found(tmp_path: Path) -> None:
    places = ("linux-64/a-1-0.conda", "linux-aarch64/b-1-0.conda", "noarch/c-1-0.conda", "logs/d-1-0.conda")
    builders.write_files(tmp_path, dict.fromkeys(places, ""))
    assert LocalChannel(root=tmp_path).package_names() == {"a", "b", "c"}


@pytest.mark.parametrize(
    "channel",
    [
        "http://",
        "http:///x",
        "http://[::1",
        "http://[x]/",
        "http://a b/c",
        "http://host:port/",
        "http://h:99999/",
        "https://?",
    ],
)
def test_an_invalid_address_is_refused(channel: str) -> None:
    with pytest.raises(UsageError, match="is not the URL of a channel"):
        channel_reader(channel)


def test_a_file_larger_than_an_index_may_be_is_refused() -> None:
    with limits.override_limits(Limits(index=1000)), pytest.raises(LimitExceeded, match=r"larger than 1\.0 kB"):
        read_stream_within_limits(io.BytesIO(bytes(1001)), "it")
    with limits.override_limits(Limits(index=1000)):
        assert len(read_stream_within_limits(io.BytesIO(bytes(1000)), "it")) == 1000


def test_a_cut_response_is_refused() -> None:
    with pytest.raises(http.client.IncompleteRead):
        read_stream_within_limits(io.BytesIO(b"half"), "it", 8)


def test_a_folder_is_read_by_its_path_or_its_url(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "file").write_text("content")
    for channel in (str(folder), folder.as_uri()):
        assert channel_reader(channel)("file") == b"content"
        assert channel_reader(channel)("nothing") is None
    with pytest.raises(UsageError, match="channel not found"):
        channel_reader(str(folder / "nope"))
