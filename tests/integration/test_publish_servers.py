"""Publications to servers: S3 as moto speaks it, a server that misbehaves on demand, and nginx before a folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rattler.exceptions import InstallerError

from kiln import repodata
from kiln.channel import install, solve
from kiln.errors import HashMismatch, PublicationPending, TokenRefused, UploadFailed, UsageError
from kiln.publish.channel import ChannelTarget
from kiln.publish.servers import ATTEMPTS, TOKENS, Kind, ServerTarget
from kiln.publish.targets import target
from tests import publishing
from tests.channel_server import TOKEN
from tests.packages import conda_package, release_package
from tests.publishing import NEW, OLD, packages, publish_new, publish_old, seen
from tests.remote_cache import free_port
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
KINDS = (Kind.QUETZ, Kind.ARTIFACTORY, Kind.PREFIX)


# A server that takes uploads


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The server's address; it runs in a process of its own, since uploads hold Python's lock."""
    words = (sys.executable, "-m", "tests.channel_server", str(tmp_path))
    with subprocess.Popen(words, cwd=ROOT, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


def channel_on(server: str, kind: Kind, pauses: list[float] | None = None, token: str = TOKEN) -> ServerTarget:
    found = target(f"{kind.value}:{server}/release", {TOKENS[kind]: token}, staging="trial")
    assert isinstance(found, ServerTarget)
    return dataclasses.replace(found, pause=(pauses if pauses is not None else []).append)


def release(tmp_path: Path) -> tuple[list[Path], list[repodata.Entry]]:
    """Two packages, the first of which needs the second."""
    paths = [
        release_package(tmp_path / "built", "app", depends=["lib"]),
        release_package(tmp_path / "built", "lib"),
    ]
    return paths, [repodata.read(path) for path in paths]


def requests(tmp_path: Path) -> list[str]:
    return (tmp_path / "requests").read_text().splitlines()


@pytest.mark.parametrize("kind", KINDS)
def test_packages_are_tried_out_from_staging_and_come_in_the_order_of_need(
    server: str, tmp_path: Path, kind: Kind
) -> None:
    tried: list[str] = []
    where = channel_on(server, kind)

    def try_out(url: str) -> None:
        tried.append(url)
        install(solve([url], ["app"], virtual_packages={}), tmp_path / "prefix", cache=tmp_path / "cache")
        assert where.held() == {}

    new = where.publish(*release(tmp_path), try_out)
    assert new == ("linux-64/lib-1-0.conda", "linux-64/app-1-0.conda")
    assert tried == [where.address("trial")]
    assert (tmp_path / "prefix" / "share" / "app").is_file()
    order = [(line.split()[1], line.split()[2]) for line in requests(tmp_path)]
    files = ("lib-1-0.conda", "app-1-0.conda")
    assert order == [(channel, file) for channel in ("trial", "release") for file in files]
    assert where.publish(*release(tmp_path), try_out) == ()
    assert len(requests(tmp_path)) == 4, "what is there by its hash is not brought again"


@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        (Kind.QUETZ, ["500", "503"]),
        (Kind.QUETZ, ["429"]),
        (Kind.QUETZ, ["cut"]),
        (Kind.QUETZ, ["lost"]),
        (Kind.QUETZ, ["slow"]),
        (Kind.ARTIFACTORY, ["500", "cut"]),
        (Kind.ARTIFACTORY, ["lost"]),
        (Kind.PREFIX, ["429", "cut"]),
    ],
)
def test_a_fault_that_passes_costs_another_attempt_after_a_pause(
    server: str, tmp_path: Path, kind: Kind, faults: list[str]
) -> None:
    (tmp_path / "faults").write_text("\n".join(faults))
    pauses: list[float] = []
    where = channel_on(server, kind, pauses)
    paths, entries = release(tmp_path)
    where.publish(paths, entries, lambda _: None)
    assert where.held() == {entry.path: entry.sha256 for entry in entries}
    taken = [line for line in requests(tmp_path) if line.endswith(("taken", "lost", "slow"))]
    assert len(taken) == 4
    assert pauses == sorted(pauses), "each longer than the one before"


