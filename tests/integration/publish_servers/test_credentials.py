"""Targets on servers, and the tokens that open them."""

from __future__ import annotations

import dataclasses
import http.server
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import HashMismatch, TokenRefused, UsageError
from kiln.base.http import HttpError
from kiln.publish import transaction
from kiln.publish.servers.servers import Artifactory, ServerApi, ServerKind
from kiln.publish.servers.target import ServerTarget
from kiln.publish.targets import parse_target
from tests.channel_server import TOKEN
from tests.integration.publish_servers.helpers import KINDS, channel_on, refuse, release, requests, served

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_token_is_reported_at_once_and_never_shown(server: str, tmp_path: Path, kind: ServerKind) -> None:
    where = channel_on(server, kind, tmp_path, token="wr0ng-token")
    with pytest.raises(TokenRefused) as refused:
        transaction.publish(where, *release(tmp_path), lambda _: None)
    assert "wr0ng" not in f"{refused.value} {where!r}"
    assert len(requests(tmp_path)) <= 1
    assert not (tmp_path / "served" / "trial").is_dir()


def test_a_token_that_may_not_remove_is_reported_and_abort_continues_with_another(server: str, tmp_path: Path) -> None:
    where = channel_on(server, ServerKind.PREFIX, tmp_path)
    with pytest.raises(HashMismatch):
        transaction.publish(where, *release(tmp_path), refuse)
    with pytest.raises(TokenRefused):
        transaction.abort(channel_on(server, ServerKind.PREFIX, tmp_path, token="wr0ng-token"))
    assert len(served(tmp_path, "trial")) == 2
    assert len(transaction.abort(where)) == 2
    assert served(tmp_path, "trial") == {}


@pytest.mark.parametrize(
    ("named", "environment", "kind"),
    [
        ("quetz:https://quetz.example/c", {}, TokenRefused),
        ("quetz:http://quetz.example/c", {"QUETZ_API_KEY": "t"}, TokenRefused),
        ("quetz:c", {"QUETZ_API_KEY": "t"}, UsageError),
        ("ftp://x/y", {}, UsageError),
    ],
)
def test_invalid_targets_are_refused(
    named: str, environment: dict[str, str], kind: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(kind):
        parse_target(named, environment, journals=tmp_path, staging="trial")


def test_a_server_needs_a_channel_for_staging(server: str, tmp_path: Path) -> None:
    where = dataclasses.replace(channel_on(server, ServerKind.PREFIX, tmp_path), staging=None)
    with pytest.raises(UsageError, match="staging"):
        transaction.publish(where, *release(tmp_path), lambda _: None)


@pytest.mark.parametrize(
    ("kept", "header"),
    [
        ({"127.0.0.1": {"BearerToken": TOKEN}}, f"Bearer {TOKEN}"),
        ({"*.0.0.1": {"CondaToken": "other"}, "127.0.0.1": {"BearerToken": TOKEN}}, f"Bearer {TOKEN}"),
        ({"127.*": {"BasicHTTP": {"username": "a", "password": "b"}}}, "Basic YTpi"),
    ],
)
def test_a_token_is_found_in_the_file_of_credentials(tmp_path: Path, kept: object, header: str) -> None:
    (tmp_path / "auth.json").write_text(json.dumps(kept))
    environment = {"RATTLER_AUTH_FILE": str(tmp_path / "auth.json")}
    where = parse_target("artifactory:http://127.0.0.1:1/c", environment, journals=tmp_path, staging="trial")
    assert isinstance(where, ServerTarget)
    assert isinstance(where.server, Artifactory)
    assert where.server.api.headers == {"Authorization": header}
    with pytest.raises(TokenRefused, match="elsewhere"):
        parse_target("artifactory:https://elsewhere/c", environment, journals=tmp_path, staging="trial")


def test_a_token_does_not_follow_a_server_that_sends_us_elsewhere() -> None:
    asked: list[str] = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302)
            self.send_header("Location", "/stolen")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Elsewhere) as elsewhere:
        thread = threading.Thread(target=elsewhere.serve_forever)
        thread.start()
        try:
            with pytest.raises(HttpError) as fault:
                ServerApi(headers={"X-API-Key": TOKEN}).send_json_request(
                    "GET", f"http://127.0.0.1:{elsewhere.server_address[1]}/api/me"
                )
        finally:
            elsewhere.shutdown()
            thread.join()
    assert (fault.value.status, asked) == (302, ["/api/me"])
    assert TOKEN not in str(fault.value)
