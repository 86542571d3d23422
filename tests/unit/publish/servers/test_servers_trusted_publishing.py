"""The identity of a CI job is for one server, is never sent unencrypted, and is exchanged anew in time."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import TokenRefused
from kiln.base.http import HttpError
from kiln.publish.servers import servers
from kiln.publish.servers.servers import ServerKind, TrustedPublisher, oidc_audience, request_github_id_token
from kiln.publish.servers.target import ServerTarget
from kiln.publish.targets import parse_target

if TYPE_CHECKING:
    from pathlib import Path

GITHUB = {
    servers.REQUEST_URL: "https://runner.example/identity?api-version=2.0",
    servers.REQUEST_TOKEN: "r3quest",
}
GITLAB = {servers.GITLAB_TOKEN: "h.b.s"}


@pytest.mark.parametrize(
    ("url", "audience"),
    [
        ("https://prefix.dev", "prefix.dev"),
        ("https://beta.prefix.dev/api", "prefix.dev"),
        ("https://evil-prefix.dev", "evil-prefix.dev"),
        ("https://prefix.dev.example", "prefix.dev.example"),
        ("https://conda.example:8443", "conda.example"),
    ],
)
def test_an_identity_is_made_for_the_server_it_is_sent_to(url: str, audience: str) -> None:
    assert oidc_audience(url) == audience


def target(environment: dict[str, str], tmp_path: Path, kind: ServerKind = ServerKind.PREFIX) -> ServerTarget:
    target = parse_target(f"{kind.value}:https://host/channel", environment, staging="aside", journals=tmp_path)
    assert isinstance(target, ServerTarget)
    return target


def test_the_identity_is_that_of_github_or_gitlab(tmp_path: Path) -> None:
    on_github, on_gitlab = (target(given, tmp_path).server.credentials for given in (GITHUB, GITLAB))
    assert isinstance(on_github, TrustedPublisher)
    assert isinstance(on_github.id_token, functools.partial)
    assert on_github.id_token.args == (GITHUB[servers.REQUEST_URL], "r3quest")
    assert isinstance(on_gitlab, TrustedPublisher)
    assert on_gitlab.id_token("host") == "h.b.s"
    assert "r3quest" not in repr(on_github)
    assert "h.b.s" not in repr(on_gitlab)


def test_a_stored_token_precedes_the_identity(tmp_path: Path) -> None:
    stored = target({**GITHUB, "PREFIX_API_KEY": "stored"}, tmp_path).server
    assert stored.api.headers == {"Authorization": "Bearer stored"}
    (tmp_path / "auth.json").write_text('{"host": {"BearerToken": "kept"}}')
    kept = target({**GITHUB, "RATTLER_AUTH_FILE": str(tmp_path / "auth.json")}, tmp_path).server
    assert kept.api.headers == {"Authorization": "Bearer kept"}


def test_a_server_that_trusts_no_jobs_gets_no_identity(tmp_path: Path) -> None:
    for kind in set(ServerKind) - {ServerKind.PREFIX}:
        with pytest.raises(TokenRefused, match="no token for") as refused:
            target(GITHUB, tmp_path, kind)
        assert "id-token" not in str(refused.value.hint)


def test_the_identity_is_not_requested_unencrypted() -> None:
    with pytest.raises(TokenRefused, match="is not a URL of https"):
        request_github_id_token("http://runner.example/identity", "r3quest", "prefix.dev")


def test_a_token_is_used_for_two_minutes_and_never_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bytes | HttpError] = [b"first\n", HttpError("the connection was reset"), b"second\n"]
    now = [0.0]

    def answer(*_: object) -> bytes:
        result = answers.pop(0)
        if isinstance(result, HttpError):
            raise result
        return result

    monkeypatch.setattr(servers, "_request_with_size_limit", answer)
    publisher = TrustedPublisher(url="https://host", id_token=lambda _: "h.b.s", clock=lambda: now[0])
    assert (publisher.token, publisher.token) == ("first", "first")
    now[0] = servers.RENEWAL
    with pytest.raises(HttpError):
        _ = publisher.token
    assert publisher.token == "second", "a failed exchange leaves no old token in use"
    assert publisher.text_without_token("a second of it") == "a *** of it"
    assert answers == []


@pytest.mark.parametrize("answer", [b"", b"two words", b"a\r\nX-Evil: 1", "\u00e9".encode()])
def test_an_answer_that_no_header_can_carry_is_no_token(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_request_with_size_limit", lambda *_: answer)
    publisher = TrustedPublisher(url="https://host", id_token=lambda _: "h.b.s")
    with pytest.raises(HttpError, match="answered without a token"):
        _ = publisher.token