def test_an_index_that_comes_cut_off_is_asked_for_again(server: str, tmp_path: Path) -> None:
    where = channel_on(server, Kind.QUETZ)
    where.publish(*release(tmp_path), lambda _: None)
    (tmp_path / "index-faults").write_text("cut\n500\n429\n")
    assert len(where.held()) == 2


def test_a_server_that_goes_on_failing_is_given_up_and_the_same_command_finishes_later(
    server: str, tmp_path: Path
) -> None:
    (tmp_path / "faults").write_text("\n".join(["ok", "ok", "ok", *["500"] * 4 * ATTEMPTS]))
    where = channel_on(server, Kind.QUETZ)
    with pytest.raises(UploadFailed, match="app-1-0") as failed:
        where.publish(*release(tmp_path), lambda _: None)
    assert "1 of 2 packages are there" in failed.value.why
    (tmp_path / "faults").unlink()
    before = len(requests(tmp_path))
    where.publish(*release(tmp_path), lambda _: None)
    assert len(where.held()) == 2
    assert len(requests(tmp_path)) == before + 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_token_is_told_at_once_and_never_shown(server: str, tmp_path: Path, kind: Kind) -> None:
    where = channel_on(server, kind, token="wr0ng-token")
    with pytest.raises(TokenRefused) as refused:
        where.publish(*release(tmp_path), lambda _: None)
    assert "wr0ng" not in f"{refused.value} {where!r}"
    assert len(requests(tmp_path)) == 1


def test_a_file_name_that_a_server_holds_with_another_hash_is_no_success(server: str, tmp_path: Path) -> None:
    where = channel_on(server, Kind.QUETZ)
    where.publish(*release(tmp_path), lambda _: None)
    shutil.rmtree(tmp_path / "built")
    path = release_package(tmp_path / "built", "lib", license="MIT")
    (tmp_path / "faults").write_text("409\n" * 20)
    with pytest.raises(UploadFailed, match="another hash"):
        where.publish([path], [repodata.read(path)], lambda _: None)


def test_what_fails_in_staging_never_reaches_the_channel(server: str, tmp_path: Path) -> None:
    where = channel_on(server, Kind.QUETZ)
    with pytest.raises(HashMismatch):
        where.publish(*release(tmp_path), refuse)
    assert where.held() == {}
    with pytest.raises(UsageError, match="taken back"):
        where.abort()


@pytest.mark.parametrize(
    ("named", "environment", "kind"),
    [
        ("quetz:https://quetz.example/c", {}, TokenRefused),
        ("quetz:http://quetz.example/c", {"QUETZ_API_KEY": "t"}, TokenRefused),
        ("quetz:c", {"QUETZ_API_KEY": "t"}, UsageError),
        ("ftp://x/y", {}, UsageError),
    ],
)
def test_targets_that_cannot_be_are_told(named: str, environment: dict[str, str], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        target(named, environment, staging="trial")


def test_a_server_needs_a_channel_for_staging() -> None:
    with pytest.raises(UsageError, match="staging"):
        target("prefix:mine", {"PREFIX_API_KEY": "t"})


def refuse(_: str) -> None:
    """Try packages out, and find them no good."""
    raise HashMismatch("no good")


# S3


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChannelTarget]:
    """A channel in a bucket of a moto server."""
    import boto3
    from moto.server import ThreadedMotoServer

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    try:
        urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
        boto3.client("s3").create_bucket(Bucket="wheels", ACL="public-read")
        found = target("s3://wheels/channel", os.environ)
        assert isinstance(found, ChannelTarget)
        yield found
    finally:
        server.stop()


