"""Attestations from publication to install, by the command; and by the identity of a CI job, judged by others too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln import files
from kiln.errors import MissingTool, ProvenanceBroken, TokenRefused, UploadFailed
from kiln.provenance import attestation_check, bundles, statements
from kiln.provenance.attestation_check import TrustedSigner
from kiln.provenance.attestation_keys import PASSPHRASE
from kiln.provenance.keyless import KeylessSigner
from tests import publishing, sigstore_server
from tests.fake_sigstore import GITHUB, WORKFLOW, FakeSigstore
from tests.left_out import MISSING
from tests.packages import release_package

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CHANNEL = "https://channel.example/small"


def kiln(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    argv = (sys.executable, "-m", "kiln", *words)
    return subprocess.run(argv, cwd=ROOT, text=True, capture_output=True, check=False, env={**os.environ, **variables})


def needs(module: str) -> None:
    if pytest.importorskip("importlib.util").find_spec(module) is None:
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
    made = KeylessSigner(config=config).bundles(
        [
            statements.publish_statement(package.name, sha256, CHANNEL),
            statements.slsa_statement(package.name, sha256, {"buildDefinition": {}, "runDetails": {}}),
        ]
    )
    assert requests == ["/api/v2/signingCert", "/api/v1/log/entries", "/api/v1/log/entries"]
    sidecar = bundles.sidecar(made)
    signer = TrustedSigner(identity=WORKFLOW, issuer=GITHUB, root=json.dumps(sigstore.trusted_root()))
    attested = attestation_check.checked(sidecar, file=package.name, sha256=sha256, channel=CHANNEL, signers=[signer])
    assert attested.signer == f"{WORKFLOW} ({GITHUB})"
    assert attested.provenance == {"buildDefinition": {}, "runDetails": {}}
    needs("conda_sigstore")
    place = tmp_path / "sidecar"
    place.write_bytes(sidecar)
    argv = [sys.executable, "-m", "tests.judges.by_conda_sigstore", str(package), str(place), str(config), CHANNEL]
    judged = subprocess.run([*argv, WORKFLOW, GITHUB], cwd=ROOT, text=True, capture_output=True, check=False)
    assert judged.stdout.split()[:2] == ["verified", statements.PUBLISH], judged.stderr
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
            KeylessSigner(config=config).bundles([b"{}"])
        needs("sigstore")
    for name in ("GITHUB_ACTIONS", "GITLAB_CI", "SIGSTORE_ID_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TokenRefused, match="no identity"):
        KeylessSigner(config=config).bundles([b"{}"])
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", sigstore_server.token(exp=1))
    with pytest.raises(TokenRefused, match="refused"):
        KeylessSigner(config=config).bundles([b"{}"])
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", sigstore_server.token())
    away = tmp_path / "away.json"
    away.write_text(json.dumps(sigstore_server.trust_config(FakeSigstore(), "http://127.0.0.1:9")))
    with pytest.raises(UploadFailed, match="did not sign"):
        KeylessSigner(config=away).bundles([statements.publish_statement("a-1-0.conda", "ab" * 32, CHANNEL)])
    assert requests == []


def test_an_install_takes_what_the_signer_attests_and_nothing_else(tmp_path: Path) -> None:
    publishing.publish_new(tmp_path)
    channel, key, other = tmp_path / "channel", tmp_path / "key.pub.pem", tmp_path / "other.pem"
    key.write_bytes(publishing.public_pem(publishing.KEY))
    other.write_bytes(publishing.public_pem(publishing.another_key()))

    def install(name: str, *words: str) -> subprocess.CompletedProcess[str]:
        return kiln("install", "-p", str(tmp_path / name), "-c", str(channel), "app", *words)

    done = install("one", "--require-attestation", str(key))
    assert done.returncode == 0, done.stderr
    assert "verify the attestations of 1 package" in done.stderr
    for name, words in {
        "two": ("--require-attestation", str(other)),
        "three": ("--require-attestation", WORKFLOW),
        "four": ("--require-attestation", f"{channel}={other}"),
    }.items():
        refused = install(name, *words)
        assert refused.returncode == ProvenanceBroken.exit_code, refused.stderr
        assert not (tmp_path / name).exists()
    assert install("five", "--require-attestation", f"{channel}={key}").returncode == 0
    package = channel / "noarch" / "app-1-0.conda"
    told = kiln("verify", str(package), "--require-attestation", str(key), "--json")
    assert json.loads(told.stdout)["attestation"]["channel"] == channel.as_uri()
    (channel / "provenance" / "chain.jsonl").resolve().unlink()
    told = kiln("verify", str(package), "--require-attestation", str(key), "--json")
    assert json.loads(told.stdout)["config"] == "config", "the record comes from the attestation"
    assert "attests its publication" in kiln("verify", str(package), "--require-attestation", str(key)).stdout
    for file in channel.glob("noarch/app-1-0.conda.sigs.*"):
        file.unlink()
    refused = install("six", "--require-attestation", str(key))
    assert refused.returncode == ProvenanceBroken.exit_code
    assert "the attestations of app-1-0.conda are missing" in refused.stderr


def test_a_passphrase_comes_from_the_environment_alone(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(publishing.private_pem(publishing.KEY, "correct horse"))
    words = ("-C", str(ROOT / "tests" / "fixtures" / "small-feedstock"), "publish", "--to", str(tmp_path / "c"))
    for variables, message in (({}, f"set {PASSPHRASE}"), ({PASSPHRASE: "battery staple"}, "may be wrong")):
        refused = kiln(*words, "--attest", str(key), **variables)
        assert refused.returncode == 2, refused.stderr
        assert message in refused.stderr
        assert "battery staple" not in refused.stderr
