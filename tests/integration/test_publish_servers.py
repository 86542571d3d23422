"""Publications to servers: S3 as moto speaks it, a server that misbehaves on demand, and nginx before a folder."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.server
import itertools
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from kiln import files, provenance, repodata
from kiln.channel import install, solve
from kiln.errors import (
    AlreadyRunning,
    HashMismatch,
    PublicationPending,
    TokenRefused,
    UnsafePackage,
    UploadFailed,
    UsageError,
)
from kiln.model.provenance import Attestation
from kiln.publish.channel import ChannelTarget
from kiln.publish.servers import ATTEMPTS, ServerTarget
from kiln.publish.services import TOKENS, Artifactory, Kind, Quetz
from kiln.publish.targets import target
from kiln.publish.web import Fault, Web
from tests import publishing
from tests.channel_server import TOKEN, index
from tests.packages import conda_package, release_package
from tests.publishing import NEW, OLD, packages, publish_new, publish_old, seen
from tests.remote_cache import free_port
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kiln.publish.lease import Lease
    from kiln.publish.s3 import Bucket
    from kiln.publish.services import Service

ROOT = Path(__file__).parents[2]
KINDS = tuple(Kind)


# A server that takes uploads


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The server's address; it runs in a process of its own, since uploads hold Python's lock."""
    words = (sys.executable, "-m", "tests.channel_server", str(tmp_path))
    with subprocess.Popen(words, cwd=ROOT, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


def channel_on(
    server: str,
    kind: Kind,
    tmp_path: Path,
    pauses: list[float] | None = None,
    *,
    token: str = TOKEN,
    channel: str = "release",
    staging: str = "trial",
) -> ServerTarget:
    """A channel of the server, as this machine sees it: its journals lie in ``tmp_path``."""
    reading = f"{server}/get" if kind is Kind.ANACONDA else None
    environment = {TOKENS[kind]: token}
    journals = tmp_path / "journals"
    found = target(f"{kind.value}:{server}/{channel}", environment, journals=journals, staging=staging, reading=reading)
    assert isinstance(found, ServerTarget)
    return dataclasses.replace(found, pause=(pauses if pauses is not None else []).append)


def release(tmp_path: Path) -> tuple[list[Path], list[repodata.Entry]]:
    """Two packages, the first of which needs the second."""
    paths = [
        release_package(tmp_path / "built", "app", depends=["lib"]),
        release_package(tmp_path / "built", "lib"),
    ]
    return paths, [repodata.read(path) for path in paths]


def requests(tmp_path: Path, *methods: str) -> list[str]:
    """The changes that a server was asked for: all of them, or those by some methods."""
    told = tmp_path / "requests"
    lines = told.read_text().splitlines() if told.is_file() else []
    return [line for line in lines if not methods or line.split()[0] in methods]


def served(tmp_path: Path, channel: str = "release") -> dict[str, str]:
    """The packages that lie in a channel of the server, with their hashes."""
    place = tmp_path / "served" / channel
    return {str(file.relative_to(place)): files.sha256(file) for file in sorted(place.glob("*/*.conda"))}


@pytest.mark.parametrize("kind", KINDS)
def test_packages_are_tried_out_from_staging_and_come_in_the_order_of_need(
    server: str, tmp_path: Path, kind: Kind
) -> None:
    tried: list[str] = []
    where = channel_on(server, kind, tmp_path)

    def try_out(url: str) -> None:
        tried.append(url)
        install(solve([url], ["app"], virtual_packages={}), tmp_path / "prefix", cache=tmp_path / "cache")
        assert where.held() == {}

    paths, entries = release(tmp_path)
    new = where.publish(paths, entries, try_out)
    assert new == ("linux-64/lib-1-0.conda", "linux-64/app-1-0.conda")
    assert tried == [where.service.address("trial")]
    assert (tmp_path / "prefix" / "share" / "app").is_file()
    brought = [tuple(line.split()[1:-1]) for line in requests(tmp_path, "POST", "PUT")]
    names = ("lib-1-0.conda", "app-1-0.conda")
    promoted: dict[Kind, list[tuple[str, ...]]] = {
        Kind.ANACONDA: [("release", "from", "trial")],
        Kind.QUETZ: [("release", *names)],
        Kind.ARTIFACTORY: [("release", "from", "trial")] * 2,
        Kind.PREFIX: [("release", name) for name in names],
    }
    assert brought == [*(("trial", name) for name in names), *promoted[kind]]
    assert served(tmp_path) == {entry.path: entry.sha256 for entry in entries}
    assert served(tmp_path, "trial") == {}, "what was published is staged no longer"
    before = len(requests(tmp_path))
    assert where.publish(paths, entries, try_out) == ()
    assert len(requests(tmp_path)) == before, "what is there by its hash is not brought again"


@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        (Kind.QUETZ, ["500", "503"]),
        (Kind.QUETZ, ["429"]),
        (Kind.QUETZ, ["cut"]),
        (Kind.QUETZ, ["lost"]),
        (Kind.QUETZ, ["slow"]),
        (Kind.QUETZ, ["ok", "ok", "500", "cut", "lost"]),
        (Kind.QUETZ, ["ok", "ok", "413"]),
        (Kind.ARTIFACTORY, ["500", "cut"]),
        (Kind.ARTIFACTORY, ["lost"]),
        (Kind.ARTIFACTORY, ["ok", "ok", "lost", "503"]),
        (Kind.PREFIX, ["429", "cut"]),
        (Kind.ANACONDA, ["429", "cut"]),
        (Kind.ANACONDA, ["ok", "ok", "503", "lost"]),
    ],
)
def test_a_fault_that_passes_costs_another_attempt_after_a_pause(
    server: str, tmp_path: Path, kind: Kind, faults: list[str]
) -> None:
    (tmp_path / "faults").write_text("\n".join(faults))
    pauses: list[float] = []
    where = channel_on(server, kind, tmp_path, pauses)
    paths, entries = release(tmp_path)
    where.publish(paths, entries, lambda _: None)
    assert served(tmp_path) == where.held() == {entry.path: entry.sha256 for entry in entries}
    assert (tmp_path / "faults").read_text() == ""
    assert pauses == sorted(pauses), "each longer than the one before"


