"""One download: written and hashed at once, with the credentials of its address in a header."""

from __future__ import annotations

import hashlib
import io
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from kiln.base import http
from kiln.base.errors import DiskFull, DownloadFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DATA = b"\x1f\x8b\x08" + b"data" * 300_000


def test_a_file_is_written_and_hashed(tmp_path: Path) -> None:
    (tmp_path / "a b.tgz").write_bytes(DATA)
    reports: list[str] = []
    hashes = http.fetch_and_hash(
        (tmp_path / "a b.tgz").as_uri(),
        tmp_path,
        algorithms=("sha1", "sha512"),
        progress=reports.append,
        target=tmp_path / "copy",
    )
    assert hashes == {
        "sha1": hashlib.sha1(DATA, usedforsecurity=False).hexdigest(),
        "sha512": hashlib.sha512(DATA).hexdigest(),
    }
    assert (tmp_path / "copy").read_bytes() == DATA
    assert reports[-1] == "1.2 MB of 1.2 MB"


@pytest.mark.parametrize("size", [len(DATA), 100])  # the last bytes are written when the file is closed
def test_a_full_disk_is_no_failed_download(size: int, tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(DATA[:size])
    with pytest.raises(DiskFull):
        http.fetch_and_hash("a.tgz", tmp_path, algorithms=("sha1",), target=Path("/dev/full"))


def test_the_password_of_an_address_is_sent_in_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[str, Mapping[str, str]]] = []

    class Response(io.BytesIO):
        headers: Mapping[str, str] = {}

    @contextmanager
    def opened(url: str, *, headers: Mapping[str, str]) -> Iterator[IO[bytes]]:
        requests.append((url, headers))
        yield Response(DATA)

    monkeypatch.setattr(http, "send_request", opened)
    http.fetch_and_hash("https://me:p%40ss@example.org:8080/a.tgz?x=1", tmp_path, algorithms=())
    ((url, headers),) = requests
    assert url == "https://example.org:8080/a.tgz?x=1"
    assert headers["Authorization"] == "Basic bWU6cEBzcw=="


def test_a_server_that_cannot_be_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(_url: str, **_more: object) -> None:
        raise http.HttpError("<urlopen error [Errno -2] Name or service not known>")

    monkeypatch.setattr(http, "send_request", opened)
    with pytest.raises(DownloadFailed, match=r"example\.org cannot be reached: Name or service not known"):
        http.fetch_and_hash("https://example.org/a.tgz", tmp_path, algorithms=())
