"""A package is verified against the channel's statement, its index, and the bills of materials."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BrokenPackage, ProvenanceBroken
from kiln.conda.index_files import index_from_repodata
from kiln.conda.provenance import bundles, records
from tests.packages import conda_package
from tests.publishing import record

if TYPE_CHECKING:
    from pathlib import Path

FILE, PATH = "a-1-0.conda", "linux-64/a-1-0.conda"
COMMIT = "c" * 40
BILL = b"bill of materials"


def package(folder: Path, extra: object = None, **index: Any) -> Path:
    values = {"name": "a", "version": "1", "build": "0", "build_number": 0, "subdir": "linux-64", "depends": []}
    about = {"extra": {"sha": COMMIT} if extra is None else extra}
    return conda_package(folder / FILE, {"index.json": {**values, **index}, "about.json": about})


def sha256_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def statement(sha256: str, **changed: Any) -> bytes:
    """The statement about a package."""
    fields = {"commit": COMMIT, "sbom_sha256": hashlib.sha256(BILL).hexdigest(), **changed}
    made = dataclasses.asdict(record(FILE, sha256=sha256, **fields))
    return bundles.slsa_statement(FILE, sha256, bundles.predicate_of_record(made))


def verified(
    file: Path, repodata: dict[str, Any] | None = None, *, bill: bytes | None = BILL, **changed: Any
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Verify a file against a statement about it."""
    bills = {"sbom_sha256": bill, "cyclonedx_sha256": bill}
    made = statement(changed.pop("sha256", sha256_of(file)), **changed)
    index = None if repodata is None else index_from_repodata("linux-64", json.dumps(repodata).encode())
    return records.verify_package_statement(file, made, bills=bills, index=index)


def test_a_package_is_verified_with_each_fact(tmp_path: Path) -> None:
    file = package(tmp_path)
    repodata = {"packages.conda": {FILE: {"sha256": sha256_of(file)}}}
    made, facts = verified(file, repodata, cyclonedx_sha256=hashlib.sha256(BILL).hexdigest())
    assert (made["file"], made["config"], made["cores"]) == (FILE, "config", 2)
    assert facts == (
        f"the file is the one of the channel's statement, by its hash {sha256_of(file)}",
        f"it is a 1 0 of commit {COMMIT}, as recorded",
        "the channel's index has the same hash",
        "its bill of materials is the one of the record",
        "its CycloneDX bill is the one of the record",
    )


def test_the_index_of_a_channel_counts(tmp_path: Path) -> None:
    file = package(tmp_path)
    assert any("it was withdrawn" in fact for fact in verified(file, {"removed": [FILE]})[1])
    with pytest.raises(ProvenanceBroken, match=f"the channel's index lacks {PATH}"):
        verified(file, {"removed": ["b-1-0.conda"]})
    with pytest.raises(ProvenanceBroken, match=f"the channel's index has another hash for {PATH}"):
        verified(file, {"packages.conda": {FILE: {"sha256": "0" * 64}}})


@pytest.mark.parametrize(
    ("changed", "keys"),
    [
        ({"version": "2"}, "version"),
        ({"name": "b", "subdir": "noarch"}, "name, subdir"),
        ({"build": "1", "commit": None}, "build, commit"),
    ],
)
def test_a_statement_that_differs_from_the_packages_metadata_is_refused(
    tmp_path: Path, changed: dict[str, Any], keys: str
) -> None:
    with pytest.raises(ProvenanceBroken, match=f"{FILE} and its record differ in {keys}$"):
        verified(package(tmp_path), **changed)


def test_a_changed_package_is_not_the_one_that_was_published(tmp_path: Path) -> None:
    with pytest.raises(ProvenanceBroken, match=f"{FILE} is not the package that was published") as caught:
        verified(package(tmp_path), sha256="0" * 64)
    assert caught.value.why.endswith(f"of the hash {'0' * 64}")


def incomplete(predicate: dict[str, Any]) -> dict[str, Any]:
    return {**predicate, "buildDefinition": {"buildType": bundles.BUILD_TYPE, "internalParameters": []}}


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made[:-1],
        lambda _: b"[" * 100_000,
        lambda _: b"1",
        lambda made: made.replace(b"Statement/v1", b"Statement/v2"),
        lambda made: made.replace(b'"cores":2', b'"cores":2,"cores":3'),
        lambda made: made.replace(b'"cores":2', b'"cores":NaN'),
        lambda made: made.replace(bundles.BUILD_TYPE.encode(), b"https://another.example"),
        lambda made: json.dumps({**json.loads(made), "predicate": incomplete({})}).encode(),
    ],
)
def test_an_invalid_statement_is_reported(tmp_path: Path, change: Any) -> None:
    file = package(tmp_path)
    with pytest.raises(ProvenanceBroken, match=r"the channel's statement about .* is invalid|is incomplete"):
        records.verify_package_statement(file, change(statement(sha256_of(file))), bills={}, index=None)


@pytest.mark.parametrize("bill", [None, b"another"])
def test_a_missing_or_changed_bill_is_refused(tmp_path: Path, bill: bytes | None) -> None:
    file = package(tmp_path)
    for digest in (hashlib.sha256(BILL).hexdigest(), None):
        with pytest.raises(ProvenanceBroken, match="bill of materials is missing or is not the one"):
            verified(file, bill=bill, sbom_sha256=digest)


def test_a_package_without_a_commit_matches_a_record_without_one(tmp_path: Path) -> None:
    _, facts = verified(package(tmp_path, extra={}), commit=None)
    assert "it is a 1 0 of commit unknown, as recorded" in facts


def test_a_broken_about_json_is_the_packages_fault(tmp_path: Path) -> None:
    with pytest.raises(BrokenPackage, match=r"about\.json whose extra is not a JSON object"):
        verified(package(tmp_path, extra=["sha"]))


@pytest.mark.parametrize(
    ("tests", "expected"), [("skipped", "without its tests"), ("passed", "with its tests run by an emulator")]
)
def test_a_cross_compiled_package_is_verified_as_one(tmp_path: Path, tests: str, expected: str) -> None:
    how = "cross-compiled for linux-aarch64 on linux-64"
    facts = verified(package(tmp_path), tests=tests, cross_compiled=how)[1]
    assert f"it was {how}, {expected}, as recorded" in facts
