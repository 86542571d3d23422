"""A package is verified against its record, the channel's index, and its bill of materials."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BrokenPackage, ProvenanceBroken
from kiln.conda.provenance import records, signing
from tests.packages import conda_package
from tests.publishing import record

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.conda.provenance.records import ChainedRecord

FILE, PATH = "a-1-0.conda", "linux-64/a-1-0.conda"
COMMIT = "c" * 40


def package(folder: Path, extra: object = None, **index: Any) -> Path:
    values = {"name": "a", "version": "1", "build": "0", "build_number": 0, "subdir": "linux-64", "depends": []}
    about = {"extra": {"sha": COMMIT} if extra is None else extra}
    return conda_package(folder / FILE, {"index.json": {**values, **index}, "about.json": about})


def verified(
    file: Path, offered: dict[str, str] | None = None, **changed: Any
) -> tuple[ChainedRecord, tuple[str, ...]]:
    """Verify a file against a chain whose last record is its own."""
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    bill = b"bill of materials"
    fields = {"sha256": sha256, "commit": COMMIT, "sbom_sha256": hashlib.sha256(bill).hexdigest(), **changed}
    chain = records.serialize_chain([record("other-1-0.conda"), record(FILE, **fields)], "")
    return records.verify_package_record(file, chain, bill_of={sha256: bill}.get, offered=offered or {})


def test_a_package_is_verified_with_each_fact(tmp_path: Path) -> None:
    file = package(tmp_path)
    link, facts = verified(file)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert link.record["file"] == FILE
    assert facts == (
        "2 records follow one another",
        f"the file is the one of the record, by its hash {sha256}",
        f"it is a 1 0 of commit {COMMIT}, as recorded",
        "its bill of materials is the one of the record",
    )


def test_the_index_of_a_channel_counts(tmp_path: Path) -> None:
    file = package(tmp_path)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert "the channel's index has the same hash" in verified(file, {PATH: sha256})[1]
    assert any("it was withdrawn" in fact for fact in verified(file, {"noarch/a-1-0.conda": sha256})[1])
    with pytest.raises(ProvenanceBroken, match=f"the channel's index has another hash for {PATH}"):
        verified(file, {PATH: "0" * 64})


@pytest.mark.parametrize(
    ("changed", "keys"),
    [
        ({"version": "2"}, "version"),
        ({"name": "b", "subdir": "noarch"}, "name, subdir"),
        ({"build": "1", "commit": None}, "build, commit"),
    ],
)
def test_a_record_that_differs_from_the_packages_metadata_is_refused(
    tmp_path: Path, changed: dict[str, Any], keys: str
) -> None:
    with pytest.raises(ProvenanceBroken, match=f"{FILE} and its record differ in {keys}$"):
        verified(package(tmp_path), **changed)


def test_a_changed_package_and_one_without_a_record_are_told_apart(tmp_path: Path) -> None:
    file = package(tmp_path)
    with pytest.raises(ProvenanceBroken, match=f"{FILE} is not the package that was published") as caught:
        verified(file, sha256="0" * 64)
    assert caught.value.why.endswith(f"that of the record {'0' * 64}")
    unknown = file.rename(tmp_path / "unknown-1-0.conda")
    with pytest.raises(ProvenanceBroken, match="there is no record of unknown-1-0"):
        records.verify_package_record(unknown, b"", bill_of=lambda _: None, offered={})


def test_of_two_records_of_a_hash_the_last_counts(tmp_path: Path) -> None:
    """A package that was withdrawn can be published again, with a record of its own."""
    file = package(tmp_path)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    fields = {"sha256": sha256, "commit": COMMIT, "sbom_sha256": hashlib.sha256(b"").hexdigest()}
    chain = records.serialize_chain([record(FILE, **fields, cores=1), record(FILE, **fields, cores=64)], "")
    link, _ = records.verify_package_record(file, chain, bill_of=lambda _: b"", offered={})
    assert link.record["cores"] == 64


def test_a_missing_or_changed_bill_is_refused(tmp_path: Path) -> None:
    file = package(tmp_path)
    with pytest.raises(ProvenanceBroken, match="bill of materials is missing or is not the one"):
        verified(file, sbom_sha256="0" * 64)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    chain = records.serialize_chain([record(FILE, sha256=sha256, commit=COMMIT, sbom_sha256=None)], "")
    with pytest.raises(ProvenanceBroken, match="bill of materials is missing"):
        records.verify_package_record(file, chain, bill_of=lambda _: None, offered={})


def test_a_package_without_a_commit_matches_a_record_without_one(tmp_path: Path) -> None:
    _, facts = verified(package(tmp_path, extra={}), commit=None)
    assert "it is a 1 0 of commit unknown, as recorded" in facts


def test_a_broken_about_json_is_the_packages_fault(tmp_path: Path) -> None:
    with pytest.raises(BrokenPackage, match=r"about\.json whose extra is not a JSON object"):
        verified(package(tmp_path, extra=["sha"]))


def test_with_signers_an_unsigned_record_is_refused(tmp_path: Path) -> None:
    class Nobody(signing.AllowedSigners):
        def verified_signer(self, text: str, signature: str) -> str:
            raise ProvenanceBroken(f"nobody signed {text} {signature!r}")

    file = package(tmp_path)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    chain = records.serialize_chain(
        [record(FILE, sha256=sha256, commit=COMMIT, sbom_sha256=hashlib.sha256(b"").hexdigest())], ""
    )
    digest = records.last_record_hash(chain)
    with pytest.raises(ProvenanceBroken, match=f"nobody signed {digest} ''"):
        records.verify_package_record(
            file, chain, bill_of=lambda _: b"", offered={}, signers=Nobody(file=tmp_path / "signers", env={})
        )


@pytest.mark.parametrize(
    ("tests", "expected"), [("skipped", "without its tests"), ("passed", "with its tests run by an emulator")]
)
def test_a_cross_compiled_package_is_verified_as_one(tmp_path: Path, tests: str, expected: str) -> None:
    how = "cross-compiled for linux-aarch64 on linux-64"
    facts = verified(package(tmp_path), tests=tests, cross_compiled=how)[1]
    assert f"it was {how}, {expected}, as recorded" in facts
