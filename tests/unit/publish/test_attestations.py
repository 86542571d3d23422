"""Attestations are next to their packages as CEP 50 has it, and every change of a channel keeps them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from kiln.base.errors import BrokenPackage, ProvenanceBroken, UsageError
from kiln.base.zstd import zstd
from kiln.conda.index import read_index_entry
from kiln.conda.provenance import bundles
from kiln.conda.provenance.check import TrustedSigner, verified_attestation_facts
from kiln.conda.provenance.records import ReleaseAttestations
from kiln.publish import attestations, targets, transaction
from kiln.publish.stores import target as stores_target
from kiln.publish.stores.folder import FolderStore
from tests import publishing
from tests.fake_sigstore import FakeSigstore
from tests.publishing import KEY, another_key, target
from tests.releases import candidate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE, PATH = "fresh-1-0.conda", "linux-64/fresh-1-0.conda"


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    publishing.publish_new(tmp_path)
    return tmp_path / "channel"


def record(channel: Path, name: str = "repodata.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((channel / "linux-64" / name).read_bytes())["packages.conda"][FILE]
    return found


def sidecar_files(channel: Path) -> list[str]:
    return sorted(file.name for file in (channel / "linux-64").glob("*.sigs*"))


def reindexed(folder: Path) -> tuple[int, tuple[BrokenPackage, ...]]:
    return stores_target.reindex_channel(target(folder), lambda path: read_index_entry(folder / "channel" / path))


def stranger(sha256: str, file: str = FILE) -> bytes:
    """Return a bundle that another tool appends."""
    return KEY.sign_statement(bundles.slsa_statement(file, sha256, {"buildDefinition": {}}))


def append(channel: Path, bundle: bytes) -> bytes:
    mutable = channel / f"{PATH}.sigs"
    data = bundles.sidecar_with_added_bundles(mutable.read_bytes(), [bundle])
    mutable.write_bytes(data)
    return data


def test_the_index_names_the_attestations_in_all_its_forms(channel: Path) -> None:
    data = (channel / f"{PATH}.sigs").read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    assert sidecar_files(channel) == [f"{FILE}.sigs", f"{FILE}.sigs.{sha256}"]
    assert (channel / f"{PATH}.sigs.{sha256}").read_bytes() == data
    for name in ("repodata.json", "current_repodata.json", "repodata_from_packages.json"):
        assert record(channel, name)["attestations_sha256"] == sha256
    listing = msgpack.unpackb(zstd.decompress((channel / "linux-64" / "repodata_shards.msgpack.zst").read_bytes()))
    shard = channel / "linux-64" / "shards" / f"{listing['shards']['fresh'].hex()}.msgpack.zst"
    sharded = msgpack.unpackb(zstd.decompress(shard.read_bytes()))["packages.conda"][FILE]
    assert sharded["attestations_sha256"] == sha256
    publishing.require_attestations(channel)


class Killed(dict[str, dict[str, bytes]]):
    """Documents during whose writing the publication is killed."""

    def get(self, *_: Any) -> Any:
        raise KeyboardInterrupt


def publish(folder: Path, documents: dict[str, dict[str, bytes]], signed: list[str]) -> None:
    """Publish one package; ``signed`` collects the hashes of packages that are signed."""

    def sign(sha256: str) -> tuple[bytes, ...]:
        signed.append(sha256)
        return (KEY.sign_statement(bundles.publication_statement(FILE, sha256, "file:///c")),)

    paths = publishing.packages(folder, ("fresh",))
    entries = [read_index_entry(path) for path in paths]
    signers = [KEY.trusted_signer("")]

    def is_own(sha256: str, sidecar: bytes) -> bool:
        with contextlib.suppress(ProvenanceBroken):
            return bool(
                verified_attestation_facts(sidecar, file=FILE, sha256=sha256, channel="file:///c", signers=signers)
            )
        return False

    attestation = ReleaseAttestations(documents=documents, bundles=sign, is_own=is_own)
    transaction.publish(target(folder), paths, entries, lambda _: None, attestation)


def test_what_an_interrupted_publication_signed_is_not_signed_again_or_taken_back(tmp_path: Path) -> None:
    signed: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path, Killed(), signed)
    assert len(sidecar_files(tmp_path / "channel")) == 2
    shutil.copytree(tmp_path, tmp_path / "another")
    publish(tmp_path, {}, signed)
    assert len(signed) == 1
    assert record(tmp_path / "channel")["attestations_sha256"]
    transaction.abort(target(tmp_path / "another"))
    assert sidecar_files(tmp_path / "another" / "channel") == []


def test_packages_that_a_channel_has_already_are_signed_once_by_each_signer(tmp_path: Path) -> None:
    paths = publishing.packages(tmp_path, ("fresh",))
    entries, place = [read_index_entry(path) for path in paths], target(tmp_path)
    attestation = publishing.attestation(entries, place.channel_url())
    unsigned = ReleaseAttestations(documents=attestation.documents)
    transaction.publish(place, paths, entries, lambda _: None, unsigned)
    one = candidate("fresh")
    held = [replace(one, artifact=replace(one.artifact, sha256=entries[0].sha256)), candidate("none")]
    statement = tmp_path / "channel" / attestations.STATEMENT.format(PATH)
    made = statement.read_bytes()
    statement.write_bytes(b"{}")  # what nobody has signed is replaced
    assert targets.attest_held_packages(place, held, attestation) == ((PATH,), ())
    publishing.require_attestations(tmp_path / "channel")
    assert statement.read_bytes() == made
    index = json.loads((tmp_path / "channel" / "linux-64" / "repodata.json").read_bytes())
    assert index["packages.conda"][FILE]["attestations_sha256"]
    assert targets.attest_held_packages(place, held, attestation) == ((), ())
    other = replace(
        attestation,
        bundles=lambda sha256: (
            another_key().sign_statement(bundles.publication_statement(FILE, sha256, "file:///c")),
        ),
        is_own=lambda *_: False,
    )
    assert targets.attest_held_packages(place, held, other) == ((PATH,), ())
    assert len(json.loads((tmp_path / "channel" / f"{PATH}.sigs").read_bytes())) == 3
    statement.write_bytes(b"{}")
    signed, (note,) = targets.attest_held_packages(place, held, other)
    assert (signed, note) == ((), f"{PATH} is not signed: others have attested another record of how it was made")
    assert statement.read_bytes() == b"{}"


def test_a_withdrawn_package_keeps_its_attestations_and_a_deleted_one_does_not(channel: Path, tmp_path: Path) -> None:
    stores_target.yank_packages(target(tmp_path), [FILE])
    assert record(channel, "repodata_from_packages.json")["attestations_sha256"]
    assert len(sidecar_files(channel)) == 2
    stores_target.yank_packages(target(tmp_path), [FILE], delete=True)
    assert sidecar_files(channel) == []


def test_a_later_publication_a_patch_and_an_indexing_keep_the_field(channel: Path, tmp_path: Path) -> None:
    before = record(channel)["attestations_sha256"]
    publishing.publish_old(tmp_path)
    stores_target.patch_record(target(tmp_path), FILE, {"depends": ["python"]})
    assert reindexed(tmp_path) == (0, ())
    assert record(channel) == {**record(channel), "attestations_sha256": before, "depends": ["python"]}
    with pytest.raises(UsageError, match="is not patched"):
        stores_target.patch_record(target(tmp_path), FILE, {"attestations_sha256": "0" * 64})


def test_an_index_from_scratch_finds_the_attestations_again(channel: Path, tmp_path: Path) -> None:
    before = record(channel)["attestations_sha256"]
    shutil.rmtree(channel / ".kiln" / "index")
    for file in {*channel.glob("*/*repodata*"), *channel.glob("*/*.json")}:
        file.unlink()
    (channel / f"{PATH}.sigs.{before}").unlink()
    assert reindexed(tmp_path) == (2, ())
    assert record(channel)["attestations_sha256"] == before
    publishing.require_attestations(channel)


def test_appended_attestations_come_into_the_index_and_the_old_file_stays(channel: Path, tmp_path: Path) -> None:
    before = record(channel)
    data = append(channel, stranger(before["sha256"]))
    assert reindexed(tmp_path) == (0, ())
    assert record(channel)["attestations_sha256"] == hashlib.sha256(data).hexdigest()
    assert len(sidecar_files(channel)) == 3
    publishing.require_attestations(channel)
    assert reindexed(tmp_path) == (0, ())


def _wrong(channel: Path) -> Iterator[tuple[str, bytes]]:
    sha256 = record(channel)["sha256"]
    yield "lacks attestations", bundles.serialize_sidecar([stranger(sha256)])
    yield "no attestation of this package", bundles.serialize_sidecar([stranger("cd" * 32)])
    yield "no attestation of this package", bundles.serialize_sidecar([stranger(sha256, "other-1-0.conda")])
    yield "no attestation of this package", b"[]"
    yield "no attestation of this package", b"\xff"


def test_attestations_that_are_wrong_or_dropped_are_reported_and_not_taken(channel: Path, tmp_path: Path) -> None:
    before = record(channel)
    for message, data in _wrong(channel):
        (channel / f"{PATH}.sigs").write_bytes(data)
        _, (error,) = reindexed(tmp_path)
        assert message in error.what
        assert record(channel) == before


def test_a_sidecar_of_another_file_of_the_name_is_replaced(tmp_path: Path) -> None:
    place = tmp_path / "channel" / f"{PATH}.sigs"
    place.parent.mkdir(parents=True)
    place.write_bytes(bundles.serialize_sidecar([stranger("cd" * 32)]))
    publishing.publish_new(tmp_path)
    publishing.require_attestations(tmp_path / "channel")
    assert (tmp_path / "channel" / f"{PATH}.sigs").read_bytes() != bundles.serialize_sidecar([stranger("cd" * 32)])


OTHER = another_key()


def put_theirs(folder: Path, *more: bytes) -> bytes:
    """Put another signer's publication to the same channel next to a package that is not published yet."""
    sha256 = read_index_entry(publishing.packages(folder, ("fresh",))[0]).sha256
    theirs = OTHER.sign_statement(bundles.publication_statement(FILE, sha256, target(folder).channel_url()))
    place = folder / "channel" / f"{PATH}.sigs"
    place.parent.mkdir(parents=True)
    place.write_bytes(bundles.serialize_sidecar([theirs, *more]))
    return place.read_bytes()