def put(where: ChannelTarget, folder: Path, names: tuple[str, ...], try_out: Callable[[str], None]) -> None:
    paths = packages(folder, names)
    where.publish(paths, [repodata.read(path) for path in paths], try_out)


def test_a_bucket_is_a_channel_like_a_folder(bucket: ChannelTarget, tmp_path: Path) -> None:
    tried: list[str] = []

    def try_out(url: str) -> None:
        tried.append(url)
        found = solve([url], ["fresh"], virtual_packages={})
        install(found, tmp_path / "prefix", cache=tmp_path / "cache")

    put(bucket, tmp_path, OLD, lambda _: None)
    with pytest.raises(HashMismatch):
        put(bucket, tmp_path, NEW, refuse)
    with pytest.raises(PublicationPending):
        put(bucket, tmp_path, ("other",), lambda _: None)
    assert len(bucket.held()) == 2
    put(bucket, tmp_path, NEW, try_out)  # goes on
    assert "/.kiln/staging/" in tried[0]
    assert len(bucket.held()) == 4
    assert {record.name.normalized for record in solve([bucket.address()], ["app", "old"], virtual_packages={})} == {
        *("app", "old"),
    }
    mirror = mirrored(bucket, tmp_path / "mirror")
    assert seen(mirror) == {f"{name}-1-0.conda" for name in (*OLD, *NEW)}
    bucket.yank(["old-1-0.conda"])
    assert seen(mirrored(bucket, tmp_path / "mirror")) == {f"{name}-1-0.conda" for name in ("kept", *NEW)}


def test_an_interrupted_publication_to_a_bucket_can_be_taken_back(bucket: ChannelTarget, tmp_path: Path) -> None:
    put(bucket, tmp_path, OLD, lambda _: None)
    before = {name: (tmp_path / "mirror" / name).read_bytes() for name in listed(mirrored(bucket, tmp_path / "mirror"))}
    with pytest.raises(HashMismatch):
        put(bucket, tmp_path, NEW, refuse)
    assert len(bucket.abort()) == 2
    again = mirrored(bucket, tmp_path / "again")
    assert {name: (again / name).read_bytes() for name in listed(again)} == before


class Mortal:
    """A client of S3 that dies at its n-th request."""

    def __init__(self, client: Any, lives: int) -> None:
        self.client, self.lives = client, lives

    def __getattr__(self, name: str) -> Any:
        self.lives -= 1
        if self.lives < 0:
            raise KeyboardInterrupt
        return getattr(self.client, name)


def test_a_publication_to_a_bucket_that_dies_again_and_again_comes_to_its_end(
    bucket: ChannelTarget, tmp_path: Path
) -> None:
    put(bucket, tmp_path, OLD, lambda _: None)
    before, after = ({f"{name}-1-0.conda" for name in names} for names in (OLD, (*OLD, *NEW)))
    store: Any = bucket.store
    found: set[str] = set()
    for lives in range(5, 1000, 3):
        mortal = dataclasses.replace(bucket, store=dataclasses.replace(store, client=Mortal(store.client, lives)))
        try:
            put(mortal, tmp_path, NEW, lambda _: None)
            break
        except KeyboardInterrupt:
            mirror = mirrored(bucket, tmp_path / "mirror")
            found = publishing.offered(mirror, "plain")
            assert before <= found <= after, lives
    assert lives > 40, "it died at many requests"
    assert seen(mirrored(bucket, tmp_path / "mirror")) == after
    assert bucket.pending() is None


def test_wrong_credentials_and_a_missing_bucket_are_told(bucket: ChannelTarget, tmp_path: Path) -> None:
    nowhere = target("s3://nowhere/channel", os.environ)
    assert isinstance(nowhere, ChannelTarget)
    with pytest.raises(UploadFailed, match="NoSuchBucket"):
        put(nowhere, tmp_path, OLD, lambda _: None)


