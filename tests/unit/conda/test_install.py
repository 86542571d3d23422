"""An install requires attestations of all packages, or of those of one channel."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import ProvenanceBroken, UsageError
from kiln.conda import install
from kiln.conda.install import RequiredSigners
from kiln.conda.provenance import bundles
from kiln.conda.provenance.check import TrustedSigner
from kiln.conda.rattler.client import records_from_json
from tests.publishing import KEY, another_key

if TYPE_CHECKING:
    from pathlib import Path

FILE, SHA256 = "small-1-0.conda", "ab" * 32
OTHER = another_key()
SIGNERS = {"us": TrustedSigner(key=KEY.public), "them": TrustedSigner(key=OTHER.public)}


def rules(*texts: str, channels: tuple[str, ...] = ("https://a.example/c",)) -> RequiredSigners:
    names = {**{name: name for name in channels}, "c": channels[0]}
    return RequiredSigners.parse(texts, channel_of=names.get, signers=lambda text: (SIGNERS[text],))


def record(folder: Path, *made: bytes, channel: str = "https://a.example/c", **changed: Any) -> Any:
    """Return the record of a package whose attestations are in a folder."""
    data = bundles.serialize_sidecar(made)
    digest = hashlib.sha256(data).hexdigest()
    (folder / f"{FILE}.sigs.{digest}").write_bytes(data)
    fields = {"name": "small", "version": "1", "build": "0", "build_number": 0, "depends": [], "subdir": "noarch"}
    place = {"fn": FILE, "url": (folder / FILE).as_uri(), "channel": channel}
    values = {**fields, **place, "sha256": SHA256, "attestations_sha256": digest, **changed}
    (one,) = records_from_json([{key: value for key, value in values.items() if value is not None}])
    return one


def published(channel: str = "https://a.example/c", sha256: str = SHA256) -> bytes:
    return KEY.sign_statement(bundles.publication_statement(FILE, sha256, channel))


def test_what_a_required_signer_published_to_the_channel_is_accepted(tmp_path: Path) -> None:
    one = record(tmp_path, published())
    for words in (
        ("us",),
        ("them", "us"),
        ("c=us",),
        ("https://a.example/c=us",),
        ("c=them", "c=us"),
        ("c=them", "us"),
    ):
        install.verify_attestations([one], rules(*words))


@pytest.mark.parametrize("words", [("them",), ("c=them",), ("https://a.example/c=them",)])
def test_what_another_signer_published_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(ProvenanceBroken, match="no valid attestation of small-1-0"):
        install.verify_attestations([record(tmp_path, published())], rules(*words))


def test_packages_of_other_channels_need_none_where_a_rule_names_one(tmp_path: Path) -> None:
    elsewhere = record(tmp_path, published(), channel="https://b.example/c", attestations_sha256=None)
    install.verify_attestations([elsewhere], rules("c=us"))
    with pytest.raises(ProvenanceBroken, match="the index has no attestation of small-1-0"):
        install.verify_attestations([elsewhere], rules("us"))


def test_every_package_that_lacks_one_is_named(tmp_path: Path) -> None:
    wrong = [
        record(tmp_path, published(), sha256=None),
        record(tmp_path, published(), attestations_sha256="0" * 64),
        record(tmp_path, published("https://b.example/c")),
        record(tmp_path, published(sha256="cd" * 32)),
    ]
    with pytest.raises(ProvenanceBroken, match=r"no SHA-256 of small-1-0.conda; and 3 more") as refused:
        install.verify_attestations([*wrong, record(tmp_path, published())], rules("us"))
    text = str(refused.value)
    assert all(why in text for why in ("are missing", "https://b.example/c", "of the hash cdcd"))


def test_attestations_that_were_replaced_are_not_read(tmp_path: Path) -> None:
    one = record(tmp_path, published())
    (place,) = tmp_path.glob("*.sigs.*")
    place.write_bytes(bundles.serialize_sidecar([published(), published()]))
    with pytest.raises(ProvenanceBroken, match="are not those of the index"):
        install.verify_attestations([one], rules("us"))


@pytest.mark.parametrize("changed", [{"name": "numpy"}, {"version": "2"}, {"build": "1"}], ids=str)
def test_a_signed_file_is_not_accepted_as_another_package(tmp_path: Path, changed: dict[str, str]) -> None:
    with pytest.raises(ProvenanceBroken, match=r"the index has small-1-0.conda as"):
        install.verify_attestations([record(tmp_path, published(), **changed)], rules("us"))


def test_a_rule_for_a_text_that_is_no_channel_is_a_signer() -> None:
    asked: list[str] = []

    def signers(text: str) -> tuple[TrustedSigner, ...]:
        asked.append(text)
        raise UsageError("no key")

    with pytest.raises(UsageError):
        RequiredSigners.parse(["d=https://github.com/a?b=c"], channel_of=lambda _: None, signers=signers)
    assert asked == ["d=https://github.com/a?b=c"]
