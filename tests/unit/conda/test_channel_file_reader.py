"""A channel's files are read within bounds, and every fault is reported."""

from __future__ import annotations

import http.client
import io
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import LimitExceeded, UsageError
from kiln.conda.channel import channel_reader, read_stream_within_limits
from kiln.conda.rattler import limits
from kiln.conda.rattler.limits import Limits

if TYPE_CHECKING:
    from pathlib import Path


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
    with (
        limits.override_limits(Limits(index=1000)),
        pytest.raises(LimitExceeded, match=r"larger than 1\.0 kB"),
    ):
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