def mirrored(bucket: ChannelTarget, folder: Path) -> Path:
    """All objects of a bucket as files."""
    client: Any = bucket.store.client  # type: ignore[attr-defined] # the store is a Bucket
    shutil.rmtree(folder, ignore_errors=True)
    for each in client.list_objects_v2(Bucket="wheels")["Contents"]:
        place = folder / each["Key"].removeprefix("channel/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(client.get_object(Bucket="wheels", Key=each["Key"])["Body"].read())
    return folder


def listed(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# nginx

NGINX = """
daemon off; pid {root}/nginx.pid; error_log stderr; worker_processes 1;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3;
    uwsgi_temp_path {root}/t4; scgi_temp_path {root}/t5;
    server {{ listen unix:{root}/unused.sock; }}
    server {{ listen 127.0.0.1:{port}; root {channel}; }}
}}
user root;
"""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """nginx before the channel in a folder."""
    port = free_port()
    settings = tmp_path / "nginx.conf"
    settings.write_text(NGINX.format(root=tmp_path, port=port, channel=tmp_path / "channel"))
    with subprocess.Popen(("nginx", "-c", str(settings), "-e", "stderr")) as process:
        address = f"http://127.0.0.1:{port}"
        until(lambda: has(f"{address}/noarch/repodata.json"), "nginx answers", process)
        yield address
        process.terminate()


def has(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


@pytest.mark.needs("nginx")
def test_clients_read_the_sharded_index_and_the_packages_through_a_web_server(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    publish_old(tmp_path)
    address = request.getfixturevalue("web")
    publish_new(tmp_path)
    shutil.rmtree(tmp_path / "built")
    for index in ("repodata.json", "repodata.json.zst"):
        (tmp_path / "channel" / ".kiln" / "index" / "current" / "noarch" / index).unlink()  # shards alone are left
    found = solve([address], ["app", "kept"], virtual_packages={})
    assert sorted(record.file_name for record in found) == ["app-1-0.conda", "kept-1-0.conda"]
    install(found, tmp_path / "prefix", cache=tmp_path / "cache")
    assert (tmp_path / "prefix" / "share" / "app").read_text() == "app"


# What a hostile package does to who installs it


def test_what_leads_out_of_a_prefix_is_not_followed_when_it_is_tried_out(tmp_path: Path) -> None:
    info = {
        "index.json": {"name": "evil", "version": "1", "build": "0", "build_number": 0, "subdir": "linux-64"},
        "paths.json": {"paths": [{"_path": "../../outside", "path_type": "hardlink"}], "paths_version": 1},
    }
    package = conda_package(tmp_path / "evil-1-0.conda", info, payload={"../../outside": b"x"})
    where = publishing.target(tmp_path)
    where.publish([package], [repodata.read(package)], lambda _: None)
    with pytest.raises(InstallerError, match="outside"):
        install(
            solve([where.address()], ["evil"], virtual_packages={}),
            tmp_path / "deep" / "er" / "prefix",
            cache=tmp_path / "cache",
        )
    assert not list(tmp_path.rglob("outside"))


# quetz itself, where somebody has installed it: docs/how-to/publish.md tells which versions it starts with

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


@pytest.mark.needs("quetz")
def test_quetz_itself_takes_a_release_and_refuses_a_wrong_token(tmp_path: Path) -> None:
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
            where = target(f"quetz:{address}/release", {"QUETZ_API_KEY": key}, staging="trial")
            paths, entries = release(tmp_path)
            where.publish(paths, entries, lambda url: None)
            assert where.held() == {entry.path: entry.sha256 for entry in entries}
            stranger = target(f"quetz:{address}/trial", {"QUETZ_API_KEY": "wr0ng"}, staging="release")
            more = release_package(tmp_path / "built", "more")
            with pytest.raises(TokenRefused):
                stranger.publish([more], [repodata.read(more)], lambda url: None)
        finally:
            process.terminate()
