"""Publications to channel servers: their order, their faults, and what is taken back."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from kiln.base.errors import HashMismatch, PublicationPending, UploadFailed
from kiln.conda.index import read_index_entry
from kiln.conda.provenance import bundles, sbom
from kiln.conda.provenance.bundles import publication_statement
from kiln.conda.provenance.check import TrustedSigner, verified_attestation_facts
from kiln.conda.provenance.records import ReleaseAttestations
from kiln.conda.solve import install, solve
from kiln.publish import transaction
from kiln.publish.provenance import package_documents
from kiln.publish.servers.servers import ServerKind
from kiln.publish.targets import parse_target
from tests import publishing, warm
from tests.channel_server import TOKEN
from tests.fake_sigstore import GITHUB, WORKFLOW, FakeSigstore
from tests.integration.publish_servers.helpers import KINDS, Mortal, channel_on, refuse, release, requests, served
from tests.packages import release_package

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.publish.servers.servers import Server


@pytest.mark.parametrize("kind", KINDS)
def test_packages_are_tried_out_from_staging_and_come_in_the_order_of_need(
    server: str, tmp_path: Path, kind: ServerKind
) -> None:
    tried: list[str] = []
    where = channel_on(server, kind, tmp_path)

    def try_out(url: str) -> None:
        tried.append(url)
        install(solve([url], ["app"], virtual_packages={}), tmp_path / "prefix", cache=tmp_path / "cache")
        assert where.package_hashes() == {}

    paths, entries = release(tmp_path)
    new = transaction.publish(where, paths, entries, try_out)
    assert new == ("linux-64/lib-1-0.conda", "linux-64/app-1-0.conda")
    assert tried == [where.server.channel_url("trial")]
    assert (tmp_path / "prefix" / "share" / "app").is_file()
    brought = [tuple(line.split()[1:-1]) for line in requests(tmp_path, "POST", "PUT")]
    names = ("lib-1-0.conda", "app-1-0.conda")
    promoted: dict[ServerKind, list[tuple[str, ...]]] = {
        ServerKind.ANACONDA: [("release", "from", "trial")],
        ServerKind.QUETZ: [("release", *names)],
        ServerKind.ARTIFACTORY: [("release", "from", "trial")] * 2,
        ServerKind.PREFIX: [("release", name) for name in names],
    }
    assert brought == [*(("trial", name) for name in names), *promoted[kind]]
    assert served(tmp_path) == {entry.path: entry.sha256 for entry in entries}
    assert served(tmp_path, "trial") == {}, "what was published is staged no longer"
    before = len(requests(tmp_path))
    assert transaction.publish(where, paths, entries, try_out) == ()
    assert len(requests(tmp_path)) == before, "what is there by its hash is not brought again"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        (ServerKind.QUETZ, ["500", "503"]),
        (ServerKind.QUETZ, ["429"]),
        (ServerKind.QUETZ, ["cut"]),
        (ServerKind.QUETZ, ["lost"]),
        (ServerKind.QUETZ, ["slow"]),
        (ServerKind.QUETZ, ["ok", "ok", "500", "cut", "lost"]),
        (ServerKind.QUETZ, ["ok", "ok", "413"]),
        (ServerKind.ARTIFACTORY, ["500", "cut"]),
        (ServerKind.ARTIFACTORY, ["lost"]),
        (ServerKind.ARTIFACTORY, ["ok", "ok", "lost", "503"]),
        (ServerKind.PREFIX, ["429", "cut"]),
        (ServerKind.ANACONDA, ["429", "cut"]),
        (ServerKind.ANACONDA, ["ok", "ok", "503", "lost"]),
    ],
)
def test_a_fault_that_passes_costs_another_attempt_after_a_pause(
    server: str, tmp_path: Path, kind: ServerKind, faults: list[str]
) -> None:
    (tmp_path / "faults").write_text("\n".join(faults))
    pauses: list[float] = []
    where = channel_on(server, kind, tmp_path, pauses)
    paths, entries = release(tmp_path)
    transaction.publish(where, paths, entries, lambda _: None)
    assert served(tmp_path) == where.package_hashes() == {entry.path: entry.sha256 for entry in entries}
    assert (tmp_path / "faults").read_text() == ""
    assert pauses == sorted(pauses), "each longer than the one before"


@pytest.mark.sampled
def test_packages_that_a_server_does_not_remove_are_reported(server: str, tmp_path: Path) -> None:
    (tmp_path / "faults").write_text("\n".join(["ok"] * 3 + ["500"] * 100))
    (tmp_path / "removal-faults").write_text("\n".join(["500"] * 100))
    where = channel_on(server, ServerKind.ARTIFACTORY, tmp_path)
    with pytest.raises(UploadFailed, match="app-1-0") as failed:
        transaction.publish(where, *release(tmp_path), lambda _: None)
    assert f"1 of 2 packages are in {where.name} and stay there" in failed.value.why
    with pytest.raises(UploadFailed, match="could not be removed"):
        transaction.abort(where)
    (tmp_path / "removal-faults").write_text("lost\n429\ncut\nslow")
    assert len(transaction.abort(where)) == 2
    assert served(tmp_path) == served(tmp_path, "trial") == {}


def test_a_file_with_another_hash_on_the_server_is_an_error(server: str, tmp_path: Path) -> None:
    where = channel_on(server, ServerKind.QUETZ, tmp_path)
    transaction.publish(where, *release(tmp_path), lambda _: None)
    before = served(tmp_path)
    shutil.rmtree(tmp_path / "built")
    path = release_package(tmp_path / "built", "lib", license="MIT")
    with pytest.raises(UploadFailed, match="another hash"):
        transaction.publish(where, [path], [read_index_entry(path)], lambda _: None)
    transaction.abort(where)
    assert served(tmp_path) == before, "what was there before is never taken away"


def test_packages_that_fail_in_staging_never_reach_the_channel_and_can_be_aborted(server: str, tmp_path: Path) -> None:
    where = channel_on(server, ServerKind.QUETZ, tmp_path)
    with pytest.raises(HashMismatch):
        transaction.publish(where, *release(tmp_path), refuse)
    assert where.package_hashes() == {}
    other = release_package(tmp_path / "built", "other")
    with pytest.raises(PublicationPending, match="2 packages"):
        transaction.publish(where, [other], [read_index_entry(other)], lambda _: None)
    assert transaction.abort(where) == ("linux-64/app-1-0.conda", "linux-64/lib-1-0.conda")
    assert served(tmp_path, "trial") == {}
    transaction.publish(where, [other], [read_index_entry(other)], lambda _: None)
    assert transaction.abort(where) == (), "what is finished stays"
    assert len(served(tmp_path)) == 1


def test_statements_about_packages_on_a_server_are_next_to_its_journal(server: str, tmp_path: Path) -> None:
    where = channel_on(server, ServerKind.QUETZ, tmp_path)
    for name in ("first", "second"):
        path = release_package(tmp_path / "built", name)
        entry = read_index_entry(path)
        made = publishing.record(entry.file, sha256=entry.sha256)
        attested = ReleaseAttestations(
            documents={entry.sha256: package_documents(made, sbom.spdx_bill_of_materials(made, home=""), b"{}")}
        )
        transaction.publish(where, [path], [entry], lambda _: None, attested)
    (folder,) = (tmp_path / "journals").glob("*/provenance")
    assert publishing.described(folder.parent) == {"first-1-0.conda", "second-1-0.conda"}
    assert str(folder) in " ".join(where.notes)
    assert len(list((folder / "sbom").iterdir())) == 4


def test_the_command_aborts_the_publication_of_a_killed_one(server: str, tmp_path: Path) -> None:
    named, environment = f"prefix:{server}/release", {ServerKind.PREFIX.server_class.token_variable: TOKEN}
    journals = tmp_path / "build_artifacts" / "publications"
    where = parse_target(named, environment, journals=journals, staging="trial")
    with pytest.raises(HashMismatch):
        transaction.publish(where, *release(tmp_path), refuse)
    words = ("-C", str(tmp_path), "publish", "--to", named, "--abort", "--json")
    ended = warm.kiln(*words, env={**os.environ, **environment})
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {"aborted": ["linux-64/app-1-0.conda", "linux-64/lib-1-0.conda"]}
    assert served(tmp_path, "trial") == {}
    assert not list(journals.glob("*/journal.json"))


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
def test_an_upload_that_is_not_indexed_yet_is_removed_by_its_hash(
    server: str, tmp_path: Path, kind: ServerKind
) -> None:
    where = channel_on(server, kind, tmp_path)
    (tmp_path / "faults").write_text("later")
    mortal = dataclasses.replace(where, server=cast("Server", Mortal(where.server, 1, after=False)))
    with pytest.raises(KeyboardInterrupt):
        transaction.publish(mortal, *release(tmp_path), lambda _: None)
    assert len(served(tmp_path, "trial")) == 1
    (tmp_path / "package-faults").write_text("cut\n503")
    transaction.abort(where)
    assert served(tmp_path, "trial") == {}


def test_a_label_with_other_packages_is_not_published_with_them(server: str, tmp_path: Path) -> None:
    where = channel_on(server, ServerKind.ANACONDA, tmp_path)
    other = release_package(tmp_path / "built", "other")
    where.server.upload(other, "trial")
    with pytest.raises(PublicationPending, match="other-1-0"):
        transaction.publish(where, *release(tmp_path), lambda _: None)
    assert served(tmp_path) == {}


def test_the_attestation_of_a_publication_comes_with_the_package_where_the_server_takes_it(
    server: str, tmp_path: Path
) -> None:
    channel, sigstore = f"{server}/release", FakeSigstore()
    signer = TrustedSigner(identity=WORKFLOW, issuer=GITHUB, root=json.dumps(sigstore.trusted_root()))
    for kind in (ServerKind.PREFIX, ServerKind.QUETZ):
        where = channel_on(server, kind, tmp_path / kind.value)
        path = release_package(tmp_path / "built", f"app-{kind.value}")
        entry = read_index_entry(path)
        signed = json.dumps(sigstore.bundle(publication_statement(entry.file, entry.sha256, channel))).encode()
        attestation = ReleaseAttestations(
            documents={},
            bundles={entry.sha256: (signed,)}.__getitem__,
        )
        transaction.publish(where, [path], [entry], lambda _: None, attestation)
        received = tmp_path / f"{entry.file}.attestation"
        assert received.is_file() is (kind is ServerKind.PREFIX)
        assert (where.state_folder.root / f"{entry.path}.sigs").read_bytes() == bundles.serialize_sidecar([signed])
        facts = {"file": entry.file, "sha256": entry.sha256, "channel": channel}
        if received.is_file():
            assert (
                verified_attestation_facts(b"[" + received.read_bytes() + b"]", signers=[signer], **facts).channel
                == channel
            )
        assert any("attestations" in note for note in where.notes) is (kind is ServerKind.QUETZ)
