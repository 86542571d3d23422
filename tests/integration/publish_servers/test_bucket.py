"""A bucket as a channel."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
from typing import TYPE_CHECKING, Any, cast

import pytest

from kiln.base.errors import AlreadyRunning, HashMismatch, PublicationPending, UploadFailed
from kiln.conda.index import BASE, read_index_entry
from kiln.conda.index_files import render_index_files
from kiln.conda.provenance.bundles import download_sidecar
from kiln.conda.provenance.check import TrustedSigner, verified_attestation_facts
from kiln.conda.solve import install, solve
from kiln.publish import transaction
from kiln.publish.servers.servers import ServerKind
from kiln.publish.servers.target import ATTEMPTS
from kiln.publish.stores import target
from kiln.publish.stores.target import StoreTarget
from kiln.publish.targets import parse_target
from tests import publishing
from tests.integration.publish_servers.helpers import channel_on, dying, refuse, release, requests, served, taken_over
from tests.packages import release_package
from tests.publishing import NEW, OLD, packages, seen
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kiln.publish.stores.s3 import S3Store


@pytest.mark.sampled
@pytest.mark.parametrize("kind", [ServerKind.ANACONDA, ServerKind.QUETZ, ServerKind.ARTIFACTORY])
def test_a_server_that_goes_on_failing_has_nothing_of_a_release_and_the_same_command_finishes_later(
    server: str, tmp_path: Path, kind: ServerKind
) -> None:
    half = 3 if kind is ServerKind.ARTIFACTORY else 2  # requests until there is half a release, where there can be one
    (tmp_path / "faults").write_text("\n".join(["ok"] * half + ["500"] * 100))
    where = channel_on(server, kind, tmp_path)
    with pytest.raises(UploadFailed, match="app-1-0") as failed:
        transaction.publish(where, *release(tmp_path), lambda _: None)
    assert f"nothing of it is in {where.name}" in failed.value.why
    assert served(tmp_path) == {}
    assert len(served(tmp_path, "trial")) == 2
    assert len(requests(tmp_path, "PUT", "POST")) == half + ATTEMPTS
    (tmp_path / "faults").unlink()
    transaction.publish(where, *release(tmp_path), refuse)  # what was tried out is not tried out again
    assert len(served(tmp_path)) == 2


def put(where: StoreTarget, folder: Path, names: tuple[str, ...], try_out: Callable[[str], None]) -> None:
    paths = packages(folder, names)
    transaction.publish(where, paths, [read_index_entry(path) for path in paths], try_out)


def test_a_bucket_is_a_channel_like_a_folder(bucket: StoreTarget, tmp_path: Path) -> None:
    tried: list[str] = []

    def try_out(url: str) -> None:
        tried.append(url)
        result = solve([url], ["fresh"], virtual_packages={})
        install(result, tmp_path / "prefix", cache=tmp_path / "cache")

    put(bucket, tmp_path, OLD, lambda _: None)
    with pytest.raises(HashMismatch):
        put(bucket, tmp_path, NEW, refuse)
    with pytest.raises(PublicationPending):
        put(bucket, tmp_path, ("other",), lambda _: None)
    assert len(bucket.package_hashes()) == 2
    put(bucket, tmp_path, NEW, try_out)  # goes on
    assert "/.kiln/staging/" in tried[0]
    assert len(bucket.package_hashes()) == 4
    assert {
        record.name.normalized for record in solve([bucket.channel_url()], ["app", "old"], virtual_packages={})
    } == {
        *("app", "old"),
    }
    mirror = mirrored(bucket, tmp_path / "mirror")
    assert seen(mirror) == {f"{name}-1-0.conda" for name in (*OLD, *NEW)}
    target.yank_packages(bucket, ["old-1-0.conda"])
    assert seen(mirrored(bucket, tmp_path / "mirror")) == {f"{name}-1-0.conda" for name in ("kept", *NEW)}


def test_attestations_lie_in_a_bucket_until_their_package_is_deleted(bucket: StoreTarget, tmp_path: Path) -> None:
    paths = packages(tmp_path, OLD)
    entries = [read_index_entry(path) for path in paths]
    attestation = publishing.attestation(entries, "https://channel.example")
    transaction.publish(bucket, paths, entries, lambda _: None, attestation)
    (record,) = solve([bucket.channel_url()], ["old"], virtual_packages={})
    data = download_sidecar(str(record.url), (record.attestations_sha256 or b"").hex())
    facts = {"file": record.file_name, "sha256": entries[0].sha256, "channel": "https://channel.example"}
    assert verified_attestation_facts(data, signers=[TrustedSigner(key=publishing.KEY.public)], **facts).provenance
    store = cast("S3Store", bucket.store)
    mutable, immutable = store.sidecar_paths("linux-64/old-1-0.conda")
    assert store.read(mutable) == store.read(immutable) == data
    head = store.client.head_object(Bucket=store.bucket, Key=store.prefix + immutable)
    assert ("immutable" in head["CacheControl"], head["ContentType"]) == (True, "application/json")
    target.yank_packages(bucket, ["old-1-0.conda"], delete=True)
    assert store.sidecar_paths("linux-64/old-1-0.conda") == ()
    assert len(store.sidecar_paths("linux-64/")) == 2


@pytest.mark.sampled
def test_a_publication_to_a_bucket_that_dies_again_and_again_comes_to_its_end(
    bucket: StoreTarget, tmp_path: Path
) -> None:
    put(bucket, tmp_path, OLD, lambda _: None)
    before, after = ({f"{name}-1-0.conda" for name in names} for names in (OLD, (*OLD, *NEW)))
    store: Any = bucket.store
    result: set[str] = set()
    for lives in range(5, 1000, 7):
        mortal = dataclasses.replace(bucket, store=dying(store, lives))
        try:
            put(mortal, tmp_path, NEW, lambda _: None)
            break
        except KeyboardInterrupt:
            mirror = mirrored(bucket, tmp_path / "mirror")
            result = publishing.offered(mirror, "plain")
            assert before <= result <= after, lives
    assert lives > 40, "it died at many requests"
    assert seen(mirrored(bucket, tmp_path / "mirror")) == after
    assert bucket.journal.read() is None


class WatchedClient:
    """A client of S3 that has somebody look before each of its requests."""

    def __init__(self, client: Any, look: Callable[[str, Mapping[str, Any]], None]) -> None:
        self.client, self.look = client, look

    def __getattr__(self, name: str) -> Any:
        result = getattr(self.client, name)
        return functools.partial(self.ask, name, result) if callable(result) else result

    def ask(self, name: str, request: Callable[..., Any], *args: Any, **more: Any) -> Any:
        self.look(name, more)
        return request(*args, **more)


@pytest.mark.sampled
def test_no_reader_of_a_bucket_finds_a_package_without_its_requirements(bucket: StoreTarget, tmp_path: Path) -> None:
    put(bucket, tmp_path, OLD, lambda _: None)
    needs = {"base": ("noarch", []), "middle": ("linux-64", ["base"]), "top": ("noarch", ["middle"])}
    paths = [
        release_package(tmp_path / "built", name, subdir=subdir, depends=depends)
        for name, (subdir, depends) in needs.items()
    ]
    store: Any = bucket.store
    result: list[list[str]] = []

    def look(name: str, told: Mapping[str, Any]) -> None:
        indices = [json.loads(store.read(f"{subdir}/repodata.json")) for subdir in ("noarch", "linux-64")]
        names = sorted(record["name"] for index in indices for record in index["packages.conda"].values())
        if names not in result[-1:]:
            result.append(names)
        if name == "delete_object" and told["Key"].endswith("journal.json") and len(result) == 4:
            raise KeyboardInterrupt

    client = WatchedClient(store.client, look)
    watched = dataclasses.replace(bucket, store=dataclasses.replace(store, client=client, lease=taken_over(store)))
    with pytest.raises(KeyboardInterrupt):
        transaction.publish(watched, paths, [read_index_entry(path) for path in paths], lambda _: None)
    steps = [sorted([*OLD, *list(needs)[:number]]) for number in range(4)]
    assert result == steps
    assert len(transaction.abort(watched)) == 3
    assert result == [*steps, *steps[-2::-1]]
    assert bucket.package_hashes().keys() == {"linux-64/old-1-0.conda", "linux-64/kept-1-0.conda"}


@pytest.mark.sampled
def test_of_two_writers_of_a_bucket_one_is_refused(bucket: StoreTarget, tmp_path: Path) -> None:
    put(bucket, tmp_path, OLD, lambda _: None)
    store: Any = bucket.store
    other = dataclasses.replace(bucket, store=dataclasses.replace(store, lease=dataclasses.replace(store.lease)))

    def meanwhile(_: str) -> None:
        with pytest.raises(AlreadyRunning, match="process"):
            target.yank_packages(other, ["old-1-0.conda"])
        with pytest.raises(AlreadyRunning, match="process"):
            transaction.abort(other)
        with pytest.raises(AlreadyRunning, match="process"):
            put(other, tmp_path, NEW, refuse)

    put(bucket, tmp_path, NEW, meanwhile)
    assert len(bucket.package_hashes()) == 4
    target.yank_packages(other, ["old-1-0.conda"])


@pytest.mark.sampled
def test_a_process_that_lost_its_lease_changes_nothing(bucket: StoreTarget, tmp_path: Path) -> None:
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


@pytest.mark.sampled
def test_an_index_that_another_process_changed_is_not_overwritten(bucket: StoreTarget, tmp_path: Path) -> None:
    put(bucket, tmp_path, OLD, lambda _: None)
    store: Any = bucket.store
    with store.exclusive_lock():
        forms = {
            name: render_index_files(subdir.with_packages_withdrawn(["old-1-0.conda"]))
            for name, subdir in bucket.channel_index.subdir_indexes().items()
        }
        store.client.put_object(Bucket="wheels", Key=f"channel/linux-64/{BASE}", Body=b"another's")
        with pytest.raises(AlreadyRunning, match=BASE):
            store.replace_indexes(forms)
    assert store.read(f"linux-64/{BASE}") == b"another's"


@pytest.mark.sampled
def test_a_write_whose_answer_was_lost_is_not_taken_for_another_s(bucket: StoreTarget, tmp_path: Path) -> None:
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
    assert len(bucket.package_hashes()) == 2
    assert bucket.journal.read() is None
    assert recorded_lease(bucket) is None


@pytest.mark.sampled
def test_a_lease_is_renewed_while_its_holder_lives(bucket: StoreTarget) -> None:
    store: Any = bucket.store
    lease = dataclasses.replace(store.lease, renewal=0.01)
    with lease.hold():
        first = lease.tag
        until(lambda: lease.tag != first, "the lease is renewed")
    assert recorded_lease(bucket) is None


def recorded_lease(bucket: StoreTarget) -> bytes | None:
    """Return the bucket's record of the lease's owner."""
    return bucket.store.read(".kiln/lease.json")


def test_a_missing_bucket_is_reported(bucket: StoreTarget, tmp_path: Path) -> None:
    nowhere = parse_target("s3://nowhere/channel", os.environ, journals=tmp_path)
    assert isinstance(nowhere, StoreTarget)
    with pytest.raises(UploadFailed, match="NoSuchBucket"):
        put(nowhere, tmp_path, OLD, lambda _: None)


def mirrored(bucket: StoreTarget, folder: Path) -> Path:
    """All objects of a bucket as files."""
    client: Any = bucket.store.client  # type: ignore[attr-defined] # the store is an S3Store
    shutil.rmtree(folder, ignore_errors=True)
    for item in client.list_objects_v2(Bucket="wheels")["Contents"]:
        place = folder / item["Key"].removeprefix("channel/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(client.get_object(Bucket="wheels", Key=item["Key"])["Body"].read())
    return folder
