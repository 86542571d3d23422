"""Credentials of channels: taken out of URLs, and put nowhere but into requests to their own server."""

from __future__ import annotations

import base64

import pytest

from kiln.base import http, masking


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