def test_an_index_that_comes_cut_off_is_asked_for_again(server: str, tmp_path: Path) -> None:
    where = channel_on(server, Kind.QUETZ, tmp_path)
    where.publish(*release(tmp_path), lambda _: None)
    (tmp_path / "index-faults").write_text("cut\n500\n429\n")
    assert len(where.held()) == 2


@pytest.mark.parametrize("kind", [Kind.ANACONDA, Kind.QUETZ, Kind.ARTIFACTORY])
def test_a_server_that_goes_on_failing_has_nothing_of_a_release_and_the_same_command_finishes_later(
    server: str, tmp_path: Path, kind: Kind
) -> None:
    half = 3 if kind is Kind.ARTIFACTORY else 2  # requests until there is half a release, where there can be one
    (tmp_path / "faults").write_text("\n".join(["ok"] * half + ["500"] * 100))
    where = channel_on(server, kind, tmp_path)
    with pytest.raises(UploadFailed, match="app-1-0") as failed:
        where.publish(*release(tmp_path), lambda _: None)
    assert "nothing of it is in release" in failed.value.why
    assert served(tmp_path) == {}
    assert len(served(tmp_path, "trial")) == 2
    assert len(requests(tmp_path, "PUT", "POST")) == half + ATTEMPTS
    (tmp_path / "faults").unlink()
    where.publish(*release(tmp_path), refuse)  # what was tried out is not tried out again
    assert len(served(tmp_path)) == 2


def test_what_a_server_does_not_take_back_is_told(server: str, tmp_path: Path) -> None:
    (tmp_path / "faults").write_text("\n".join(["ok"] * 3 + ["500"] * 100))
    (tmp_path / "removal-faults").write_text("\n".join(["500"] * 100))
    where = channel_on(server, Kind.ARTIFACTORY, tmp_path)
    with pytest.raises(UploadFailed, match="app-1-0") as failed:
        where.publish(*release(tmp_path), lambda _: None)
    assert "1 of 2 packages are in release and stay there" in failed.value.why
    with pytest.raises(UploadFailed, match="could not be removed"):
        where.abort()
    (tmp_path / "removal-faults").write_text("lost\n429\ncut\nslow")
    assert len(where.abort()) == 2
    assert served(tmp_path) == served(tmp_path, "trial") == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_token_is_told_at_once_and_never_shown(server: str, tmp_path: Path, kind: Kind) -> None:
    where = channel_on(server, kind, tmp_path, token="wr0ng-token")
    with pytest.raises(TokenRefused) as refused:
        where.publish(*release(tmp_path), lambda _: None)
    assert "wr0ng" not in f"{refused.value} {where!r}"
    assert len(requests(tmp_path)) <= 1
    assert not (tmp_path / "served" / "trial").is_dir()