def test_the_attestations_of_others_stay_and_the_own_ones_are_added(tmp_path: Path) -> None:
    theirs = put_theirs(tmp_path)
    publishing.publish_new(tmp_path)
    channel = tmp_path / "channel"
    data = (channel / f"{PATH}.sigs").read_bytes()
    assert bundles.parse_sidecar(data)[:1] == bundles.parse_sidecar(theirs)
    assert len(bundles.parse_sidecar(data)) == 3
    assert (channel / f"{PATH}.sigs.{hashlib.sha256(theirs).hexdigest()}").read_bytes() == theirs
    publishing.require_attestations(channel)
    facts: dict[str, Any] = {
        "file": FILE,
        "sha256": record(channel)["sha256"],
        "channel": target(tmp_path).channel_url(),
    }
    for key in (KEY, OTHER):
        attested = verified_attestation_facts(data, signers=[TrustedSigner(key=key.public)], **facts)
        assert attested.signer == f"the key {key.public.name}"
        assert bool(attested.provenance) is (key is KEY), "their publication does not vouch for this provenance"


def test_an_aborted_publication_leaves_the_attestations_of_others(tmp_path: Path) -> None:
    theirs = put_theirs(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path, Killed(), [])
    assert len(bundles.parse_sidecar((tmp_path / "channel" / f"{PATH}.sigs").read_bytes())) == 2
    transaction.abort(target(tmp_path))
    assert (tmp_path / "channel" / f"{PATH}.sigs").read_bytes() == theirs
    assert sidecar_files(tmp_path / "channel") == [f"{FILE}.sigs", f"{FILE}.sigs.{hashlib.sha256(theirs).hexdigest()}"]


