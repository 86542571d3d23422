"""Credentials of channels: taken out of URLs, and put nowhere but into requests to their own server."""

from __future__ import annotations

import base64
import hashlib
import io
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from kiln.base import http, masking
from kiln.base.errors import DiskFull, DownloadFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@pytest.mark.parametrize(
    ("given", "bare"),
    [
        ("https://user:p%40ss-word@host/channel", "https://host/channel"),
        ("https://host/t/tok-12345/channel", "https://host/channel"),
        ("http://host:8080/conda/t/tok-12345/channel/", "http://host:8080/conda/channel/"),
        ("https://host/t/tok-12345", "https://host"),
        ("https://a@host/t/tok-12345/channel", "https://host/channel"),
        ("https://host/channel", "https://host/channel"),
        ("conda-forge", "conda-forge"),
        ("file:///t/not/a/token", "file:///t/not/a/token"),
    ],
)
def test_a_channel_is_named_without_its_credentials(given: str, bare: str) -> None:
    assert http.register_credentials((given,)) == (bare,)
    assert given == bare or http.add_credentials_to_urls((bare,)) == (given,)


def test_credentials_are_sent_to_their_channel_alone() -> None:
    http.register_credentials(("https://me:p%40ss-word@one.example/private", "https://two.example/t/tok-98765/lab"))
    header = {"Authorization": f"Basic {base64.b64encode(b'me:p@ss-word').decode()}"}
    assert http.request_headers("https://one.example/private/noarch/repodata.json") == header
    for other in ("https://one.example/private-too/x", "https://one.example/", "https://x.example/private/x"):
        assert http.request_headers(other) == {}
    url = "https://two.example/lab/noarch/repodata.json"
    assert http.url_with_token(url) == "https://two.example/t/tok-98765/lab/noarch/repodata.json"
    assert http.url_with_token("https://two.example/labs/x") == "https://two.example/labs/x"


def test_rattler_gets_them_in_a_file_of_its_form() -> None:
    channels = http.register_credentials(
        ("https://me:pw-12345@file.example/c", "https://token.example/t/tok-55555/c", "x")
    )
    assert http.rattler_auth_file_content(channels) == {
        "file.example": {"BasicHTTP": {"username": "me", "password": "pw-12345"}},
        "token.example": {"CondaToken": "tok-55555"},
    }
    assert http.rattler_auth_file_content(("conda-forge",)) == {}


def test_they_are_masked_from_then_on_and_not_shown_by_accident() -> None:
    (bare,) = http.register_credentials(("https://me:pw-of-mine@masked.example/c",))
    assert masking.masked(f"cannot open {bare} with pw-of-mine") == f"cannot open {bare} with ***"
    assert "pw-of-mine" not in repr(http.ChannelCredentials.from_channel_url("https://me:pw-of-mine@masked.example/c"))


DATA = b"\x1f\x8b\x08" + b"data" * 300_000


def test_a_file_is_written_and_hashed(tmp_path: Path) -> None:
    (tmp_path / "a b.tgz").write_bytes(DATA)
    reports: list[tuple[int, int | None]] = []
    hashes = http.fetch_and_hash(
        (tmp_path / "a b.tgz").as_uri(),
        tmp_path,
        algorithms=("sha1", "sha512"),
        progress=lambda done, size: reports.append((done, size)),
        target=tmp_path / "copy",
    )
    assert hashes == {
        "sha1": hashlib.sha1(DATA, usedforsecurity=False).hexdigest(),
        "sha512": hashlib.sha512(DATA).hexdigest(),
    }
    assert (tmp_path / "copy").read_bytes() == DATA
    assert reports[-1] == (len(DATA), len(DATA))


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
