"""Each kind of server has its addresses, its token and its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import TokenRefused, UsageError
from kiln.base.http import HttpError
from kiln.publish.servers.servers import Server, ServerApi, ServerCredentials, ServerKind, parse_package_file_name
from kiln.publish.targets import parse_target

if TYPE_CHECKING:
    from pathlib import Path


def server(kind: ServerKind, client_url: str | None = None) -> Server:
    credentials = ServerCredentials(token="s3cr3t")
    return kind.server_class(url="https://host", channel="release", credentials=credentials, client_url=client_url)


@pytest.mark.parametrize(
    ("kind", "published", "staged", "header"),
    [
        (
            ServerKind.ANACONDA,
            "https://conda.anaconda.org/release",
            "https://conda.anaconda.org/release/label/trial",
            {"Authorization": "token s3cr3t"},
        ),
        (
            ServerKind.PREFIX,
            "https://host/release",
            "https://host/trial",
            {"Authorization": "Bearer s3cr3t"},
        ),
        (ServerKind.QUETZ, "https://host/get/release", "https://host/get/trial", {"X-API-Key": "s3cr3t"}),
        (
            ServerKind.ARTIFACTORY,
            "https://host/release",
            "https://host/trial",
            {"Authorization": "Bearer s3cr3t"},
        ),
    ],
)
def test_a_server_has_addresses_and_a_header(
    kind: ServerKind, published: str, staged: str, header: dict[str, str]
) -> None:
    where = server(kind)
    assert (where.channel_url("release"), where.channel_url("trial")) == (published, staged)
    assert where.api.headers == header
    assert "s3cr3t" not in repr(where)
    assert server(kind, "https://mirror/{channel}").channel_url("release") == "https://mirror/release"


@pytest.mark.parametrize(
    ("kind", "method", "path"),
    [
        (ServerKind.ANACONDA, "DELETE", "https://host/channels/release/trial"),
        (ServerKind.PREFIX, "DELETE", "https://host/api/v1/delete/trial/noarch/a-b-1.0-0.conda"),
        (
            ServerKind.QUETZ,
            "DELETE",
            "https://host/api/channels/trial/packages/a-b/versions/noarch/a-b-1.0-0.conda",
        ),
        (ServerKind.ARTIFACTORY, "DELETE", "https://host/trial/noarch/a-b-1.0-0.conda"),
    ],
)
def test_a_package_is_removed_from_a_channel_by_one_request(
    kind: ServerKind, method: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[tuple[str, str]] = []
    monkeypatch.setattr(ServerApi, "send_json_request", lambda _, method, url, **__: requests.append((method, url)))
    server(kind).unlist("noarch/a-b-1.0-0.conda", "trial")
    assert requests == [(method, path)]


def test_the_status_of_a_failed_upload_is_the_librarys_or_that_of_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise HttpError("refused", 401)

    monkeypatch.setattr(ServerApi, "send_json_request", refuse)
    assert server(ServerKind.QUETZ)._upload_failure_status("upload failed (HTTP 409)") == 409
    assert server(ServerKind.QUETZ)._upload_failure_status("upload failed") == 401
    assert server(ServerKind.PREFIX)._upload_failure_status("upload failed") is None


def test_a_name_with_dashes_is_read_from_the_end() -> None:
    assert parse_package_file_name("noarch/a-b-1.0-h0_0.conda") == ("a-b", "1.0", "h0_0")


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
