"""Each kind of server has its addresses, its token and its requests."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import TokenRefused, UsageError
from kiln.base.http import HttpError
from kiln.publish.model import Journal
from kiln.publish.servers import servers
from kiln.publish.servers.servers import (
    Server,
    ServerApi,
    ServerCredentials,
    ServerKind,
    TrustedPublisher,
    oidc_audience,
    request_github_id_token,
)
from kiln.publish.servers.target import ServerTarget
from kiln.publish.targets import parse_target
from tests.unit.publish.test_transaction import package

if TYPE_CHECKING:
    from pathlib import Path


def server(kind: ServerKind, client_url: str | None = None) -> Server:
    credentials = ServerCredentials(token="s3cr3t")
    return kind.server_class(url="https://host", channel="release", credentials=credentials, client_url=client_url)


H, A, P = "https://host", ServerKind.ANACONDA, ServerKind.PREFIX
BEARER = "Authorization: Bearer s3cr3t"
MAIN = "https://conda.anaconda.org/release"
KINDS = [  # where clients read, also the channel for staging; the header; how a package is removed
    (A, MAIN, f"{MAIN}/label/trial", "Authorization: token s3cr3t", "channels/release/trial"),
    (P, f"{H}/release", f"{H}/trial", BEARER, "api/v1/delete/trial/noarch/{}"),
    (ServerKind.ARTIFACTORY, f"{H}/release", f"{H}/trial", BEARER, "trial/noarch/{}"),
    (
        ServerKind.QUETZ,
        f"{H}/get/release",
        f"{H}/get/trial",
        "X-API-Key: s3cr3t",
        "api/channels/trial/packages/a-b/versions/noarch/{}",
    ),
]


@pytest.mark.parametrize(("kind", "published", "staged", "header", "deletion"), KINDS)
def test_a_server_has_addresses_a_header_and_a_request_that_removes_a_package(
    kind: ServerKind, published: str, staged: str, header: str, deletion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = server(kind)
    assert (where.channel_url("release"), where.channel_url("trial")) == (published, staged)
    assert [": ".join(item) for item in where.api.headers.items()] == [header]
    assert "s3cr3t" not in repr(where)
    assert server(kind, "https://mirror/{channel}").channel_url("release") == "https://mirror/release"
    requests: list[tuple[str, str]] = []
    monkeypatch.setattr(ServerApi, "send_json_request", lambda _, method, url, **__: requests.append((method, url)))
    where.unlist("noarch/a-b-1.0-0.conda", "trial")
    assert requests == [("DELETE", f"https://host/{deletion.format('a-b-1.0-0.conda')}")]


def test_the_status_of_a_failed_upload_is_the_librarys_or_that_of_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise HttpError("refused", 401)

    monkeypatch.setattr(ServerApi, "send_json_request", refuse)
    assert server(ServerKind.QUETZ)._upload_failure_status("upload failed (HTTP 409)") == 409
    assert server(ServerKind.QUETZ)._upload_failure_status("upload failed") == 401
    assert server(ServerKind.PREFIX)._upload_failure_status("upload failed") is None


def test_credentials_of_another_host_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "auth.json"
    file.write_text('{"*.example": {"BearerToken": "t"}}')
    assert ServerCredentials.from_file(file, "https://a.example").token == "t"
    with pytest.raises(TokenRefused, match="no token for elsewhere"):
        ServerCredentials.from_file(file, "https://elsewhere")
    with pytest.raises(TokenRefused):
        ServerCredentials.from_file(tmp_path / "missing.json", "https://a.example")


@pytest.mark.parametrize("kind", ServerKind)
@pytest.mark.parametrize(
    "channel", ["..", ".", "", "--help", "-x", "a b", "a?b", "a#b", "a%2e", ".hidden", "a\nb", "ä"]
)
def test_a_name_that_would_lead_elsewhere_is_not_a_channel(kind: ServerKind, channel: str, tmp_path: Path) -> None:
    environment = {kind.server_class.token_variable: "s3cr3t"}
    for name in (f"{kind.value}:https://host/{channel}", f"{kind.value}:{channel}"):
        with pytest.raises(UsageError, match="is not a channel of"):
            parse_target(name, environment, journals=tmp_path)


GITHUB = {servers.REQUEST_URL: "https://runner.example/identity?api-version=2.0", servers.REQUEST_TOKEN: "r3quest"}
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


def test_the_platforms_are_those_of_the_feedstock_and_of_an_interrupted_publication(tmp_path: Path) -> None:
    kind = ServerKind.QUETZ
    target = parse_target(
        "quetz:https://example.org/channel",
        {kind.server_class.token_variable: "token"},
        staging="aside",
        journals=tmp_path / "journals",
        subdirs=("linux-aarch64",),
    )
    assert isinstance(target, ServerTarget)
    assert target.client.subdirs == {"linux-aarch64"}
    _, entry = package(tmp_path, "lib", subdir="linux-ppc64le")
    target.journal.write(Journal.from_entries([entry], {}))
    assert target.client.subdirs == {"linux-aarch64", "linux-ppc64le"}
