"""``kiln verify`` compares a package with the index of its channel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.base.errors import BrokenIndex, ProvenanceBroken, UsageError
from kiln.cli import verify
from kiln.cli.main import make_pasteable, run


def test_the_hashes_of_an_index_are_those_of_all_subdirs() -> None:
    indexes = {
        "linux-64/repodata.json": {"packages": {}, "packages.conda": {"a-1-0.conda": {"sha256": "ab"}}},
        "noarch/repodata.json": {"packages": {"b-1-0.tar.bz2": {"sha256": "cd"}}, "packages.conda": {}},
    }
    hashes = verify.hashes_in_channel_index(lambda path: json.dumps(indexes[path]).encode())
    assert hashes == {"linux-64/a-1-0.conda": "ab", "noarch/b-1-0.tar.bz2": "cd"}


def test_a_bundle_has_no_index() -> None:
    assert verify.hashes_in_channel_index(lambda _: None) == {}


def test_an_invalid_index_is_reported() -> None:
    with pytest.raises(BrokenIndex):
        verify.hashes_in_channel_index(lambda _: b"[]")


def test_a_missing_package_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "/no/such/a-1-0.conda"]) == UsageError.exit_code
    assert "file not found: /no/such/a-1-0.conda" in capsys.readouterr().err


def test_a_package_that_was_never_published_is_told_from_a_wrong_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "channel" / "noarch" / "a-1-0.conda"
    package.parent.mkdir(parents=True)
    package.write_bytes(b"")
    assert run(["verify", str(package)]) == ProvenanceBroken.exit_code
    error = capsys.readouterr().err
    assert f"a-1-0.conda has no record: the channel {tmp_path / 'channel'} has none of any package" in error
    assert make_pasteable("try: kiln publish --to CHANNEL", Path()) in error


def test_what_others_signed_cannot_write_to_the_terminal() -> None:
    assert verify.bounded_terminal_text("built by https://a.example") == "built by https://a.example"
    assert (
        verify.bounded_terminal_text("built by \x1b[2J\nverified: all\u202e")
        == r"built by \x1b[2J\nverified: all\u202e"
    )
    assert len(verify.bounded_terminal_text("a" * 5000)) == verify.LONGEST + 3
