"""Attestations from publication to install, by the command; and by the identity of a CI job, judged by others too."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rattler.index import index_fs

from kiln.base import files
from kiln.base.errors import MissingTool, ProvenanceBroken, TokenRefused, UploadFailed, UsageError
from kiln.cli.main import run
from kiln.conda.provenance import bundles, check
from kiln.conda.provenance.check import TrustedSigner
from kiln.conda.provenance.signing import PASSPHRASE, KeylessSigner
from tests import publishing, sigstore_server
from tests.fake_sigstore import GITHUB, WORKFLOW, FakeSigstore
from tests.left_out import MISSING
from tests.packages import release_package

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CHANNEL = "https://channel.example/small"


def kiln(*words: str) -> tuple[int, str, str]:
    """Run a command in this process, and return its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(list(words))
    return code, out.getvalue(), err.getvalue()


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module.replace('_', '-')} {MISSING}")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[tuple[FakeSigstore, Path, list[str]]]:
    """A Sigstore instance on this machine, with its trust configuration and the requests it got."""
    sigstore = FakeSigstore()
    with sigstore_server.served(sigstore) as (url, requests):
        config = tmp_path / "sigstore.json"
        config.write_text(json.dumps(sigstore_server.trust_config(sigstore, url)))
        yield sigstore, config, requests


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CI job that has an identity."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", sigstore_server.token())


def test_what_a_job_signs_is_verified_here_and_by_the_tools_of_others(
    instance: tuple[FakeSigstore, Path, list[str]], job: None, tmp_path: Path
) -> None:
    needs("sigstore")
    sigstore, config, requests = instance
    package = release_package(tmp_path, "small")
    sha256 = files.sha256(package)
    made = KeylessSigner(config=config).sign_statements(
        [
            bundles.publication_statement(package.name, sha256, CHANNEL),
            bundles.slsa_statement(package.name, sha256, {"buildDefinition": {}, "runDetails": {}}),
        ]
    )
    assert requests == ["/api/v2/signingCert", "/api/v1/log/entries", "/api/v1/log/entries"]
    sidecar = bundles.serialize_sidecar(made)
    signer = TrustedSigner(identity=WORKFLOW, issuer=GITHUB, root=json.dumps(sigstore.trusted_root()))
    attested = check.verified_attestation_facts(
        sidecar, file=package.name, sha256=sha256, channel=CHANNEL, signers=[signer]
    )
    assert attested.signer == f"{WORKFLOW} ({GITHUB})"
    own = KeylessSigner(config=config).trusted_signer(WORKFLOW)
    assert own is not None
    again = check.verified_attestation_facts(sidecar, file=package.name, sha256=sha256, channel=CHANNEL, signers=[own])
    assert again.signer == attested.signer
    assert KeylessSigner(config=config).trusted_signer("") is None, "an unknown identity has signed nothing"
    assert attested.provenance == {"buildDefinition": {}, "runDetails": {}}
    needs("conda_sigstore")
    place = tmp_path / "sidecar"
    place.write_bytes(sidecar)
    argv = [sys.executable, "-m", "tests.judges.by_conda_sigstore", str(package), str(place), str(config), CHANNEL]
    judged = subprocess.run([*argv, WORKFLOW, GITHUB], cwd=ROOT, text=True, capture_output=True, check=False)
    assert judged.stdout.split()[:2] == ["verified", bundles.PUBLISH], judged.stderr
    place.write_bytes(sidecar.replace(b"A", b"B", 1))
    judged = subprocess.run([*argv, WORKFLOW, GITHUB], cwd=ROOT, text=True, capture_output=True, check=False)
    assert "verified" not in judged.stdout.split()


