"""A job of CI publishes with its identity in the place of a stored token."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import HashMismatch, TokenRefused
from kiln.publish import transaction
from kiln.publish.servers import servers
from kiln.publish.servers.target import ServerTarget
from kiln.publish.targets import parse_target
from tests import warm
from tests.identity_provider import FAULTS, REQUEST_TOKEN
from tests.integration.publish_servers.helpers import refuse, release, requests, served

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled


def a_job(server: str, request_token: str = REQUEST_TOKEN) -> dict[str, str]:
    """The variables that GitHub's runner gives to a job with ``id-token: write``."""
    return {
        servers.REQUEST_URL: f"{server}/identity?api-version=2.0",
        servers.REQUEST_TOKEN: request_token,
    }


def channel_of(server: str, tmp_path: Path, environment: dict[str, str]) -> ServerTarget:
    journals = tmp_path / "build_artifacts" / "publications"
    where = parse_target(f"prefix:{server}/release", environment, journals=journals, staging="trial")
    assert isinstance(where, ServerTarget)
    return dataclasses.replace(where, pause=lambda _: None)


def minted(tmp_path: Path) -> list[str]:
    """The answers to exchanges, ``None`` for a refused one."""
    log = tmp_path / "minted"
    return log.read_text().split() if log.is_file() else []


def test_a_publication_needs_no_stored_token(server: str, tmp_path: Path) -> None:
    where = channel_of(server, tmp_path, a_job(server))
    assert len(transaction.publish(where, *release(tmp_path), lambda _: None)) == 2
    assert len(served(tmp_path)) == 2
    assert len(minted(tmp_path)) == 1, "one exchange serves all requests of a short publication"
    assert REQUEST_TOKEN not in repr(where)
    assert minted(tmp_path)[0] not in repr(where)


def test_a_token_is_exchanged_anew_in_a_long_publication(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "single-use").touch()
    with pytest.raises(TokenRefused):
        transaction.publish(channel_of(server, tmp_path, a_job(server)), *release(tmp_path), lambda _: None)
    monkeypatch.setattr(servers, "RENEWAL", 0.0)
    where = channel_of(server, tmp_path, a_job(server))
    transaction.publish(where, *release(tmp_path), lambda _: None)
    assert len(served(tmp_path)) == 2
    assert len(set(minted(tmp_path))) > 4


def test_an_identity_that_the_server_does_not_trust_is_refused_at_once(server: str, tmp_path: Path) -> None:
    for fault in FAULTS:
        (tmp_path / "identity-faults").write_text(fault)
        with pytest.raises(TokenRefused, match="does not trust this CI job"):
            channel_of(server, tmp_path, a_job(server)).server.upload(release(tmp_path)[0][0], "trial")
    assert minted(tmp_path) == ["None"] * len(FAULTS)
    assert requests(tmp_path) == []


def test_a_fault_that_may_pass_costs_another_attempt(server: str, tmp_path: Path) -> None:
    (tmp_path / "identity-faults").write_text("503\n429")
    transaction.publish(channel_of(server, tmp_path, a_job(server)), *release(tmp_path), lambda _: None)
    assert len(served(tmp_path)) == 2


def test_a_job_without_the_permission_is_told_of_it(server: str, tmp_path: Path) -> None:
    where = channel_of(server, tmp_path, a_job(server, "wr0ng"))
    with pytest.raises(TokenRefused, match="no identity to publish with") as refused:
        transaction.publish(where, *release(tmp_path), lambda _: None)
    assert "id-token: write" in str(refused.value.hint)
    with pytest.raises(TokenRefused, match="no token for") as refused:
        channel_of(server, tmp_path, {})
    assert "id-token: write" in str(refused.value.hint)


def test_the_command_uses_the_identity_of_its_job_and_shows_no_token(server: str, tmp_path: Path) -> None:
    with pytest.raises(HashMismatch):
        transaction.publish(channel_of(server, tmp_path, a_job(server)), *release(tmp_path), refuse)
    assert len(served(tmp_path, "trial")) == 2
    named = f"prefix:{server}/release"
    words = ("-C", str(tmp_path), "publish", "--to", named, "--abort", "--json")
    environment = {name: value for name, value in os.environ.items() if name != "PREFIX_API_KEY"} | a_job(server)
    ended = warm.kiln(*words, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert len(json.loads(ended.stdout)["aborted"]) == 2
    assert served(tmp_path, "trial") == {}
    assert len(minted(tmp_path)) == 2
    assert not any(token in ended.stdout + ended.stderr for token in (*minted(tmp_path), REQUEST_TOKEN))
