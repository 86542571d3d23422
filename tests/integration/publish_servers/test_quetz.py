"""Publications to a real Quetz server."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import sqlite3
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from kiln.base.errors import TokenRefused
from kiln.conda.index import read_index_entry
from kiln.publish import transaction
from kiln.publish.servers.servers import Quetz
from kiln.publish.servers.target import ServerTarget
from kiln.publish.targets import parse_target
from tests.integration.publish_servers.helpers import Mortal, has, release
from tests.packages import release_package
from tests.remote_cache import free_port
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kiln.publish.servers.servers import Server

pytestmark = pytest.mark.trial


QUETZ = """
[github]
client_id = "none"
client_secret = "none"
[sqlalchemy]
database_url = "sqlite:///./quetz.sqlite"
[session]
secret = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
https_only = false
[users]
admins = ["dummy:alice", "dummy:bob", "dummy:carol", "dummy:dave"]  # --dev gives a key to one of them
"""


@pytest.fixture
def quetz(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A quetz with two channels: its address, and a key."""
    (tmp_path / "settings.toml").write_text(QUETZ)
    words = ("quetz", "create", "server", "--copy-conf", "settings.toml", "--dev")
    subprocess.run(words, cwd=tmp_path, capture_output=True, check=True)
    port = free_port()
    start = ("quetz", "start", "server", "--port", str(port))
    with subprocess.Popen(start, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        address = f"http://127.0.0.1:{port}"
        try:
            until(lambda: has(f"{address}/api/channels"), "quetz answers", process)
            with contextlib.closing(sqlite3.connect(tmp_path / "server" / "quetz.sqlite")) as database:
                (key,) = database.execute("SELECT key FROM api_keys LIMIT 1").fetchone()
            for name in ("release", "trial"):
                data = json.dumps({"name": name, "private": False}).encode()
                headers = {"X-API-Key": key, "Content-Type": "application/json"}
                urllib.request.urlopen(urllib.request.Request(f"{address}/api/channels", data, headers)).close()
            yield address, key
        finally:
            process.terminate()


@pytest.mark.needs("quetz")
def test_quetz_itself_takes_a_release_at_once_and_gives_it_back(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, key = request.getfixturevalue("quetz")
    monkeypatch.delattr(Quetz, "_upload_unless_present")  # so that it fails when it does not take them in one request
    where = parse_target(f"quetz:{address}/release", {"QUETZ_API_KEY": key}, journals=tmp_path, staging="trial")
    assert isinstance(where, ServerTarget)
    staging = dataclasses.replace(where, server=dataclasses.replace(where.server, channel="trial"))
    paths, entries = release(tmp_path)
    transaction.publish(where, paths, entries, lambda _: None)
    before = {entry.path: entry.sha256 for entry in entries}
    assert where.package_hashes() == before
    new = [release_package(tmp_path / "built", name, subdir="noarch") for name in ("new", "newer")]
    told = [read_index_entry(path) for path in new]
    for lives, after in itertools.product(range(4), (False, True)):  # two uploads, one promotion, one removal
        server = cast("Server", Mortal(where.server, lives, after=after))
        with pytest.raises(KeyboardInterrupt):
            transaction.publish(dataclasses.replace(where, server=server), new, told, lambda _: None)
        assert len(where.package_hashes()) in (2, 4)
        transaction.abort(where)
        assert where.package_hashes() == before
        assert staging.package_hashes() == {}


@pytest.mark.needs("quetz")
def test_quetz_itself_refuses_a_wrong_token(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    address, _ = request.getfixturevalue("quetz")
    stranger = parse_target(f"quetz:{address}/release", {"QUETZ_API_KEY": "wr0ng"}, journals=tmp_path, staging="trial")
    more = release_package(tmp_path / "built", "more")
    with pytest.raises(TokenRefused):
        transaction.publish(stranger, [more], [read_index_entry(more)], lambda _: None)