def test_invalid_attestations_are_left_out_and_stay_in_a_copy(tmp_path: Path) -> None:
    theirs = put_theirs(tmp_path, b'{"junk": 1}', stranger("cd" * 32))
    publishing.publish_new(tmp_path)
    values = bundles.parse_sidecar((tmp_path / "channel" / f"{PATH}.sigs").read_bytes())
    assert values[0] == bundles.parse_sidecar(theirs)[0]
    assert len(values) == 3
    copy = tmp_path / "channel" / f"{PATH}.sigs.{hashlib.sha256(theirs).hexdigest()}"
    assert copy.read_bytes() == theirs


def test_more_attestations_than_readers_accept_are_refused(tmp_path: Path) -> None:
    sha256 = read_index_entry(publishing.packages(tmp_path, ("fresh",))[0]).sha256
    put_theirs(tmp_path, *[stranger(sha256)] * (bundles.MOST_BUNDLES - 1))
    with pytest.raises(BrokenPackage, match="cannot be added"):
        publishing.publish_new(tmp_path)


def test_the_uploaded_attestation_is_the_own_one(tmp_path: Path) -> None:
    folder = target(tmp_path).store
    assert isinstance(folder, FolderStore)
    theirs, own = (
        FakeSigstore().bundle(bundles.publication_statement(FILE, "ab" * 32, url)) for url in ("a://b", "c://d")
    )
    folder.write(f"{PATH}.sigs", json.dumps([theirs, own]).encode())
    file = attestations.extract_own_publication_bundle(folder, PATH)
    assert file is not None
    assert json.loads(file.read_bytes()) == own
    by_key = KEY.sign_statement(bundles.publication_statement(FILE, "ab" * 32, "c://d"))
    folder.write(f"{PATH}.sigs", bundles.sidecar_with_added_bundles(json.dumps([theirs]).encode(), [by_key]))
    assert attestations.extract_own_publication_bundle(folder, PATH) is None, (
        "a key's own attestation is not replaced by theirs"
    )