def test_a_job_without_an_identity_and_an_instance_that_is_away_are_told_apart(
    instance: tuple[FakeSigstore, Path, list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, config, requests = instance
    try:
        __import__("sigstore")
    except ModuleNotFoundError:
        with pytest.raises(MissingTool, match="sigstore is needed"):
            KeylessSigner(config=config).sign_statements([b"{}"])
        needs("sigstore")
    for name in ("GITHUB_ACTIONS", "GITLAB_CI", "SIGSTORE_ID_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TokenRefused, match="no identity"):
        KeylessSigner(config=config).sign_statements([b"{}"])
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", sigstore_server.token(exp=1))
    with pytest.raises(TokenRefused, match="refused"):
        KeylessSigner(config=config).sign_statements([b"{}"])
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", sigstore_server.token())
    away = tmp_path / "away.json"
    away.write_text(json.dumps(sigstore_server.trust_config(FakeSigstore(), "http://127.0.0.1:9")))
    with pytest.raises(UploadFailed, match="did not sign"):
        KeylessSigner(config=away).sign_statements([bundles.publication_statement("a-1-0.conda", "ab" * 32, CHANNEL)])
    assert requests == []


def test_an_install_takes_what_the_signer_attests_and_nothing_else(tmp_path: Path) -> None:
    publishing.publish_new(tmp_path)
    channel, key, other = tmp_path / "channel", tmp_path / "key.pub.pem", tmp_path / "other.pem"
    key.write_bytes(publishing.public_pem(publishing.KEY))
    other.write_bytes(publishing.public_pem(publishing.another_key()))

    def install(name: str, signer: str) -> tuple[int, str, str]:
        where = ("-p", str(tmp_path / name), "-c", str(channel))
        return kiln("install", *where, "app", "--require-attestation", signer)

    for name, signer in {"one": str(other), "two": WORKFLOW, "three": f"{channel}={other}"}.items():
        code, _, error = install(name, signer)
        assert code == ProvenanceBroken.exit_code, error
        assert not (tmp_path / name).exists()
    code, _, error = install("four", str(key))
    assert code == 0, error
    assert "verify the attestations of 1 package" in error
    assert install("five", f"{channel}={key}")[0] == 0
    for file in channel.glob("noarch/app-1-0.conda.sigs.*"):
        file.unlink()
    code, _, error = install("six", str(key))
    assert code == ProvenanceBroken.exit_code
    assert "the attestations of app-1-0.conda are missing" in error


def test_a_package_is_verified_by_its_attestation_with_statements_and_without(tmp_path: Path) -> None:
    publishing.publish_new(tmp_path)
    channel, key = tmp_path / "channel", tmp_path / "key.pub.pem"
    key.write_bytes(publishing.public_pem(publishing.KEY))
    words = ("verify", str(channel / "noarch" / "app-1-0.conda"))
    signed = (*words, "--require-attestation", str(key))
    assert "the channel's statement is the attested one" in kiln(*signed)[1]
    code, facts, notes = kiln(*words)
    assert (code, "attests" in facts) == (0, False)
    assert f"signed with keys ({publishing.KEY.public.name})" in notes
    copied = kiln(*signed, "--target-channel", "https://channel.example")
    assert copied[0] == ProvenanceBroken.exit_code
    assert "is read from https://channel.example" in copied[2]
    statement = channel / "provenance" / "noarch" / "app-1-0.conda.intoto.json"
    statement.write_text(statement.read_text().replace('"cores":2', '"cores":9'))
    code, _, error = kiln(*signed)
    assert code == ProvenanceBroken.exit_code
    assert "the channel's statement and the attested one differ in cores" in error
    statement.unlink()
    code, told, _ = kiln(*signed, "--json")
    assert (json.loads(told)["config"], json.loads(told)["attestation"]["channel"]) == ("config", channel.as_uri())


@pytest.mark.sampled
def test_of_several_attestations_the_signer_of_each_is_printed(tmp_path: Path) -> None:
    publishing.publish_new(tmp_path)
    channel, key, other = tmp_path / "channel", tmp_path / "key.pub.pem", publishing.another_key()
    key.write_bytes(publishing.public_pem(publishing.KEY))
    package = channel / "noarch" / "app-1-0.conda"
    words = ("verify", str(package), "--require-attestation", str(key))
    assert "attestation 1 of" not in kiln(*words)[1], "all are of one signer"
    sidecar = channel / "noarch" / "app-1-0.conda.sigs"
    theirs = other.sign_statement(bundles.publication_statement(package.name, files.sha256(package), channel.as_uri()))
    sidecar.write_bytes(bundles.sidecar_with_added_bundles(sidecar.read_bytes(), [theirs]))
    assert kiln("publish", "--to", str(channel), "--reindex")[0] == 0
    code, facts, notes = kiln(*words)
    assert code == 0
    own = f"published to {channel.as_uri()}, signed by the key {publishing.KEY.public.name}"
    assert f"verified: attestation 1 of 3: {own}" in facts
    assert f"not verified; it names the key {other.public.name}" in notes
    listed = json.loads(kiln(*words, "--json")[1])["attestations"]
    assert [one["verified"] for one in listed] == [True, True, False]
    code, _, notes = kiln("verify", str(package))
    assert code == 0
    assert "attestation 3 of 3" in notes


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel of others: packages that rattler-build and conda-package-streaming packed, indexed by rattler."""
    from conda_package_streaming import transmute

    folder = tmp_path_factory.mktemp("others")
    channel = folder / "channel"
    (channel / "noarch").mkdir(parents=True)
    outputs = [
        {
            "package": {"name": name, "version": "1.0"},
            "build": {"noarch": "generic", "script": ["mkdir -p $PREFIX/share", f"echo {name} >$PREFIX/share/{name}"]},
        }
        for name in ("one", "two")
    ]
    recipe = folder / "recipe.yaml"
    recipe.write_text(json.dumps({"recipe": {"name": "others", "version": "1.0"}, "outputs": outputs}))
    request = {"files": [], "recipe": str(recipe), "folder": str(folder), "channels": [], "order": ["one", "two"]}
    argv = (sys.executable, "-m", "tests.integration.rattler_builds")
    subprocess.run(argv, input=json.dumps(request), text=True, cwd=ROOT, check=True, capture_output=True)
    (first,) = folder.glob("noarch/one-1.0-*.conda")
    (second,) = folder.glob("noarch/two-1.0-*.conda")
    first.rename(channel / "noarch" / first.name)
    transmute.transmute_tar_bz2(str(second), channel / "noarch")
    old = next((channel / "noarch").glob("*.tar.bz2"))
    transmute.transmute(str(old), channel / "noarch")
    asyncio.run(index_fs(channel))
    for package in (channel / "noarch").glob("*-1.0-*"):
        statement = bundles.publication_statement(package.name, files.sha256(package), channel.as_uri())
        package.with_name(f"{package.name}.sigs").write_bytes(
            bundles.serialize_sidecar([publishing.KEY.sign_statement(statement)])
        )
    return channel


@pytest.mark.sampled
@pytest.mark.skipif(sys.platform != "linux", reason="rattler-build makes packages for Linux here")
def test_packages_of_other_tools_in_a_channel_of_another_indexer_are_verified(others: Path, tmp_path: Path) -> None:
    key = tmp_path / "key.pub.pem"
    key.write_bytes(publishing.public_pem(publishing.KEY))
    packages = [path for path in sorted((others / "noarch").glob("*-1.0-*")) if path.suffix != ".sigs"]
    assert [path.name.partition("-")[0] + path.suffix for path in packages] == ["one.conda", "two.conda", "two.bz2"]
    for package in packages:
        code, facts, error = kiln("verify", str(package), "--require-attestation", str(key))
        assert code == 0, error
        assert f"verified: the file is the attested one, by its hash {files.sha256(package)}" in facts
        code, _, error = kiln("verify", str(package))
        assert code == ProvenanceBroken.exit_code
        assert "has attestations, of which none was verified" in error
        changed = tmp_path / "noarch" / package.name
        changed.parent.mkdir(exist_ok=True)
        changed.write_bytes(package.read_bytes() + b" ")
        code, _, error = kiln("verify", str(changed), "--channel", str(others), "--require-attestation", str(key))
        assert code == ProvenanceBroken.exit_code
        assert "it is about another" in error


def test_a_passphrase_comes_from_the_environment_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(publishing.private_pem(publishing.KEY, "correct horse"))
    words = ("-C", str(ROOT / "tests" / "fixtures" / "small-feedstock"), "publish", "--to", str(tmp_path / "c"))
    monkeypatch.delenv(PASSPHRASE, raising=False)
    assert f"set {PASSPHRASE}" in kiln(*words, "--attest", str(key))[2]
    monkeypatch.setenv(PASSPHRASE, "battery staple")
    code, _, error = kiln(*words, "--attest", str(key))
    assert code == UsageError.exit_code
    assert "the passphrase is wrong" in error
    assert "openssl" not in error, "it would replace the key"
    assert "battery staple" not in error
