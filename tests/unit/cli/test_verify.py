"""``kiln verify`` compares a package with its channel."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.errors import BrokenIndex, ProvenanceBroken, UsageError
from kiln.cli import verify
from kiln.cli.main import make_pasteable, run
from kiln.conda.index import read_index_entry
from kiln.conda.provenance.bundles import publication_statement
from kiln.publish import transaction
from tests import publishing

if TYPE_CHECKING:
    import pytest


def test_a_missing_package_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "/no/such/a-1-0.conda"]) == UsageError.exit_code
    assert "file not found: /no/such/a-1-0.conda" in capsys.readouterr().err


def test_a_package_that_was_never_published_has_no_statement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "channel" / "noarch" / "a-1-0.conda"
    package.parent.mkdir(parents=True)
    package.write_bytes(b"")
    assert run(["verify", str(package)]) == ProvenanceBroken.exit_code
    error = capsys.readouterr().err
    assert f"there is no statement about a-1-0.conda in the channel {tmp_path / 'channel'}" in error
    assert make_pasteable("try: kiln publish --to CHANNEL", Path()) in error


def test_a_package_is_verified_until_its_channel_is_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publishing.publish_new(tmp_path)
    channel = tmp_path / "channel"
    package = channel / "noarch" / "app-1-0.conda"
    assert run(["verify", str(package)]) == 0
    out, err = capsys.readouterr()
    assert "verified: the channel's index has the same hash" in out
    assert "its attestations were not verified" in err
    package.with_name(f"{package.name}.sigs").unlink()
    bundle = tmp_path / "bundle"
    shutil.copytree(channel / "provenance", bundle / "provenance")
    assert run(["verify", str(package), "--channel", str(bundle)]) == 0
    out, err = capsys.readouterr()
    assert "index" not in out, "a bundle has none"
    assert "nobody has signed the statement" in err
    (channel / "noarch" / "repodata.json").resolve().write_bytes(b"[]")
    assert run(["verify", str(package)]) == BrokenIndex.exit_code


def test_no_package_is_rebuilt_from_a_statement_that_the_required_signer_has_not_signed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = publishing.packages(tmp_path, ("app",))
    entries, target = [read_index_entry(path) for path in paths], publishing.target(tmp_path)
    url = target.channel_url()

    def published_only(sha256: str) -> tuple[bytes, ...]:
        return (publishing.KEY.sign_statement(publication_statement(entries[0].file, sha256, url)),)

    attestation = dataclasses.replace(publishing.attestation(entries, url), bundles=published_only)
    transaction.publish(target, paths, entries, lambda _: None, attestation)
    (tmp_path / "key.pem").write_bytes(publishing.public_pem(publishing.KEY))
    words = [str(tmp_path / "channel" / entries[0].path), "--require-attestation", str(tmp_path / "key.pem")]
    assert run(["verify", *words]) == 0
    assert "nobody has signed the statement" in capsys.readouterr().err
    assert run(["rebuild", *words, "--into", str(tmp_path / "again")]) == ProvenanceBroken.exit_code
    assert "does not have the files of its feedstock" in capsys.readouterr().err


def test_the_channel_of_a_copy_is_named_in_the_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publishing.publish_new(tmp_path)
    copy = Path(shutil.copytree(tmp_path / "channel", tmp_path / "copy", symlinks=True))
    (tmp_path / "key.pem").write_bytes(publishing.public_pem(publishing.KEY))
    words = ["verify", str(copy / "noarch" / "app-1-0.conda"), "--require-attestation", str(tmp_path / "key.pem")]
    assert run(words) == ProvenanceBroken.exit_code
    option = f"--target-channel {(tmp_path / 'channel').as_uri()}"
    assert option in capsys.readouterr().err
    assert run([*words, *option.split()]) == 0
    (tmp_path / "key.pem").write_bytes(publishing.public_pem(publishing.another_key()))
    assert run(words) == ProvenanceBroken.exit_code
    assert "--target-channel" not in capsys.readouterr().err


def test_what_others_signed_cannot_write_to_the_terminal() -> None:
    assert verify.bounded_terminal_text("built by https://a.example") == "built by https://a.example"
    assert (
        verify.bounded_terminal_text("built by \x1b[2J\nverified: all\u202e")
        == r"built by \x1b[2J\nverified: all\u202e"
    )
    assert len(verify.bounded_terminal_text("a" * 5000)) == verify.LONGEST + 3