def test_a_token_that_may_not_remove_is_told_and_abort_goes_on_with_another(server: str, tmp_path: Path) -> None:
    where = channel_on(server, Kind.PREFIX, tmp_path)
    with pytest.raises(HashMismatch):
        where.publish(*release(tmp_path), refuse)
    with pytest.raises(TokenRefused):
        channel_on(server, Kind.PREFIX, tmp_path, token="wr0ng-token").abort()
    assert len(served(tmp_path, "trial")) == 2
    assert len(where.abort()) == 2
    assert served(tmp_path, "trial") == {}


def test_a_file_name_that_a_server_holds_with_another_hash_is_no_success(server: str, tmp_path: Path) -> None:
    where = channel_on(server, Kind.QUETZ, tmp_path)
    where.publish(*release(tmp_path), lambda _: None)
    before = served(tmp_path)
    shutil.rmtree(tmp_path / "built")
    path = release_package(tmp_path / "built", "lib", license="MIT")
    with pytest.raises(UploadFailed, match="another hash"):
        where.publish([path], [repodata.read(path)], lambda _: None)
    where.abort()
    assert served(tmp_path) == before, "what was there before is never taken away"


def test_what_fails_in_staging_never_reaches_the_channel_and_can_be_taken_back(server: str, tmp_path: Path) -> None:
    where = channel_on(server, Kind.QUETZ, tmp_path)
    with pytest.raises(HashMismatch):
        where.publish(*release(tmp_path), refuse)
    assert where.held() == {}
    other = release_package(tmp_path / "built", "other")
    with pytest.raises(PublicationPending, match="2 packages"):
        where.publish([other], [repodata.read(other)], lambda _: None)
    assert where.abort() == ("linux-64/app-1-0.conda", "linux-64/lib-1-0.conda")
    assert served(tmp_path, "trial") == {}
    where.publish([other], [repodata.read(other)], lambda _: None)
    assert where.abort() == (), "what is finished stays"
    assert len(served(tmp_path)) == 1


def test_records_of_what_a_server_has_are_kept_beside_its_journal(server: str, tmp_path: Path) -> None:
    where = channel_on(server, Kind.QUETZ, tmp_path)
    for name in ("first", "second"):
        path = release_package(tmp_path / "built", name)
        entry = repodata.read(path)
        made = publishing.record(entry.file, sha256=entry.sha256)
        attested = Attestation(
            seal=functools.partial(provenance.sealed, [made]), boms={entry.sha256: provenance.bill(made, home="")}
        )
        where.publish([path], [entry], lambda _: None, attested)
    (chain,) = (tmp_path / "journals").glob("*/provenance/chain.jsonl")
    assert [link.record["name"] for link in provenance.parsed(chain.read_bytes())] == ["first", "second"]
    assert str(chain.parent) in " ".join(where.notes)
    assert len(list((chain.parent / "sbom").iterdir())) == 2


def test_the_command_takes_back_what_a_killed_one_brought_to_a_server(server: str, tmp_path: Path) -> None:
    named, environment = f"prefix:{server}/release", {TOKENS[Kind.PREFIX]: TOKEN}
    journals = tmp_path / "build_artifacts" / "publications"
    where = target(named, environment, journals=journals, staging="trial")
    with pytest.raises(HashMismatch):
        where.publish(*release(tmp_path), refuse)
    words = (sys.executable, "-m", "kiln", "-C", str(tmp_path), "publish", "--to", named, "--abort", "--json")
    ended = subprocess.run(
        words, cwd=ROOT, env={**os.environ, **environment}, text=True, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {"aborted": ["linux-64/app-1-0.conda", "linux-64/lib-1-0.conda"]}
    assert served(tmp_path, "trial") == {}
    assert not list(journals.glob("*/journal.json"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_server_has_taken_and_not_indexed_yet_is_taken_back_by_its_own_hash(
    server: str, tmp_path: Path, kind: Kind
) -> None:
    where = channel_on(server, kind, tmp_path)
    (tmp_path / "faults").write_text("later")
    mortal = dataclasses.replace(where, service=cast("Service", Mortal(where.service, 0, after=True)))
    with pytest.raises(KeyboardInterrupt):
        mortal.publish(*release(tmp_path), lambda _: None)
    assert len(served(tmp_path, "trial")) == 1
    (tmp_path / "package-faults").write_text("cut\n503")
    where.abort()
    assert served(tmp_path, "trial") == {}


def test_a_label_with_other_packages_is_not_published_with_them(server: str, tmp_path: Path) -> None:
    where = channel_on(server, Kind.ANACONDA, tmp_path)
    other = release_package(tmp_path / "built", "other")
    where.service.upload(other, "trial")
    with pytest.raises(PublicationPending, match="other-1-0"):
        where.publish(*release(tmp_path), lambda _: None)
    assert served(tmp_path) == {}


def test_of_two_publishers_from_one_machine_one_is_told_to_wait(server: str, tmp_path: Path) -> None:
    where = channel_on(server, Kind.PREFIX, tmp_path)

    def meanwhile(_: str) -> None:
        with pytest.raises(AlreadyRunning):
            where.publish(*release(tmp_path), refuse)
        with pytest.raises(AlreadyRunning):
            where.abort()

    where.publish(*release(tmp_path), meanwhile)
    assert len(served(tmp_path)) == 2


def test_two_machines_that_publish_the_same_come_to_one_release(server: str, tmp_path: Path) -> None:
    here, there = (channel_on(server, Kind.PREFIX, tmp_path / name) for name in ("here", "there"))
    paths, entries = release(tmp_path)

    def meanwhile(_: str) -> None:
        there.publish(paths, entries, lambda _: None)

    here.publish(paths, entries, meanwhile)
    assert served(tmp_path) == {entry.path: entry.sha256 for entry in entries}


class Mortal:
    """A server that we lose at the n-th change that we ask for, before or after it is made."""

    def __init__(self, service: Service, lives: int, *, after: bool) -> None:
        self.service, self.lives, self.after = service, lives, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.service, name)
        return functools.partial(self.ask, found) if name in {"upload", "promote", "unlist", "delete"} else found

    def ask(self, change: Callable[..., None], *args: Any) -> None:
        self.lives -= 1
        if self.lives < 0 and not self.after:
            raise KeyboardInterrupt
        change(*args)
        if self.lives < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", KINDS)
def test_a_publication_that_dies_at_any_request_is_finished_by_the_same_command_or_taken_back(
    server: str, tmp_path: Path, kind: Kind
) -> None:
    paths, entries = release(tmp_path)
    old = [release_package(tmp_path / "built", "old"), release_package(tmp_path / "built", "kept", subdir="noarch")]
    died = 0
    for lives, after in itertools.product(range(100), (False, True)):
        channel, staging = f"release-{lives}-{after}", f"trial-{lives}-{after}"
        where = channel_on(server, kind, tmp_path, channel=channel, staging=staging)
        for package in old:
            place = tmp_path / "served" / channel / ("noarch" if package.name.startswith("kept") else "linux-64")
            files.link_or_copy(package, place / package.name)
        index(tmp_path / "served" / channel)
        before = served(tmp_path, channel)
        mortal = dataclasses.replace(where, service=cast("Service", Mortal(where.service, lives, after=after)))
        try:
            mortal.publish(paths, entries, lambda _: None)
        except KeyboardInterrupt:
            died += 1
        else:
            break
        new = served(tmp_path, channel).items() - before.items()
        if where.service.together:
            assert len(new) in (0, 2), "all or nothing"
        assert [path for path, _ in new] != ["linux-64/app-1-0.conda"], "what others need comes first"
        if after:  # which is how it looks before the next request, too: so each state is finished and taken back
            where.abort()
            assert served(tmp_path, channel) == before
            assert where.abort() == ()
        else:
            where.publish(paths, entries, lambda _: None)
            assert served(tmp_path, channel) == {**before, **{entry.path: entry.sha256 for entry in entries}}
        assert served(tmp_path, staging) == {}
        for gone in (channel, staging):
            shutil.rmtree(tmp_path / "served" / gone)
    assert died >= 2 * 5, "it died at every request"


@pytest.mark.parametrize("kind", KINDS)
def test_taking_back_can_die_at_any_request_too_and_leaves_what_others_brought(
    server: str, tmp_path: Path, kind: Kind
) -> None:
    paths, entries = release(tmp_path)
    for lives, after in itertools.product(range(100), (False, True)):
        channel, staging = f"release-{lives}-{after}", f"trial-{lives}-{after}"
        where = channel_on(server, kind, tmp_path, channel=channel, staging=staging)
        dying = cast("Service", Mortal(where.service, 3, after=True))
        with contextlib.suppress(KeyboardInterrupt):
            dataclasses.replace(where, service=dying).publish(paths, entries, lambda _: None)
        foreign = tmp_path / "served" / channel / "noarch" / "lib-1-0.conda"
        files.link_or_copy(release_package(tmp_path / "foreign", "lib", subdir="noarch"), foreign)
        index(tmp_path / "served" / channel)
        mortal = dataclasses.replace(where, service=cast("Service", Mortal(where.service, lives, after=after)))
        try:
            mortal.abort()
        except KeyboardInterrupt:
            where.abort()
        else:
            break
        assert list(served(tmp_path, channel)) == ["noarch/lib-1-0.conda"]
        assert served(tmp_path, staging) == {}
        shutil.rmtree(tmp_path / "served" / channel)
    assert lives >= 2, "it died at every request"


@pytest.mark.parametrize(
    ("named", "environment", "kind"),
    [
        ("quetz:https://quetz.example/c", {}, TokenRefused),
        ("quetz:http://quetz.example/c", {"QUETZ_API_KEY": "t"}, TokenRefused),
        ("quetz:c", {"QUETZ_API_KEY": "t"}, UsageError),
        ("ftp://x/y", {}, UsageError),
    ],
)
def test_targets_that_cannot_be_are_told(
    named: str, environment: dict[str, str], kind: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(kind):
        target(named, environment, journals=tmp_path, staging="trial")


def test_a_server_needs_a_channel_for_staging(server: str, tmp_path: Path) -> None:
    where = dataclasses.replace(channel_on(server, Kind.PREFIX, tmp_path), staging=None)
    with pytest.raises(UsageError, match="staging"):
        where.publish(*release(tmp_path), lambda _: None)


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
    where = target("artifactory:http://127.0.0.1:1/c", environment, journals=tmp_path, staging="trial")
    assert isinstance(where, ServerTarget)
    assert isinstance(where.service, Artifactory)
    assert where.service.web.headers == {"Authorization": header}
    with pytest.raises(TokenRefused, match="elsewhere"):
        target("artifactory:https://elsewhere/c", environment, journals=tmp_path, staging="trial")


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
            with pytest.raises(Fault) as fault:
                Web(headers={"X-API-Key": TOKEN}).ask("GET", f"http://127.0.0.1:{elsewhere.server_address[1]}/api/me")
        finally:
            elsewhere.shutdown()
            thread.join()
    assert (fault.value.status, asked) == (302, ["/api/me"])
    assert TOKEN not in str(fault.value)


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
        found = target("s3://wheels/channel", os.environ, journals=Path("unused"))
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


class MortalClient:
    """A client of S3 that dies at its n-th request."""

    def __init__(self, client: Any, lives: int) -> None:
        self.client, self.lives = client, lives

    def __getattr__(self, name: str) -> Any:
        self.lives -= 1
        if self.lives < 0:
            raise KeyboardInterrupt
        return getattr(self.client, name)


def dying(store: Bucket, lives: int) -> Bucket:
    """A bucket whose client dies at its n-th request; a lease that an earlier one has left is nobody's at once."""
    client = MortalClient(store.client, lives)
    return dataclasses.replace(store, client=client, lease=taken_over(store, client))


def taken_over(store: Bucket, client: Any = None) -> Lease:
    """The lease of a bucket for one who has waited until it ran out, and needs no renewal within a test."""
    return dataclasses.replace(store.lease, client=client or store.client, life=0, renewal=3600)


def test_a_publication_to_a_bucket_that_dies_again_and_again_comes_to_its_end(
    bucket: ChannelTarget, tmp_path: Path
) -> None:
    put(bucket, tmp_path, OLD, lambda _: None)
    before, after = ({f"{name}-1-0.conda" for name in names} for names in (OLD, (*OLD, *NEW)))
    store: Any = bucket.store
    found: set[str] = set()
    for lives in range(5, 1000, 7):
        mortal = dataclasses.replace(bucket, store=dying(store, lives))
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


class WatchedClient:
    """A client of S3 that has somebody look before each of its requests."""

    def __init__(self, client: Any, look: Callable[[str, Mapping[str, Any]], None]) -> None:
        self.client, self.look = client, look

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.client, name)
        return functools.partial(self.ask, name, found) if callable(found) else found

    def ask(self, name: str, request: Callable[..., Any], *args: Any, **more: Any) -> Any:
        self.look(name, more)
        return request(*args, **more)


def test_no_reader_of_a_bucket_finds_a_package_without_what_it_needs(bucket: ChannelTarget, tmp_path: Path) -> None:
    put(bucket, tmp_path, OLD, lambda _: None)
    needs = {"base": ("noarch", []), "middle": ("linux-64", ["base"]), "top": ("noarch", ["middle"])}
    paths = [
        release_package(tmp_path / "built", name, subdir=subdir, depends=depends)
        for name, (subdir, depends) in needs.items()
    ]
    store: Any = bucket.store
    found: list[list[str]] = []

    def look(name: str, told: Mapping[str, Any]) -> None:
        indices = [json.loads(store.read(f"{subdir}/repodata.json")) for subdir in ("noarch", "linux-64")]
        names = sorted(record["name"] for index in indices for record in index["packages.conda"].values())
        if names not in found[-1:]:
            found.append(names)
        if name == "delete_object" and told["Key"].endswith("journal.json") and len(found) == 4:
            raise KeyboardInterrupt

    client = WatchedClient(store.client, look)
    watched = dataclasses.replace(bucket, store=dataclasses.replace(store, client=client, lease=taken_over(store)))
    with pytest.raises(KeyboardInterrupt):
        watched.publish(paths, [repodata.read(path) for path in paths], lambda _: None)
    steps = [sorted([*OLD, *list(needs)[:number]]) for number in range(4)]
    assert found == steps
    assert len(watched.abort()) == 3
    assert found == [*steps, *steps[-2::-1]]
    assert bucket.held().keys() == {"linux-64/old-1-0.conda", "linux-64/kept-1-0.conda"}


def test_of_two_who_change_a_bucket_one_is_told_to_wait(bucket: ChannelTarget, tmp_path: Path) -> None:
    put(bucket, tmp_path, OLD, lambda _: None)
    store: Any = bucket.store
    other = dataclasses.replace(bucket, store=dataclasses.replace(store, lease=dataclasses.replace(store.lease)))

    def meanwhile(_: str) -> None:
        with pytest.raises(AlreadyRunning, match="process"):
            other.yank(["old-1-0.conda"])
        with pytest.raises(AlreadyRunning, match="process"):
            other.abort()
        with pytest.raises(AlreadyRunning, match="process"):
            put(other, tmp_path, NEW, refuse)

    put(bucket, tmp_path, NEW, meanwhile)
    assert len(bucket.held()) == 4
    other.yank(["old-1-0.conda"])


def test_who_stood_still_and_lost_a_bucket_changes_nothing_any_more(bucket: ChannelTarget, tmp_path: Path) -> None:
    put(bucket, tmp_path, OLD, lambda _: None)
    store: Any = bucket.store
    still = dataclasses.replace(store, lease=dataclasses.replace(store.lease, renewal=3600))
    late = dataclasses.replace(bucket, store=dataclasses.replace(store, lease=taken_over(store)))

    def meanwhile(_: str) -> None:
        put(late, tmp_path, NEW, lambda _: None)

    with pytest.raises(AlreadyRunning, match="began to change"):
        put(dataclasses.replace(bucket, store=still), tmp_path, NEW, meanwhile)
    mirror = mirrored(bucket, tmp_path / "mirror")
    assert seen(mirror) == {f"{name}-1-0.conda" for name in (*OLD, *NEW)}
    assert recorded_lease(bucket) is None


def test_an_index_that_somebody_else_changed_is_not_written_over(bucket: ChannelTarget, tmp_path: Path) -> None:
    put(bucket, tmp_path, OLD, lambda _: None)
    store: Any = bucket.store
    with store.exclusively():
        forms = {name: repodata.forms(subdir.withdrawn(["old-1-0.conda"])) for name, subdir in bucket.index().items()}
        store.client.put_object(Bucket="wheels", Key=f"channel/linux-64/{repodata.BASE}", Body=b"another's")
        with pytest.raises(AlreadyRunning, match=repodata.BASE):
            store.swap(forms)
    assert store.read(f"linux-64/{repodata.BASE}") == b"another's"


def test_a_write_whose_answer_was_lost_is_not_taken_for_another_s(bucket: ChannelTarget, tmp_path: Path) -> None:
    store: Any = bucket.store

    class Twice(WatchedClient):
        """A client whose conditional writes come to the server twice, as after an answer that was lost."""

        def ask(self, name: str, request: Callable[..., Any], *args: Any, **more: Any) -> Any:
            if name == "put_object" and {"IfMatch", "IfNoneMatch"} & more.keys():
                request(*args, **more)
            return request(*args, **more)

    client = Twice(store.client, lambda *_: None)
    doubled = dataclasses.replace(store, client=client, lease=dataclasses.replace(store.lease, client=client))
    put(dataclasses.replace(bucket, store=doubled), tmp_path, OLD, lambda _: None)
    assert len(bucket.held()) == 2
    assert bucket.pending() is None
    assert recorded_lease(bucket) is None


def test_a_lease_is_renewed_while_its_holder_lives(bucket: ChannelTarget) -> None:
    store: Any = bucket.store
    lease = dataclasses.replace(store.lease, renewal=0.01)
    with lease.held():
        first = lease.tag
        until(lambda: lease.tag != first, "the lease is renewed")
    assert recorded_lease(bucket) is None


def recorded_lease(bucket: ChannelTarget) -> bytes | None:
    """What the bucket says of who holds it."""
    return bucket.store.read(".kiln/lease.json")


def test_wrong_credentials_and_a_missing_bucket_are_told(bucket: ChannelTarget, tmp_path: Path) -> None:
    nowhere = target("s3://nowhere/channel", os.environ, journals=tmp_path)
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
    settings = tmp_path / "nginx.conf"
    with socket.create_server(("127.0.0.1", 0)) as listening:  # which nginx takes over: no one else can have its port
        port, place = listening.getsockname()[1], listening.fileno()
        settings.write_text(NGINX.format(root=tmp_path, port=port, channel=tmp_path / "channel"))
        words = ("nginx", "-c", str(settings), "-e", "stderr")
        process = subprocess.Popen(words, pass_fds=(place,), env={**os.environ, "NGINX": f"{place};"})
    with process:
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
    for form in ("repodata.json", "repodata.json.zst"):
        (tmp_path / "channel" / ".kiln" / "index" / "current" / "noarch" / form).unlink()  # shards alone are left
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
    with pytest.raises(UnsafePackage) as refused:
        install(
            solve([where.address()], ["evil"], virtual_packages={}),
            tmp_path / "deep" / "er" / "prefix",
            cache=tmp_path / "cache",
        )
    assert "outside" in refused.value.why
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
    monkeypatch.delattr(Quetz, "_unless_there")  # so that it fails when it does not take them in one request
    where = target(f"quetz:{address}/release", {"QUETZ_API_KEY": key}, journals=tmp_path, staging="trial")
    assert isinstance(where, ServerTarget)
    staging = dataclasses.replace(where, channel="trial")
    paths, entries = release(tmp_path)
    where.publish(paths, entries, lambda _: None)
    before = {entry.path: entry.sha256 for entry in entries}
    assert where.held() == before
    new = [release_package(tmp_path / "built", name, subdir="noarch") for name in ("new", "newer")]
    told = [repodata.read(path) for path in new]
    for lives, after in itertools.product(range(4), (False, True)):  # two uploads, one promotion, one removal
        service = cast("Service", Mortal(where.service, lives, after=after))
        with pytest.raises(KeyboardInterrupt):
            dataclasses.replace(where, service=service).publish(new, told, lambda _: None)
        assert len(where.held()) in (2, 4)
        where.abort()
        assert where.held() == before
        assert staging.held() == {}


@pytest.mark.needs("quetz")
def test_quetz_itself_refuses_a_wrong_token(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    address, _ = request.getfixturevalue("quetz")
    stranger = target(f"quetz:{address}/release", {"QUETZ_API_KEY": "wr0ng"}, journals=tmp_path, staging="trial")
    more = release_package(tmp_path / "built", "more")
    with pytest.raises(TokenRefused):
        stranger.publish([more], [repodata.read(more)], lambda _: None)
