"""The verification of a package against the records of its channel."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from kiln import files, git
from kiln.conda_package import reader
from kiln.errors import BrokenPackage, ProvenanceBroken
from kiln.provenance.hash_chain import ChainedRecord, parse_chain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kiln.provenance.ssh_signatures import AllowedSigners


def verify_package_record(
    package: Path,
    chain: bytes,
    *,
    bill_of: Callable[[str], bytes | None],
    cyclonedx_of: Callable[[str], bytes | None] = lambda _: None,
    offered: Mapping[str, str],
    signers: AllowedSigners | None = None,
) -> tuple[ChainedRecord, tuple[str, ...]]:
    """Return the record of a package, and the facts that were verified.

    ``bill_of`` and ``cyclonedx_of`` return the bills of materials of a package's hash, ``offered`` are the hashes in
    the channel's index, by path; empty without an index, as in a bundle. With ``signers`` the record must be signed by
    one of them.

    Raises:
        ProvenanceBroken: at the first fact that is wrong.
        BrokenPackage: when the package cannot be read.
    """
    links = parse_chain(chain)
    sha256 = files.sha256(package)
    link = _find_package_record(links, package, sha256)
    facts = [f"{len(links)} records follow one another", f"the file is the one of the record, by its hash {sha256}"]
    facts.append(_verify_metadata(link.record, package))
    facts += _cross_compilation_facts(link.record)
    facts += _verify_index_hash(link.record, offered)
    facts.append(_verify_bill(link.record, "sbom_sha256", bill_of(sha256), "bill of materials"))
    if link.record.get("cyclonedx_sha256"):
        facts.append(_verify_bill(link.record, "cyclonedx_sha256", cyclonedx_of(sha256), "CycloneDX bill"))
    if signers is not None:
        facts.append(f"the record is signed by {signers.verified_signer(link.hash, link.signature)}")
    return link, tuple(facts)


def _find_package_record(links: tuple[ChainedRecord, ...], package: Path, sha256: str) -> ChainedRecord:
    for link in reversed(links):
        if link.record.get("sha256") == sha256:
            return link
    same_name = [link for link in links if link.record.get("file") == package.name]
    if not same_name:
        raise ProvenanceBroken(f"there is no record of {package.name}", hint="name its channel with --channel")
    raise ProvenanceBroken(
        f"{package.name} is not the package that was published",
        why=f"its hash is {sha256}, that of the record {same_name[-1].record.get('sha256')}",
    )


def _verify_metadata(record: Mapping[str, Any], package: Path) -> str:
    index = reader.read_info_json_object(package, "index.json")
    about = reader.read_info_json_object(package, "about.json")
    extra = about.get("extra", {})
    if not isinstance(extra, dict):
        raise BrokenPackage(f"{package} has an about.json whose extra is not a JSON object")
    facts = {**{key: index.get(key) for key in ("name", "version", "build", "subdir")}, "file": package.name}
    facts["commit"] = extra.get("sha")
    wrong = [key for key, value in facts.items() if record.get(key) != value]
    if wrong:
        raise ProvenanceBroken(f"{package.name} and its record differ in {', '.join(wrong)}")
    package_id = f"{facts['name']} {facts['version']} {facts['build']}"
    commit = str(facts["commit"] or "")
    changes = ", with changes that were not committed" if git.is_dirty(commit) else ""
    return f"it is {package_id} of commit {git.base_commit(commit) or 'unknown'}{changes}, as recorded"


def _cross_compilation_facts(record: Mapping[str, Any]) -> list[str]:
    how = record.get("cross_compiled")
    if not how:
        return []
    tests = "without its tests" if record.get("tests") == "skipped" else "with its tests run by an emulator"
    return [f"it was {how}, {tests}, as recorded"]


def _verify_index_hash(record: Mapping[str, Any], offered: Mapping[str, str]) -> list[str]:
    path = f"{record.get('subdir')}/{record.get('file')}"
    if not offered:
        return []
    if path not in offered:
        return ["the channel's index does not offer it: it was withdrawn"]
    if offered[path] != record.get("sha256"):
        raise ProvenanceBroken(f"the channel's index has another hash for {path}", why=offered[path])
    return ["the channel's index has the same hash"]


def _verify_bill(record: Mapping[str, Any], field: str, bill: bytes | None, name: str) -> str:
    sha256 = record.get(field)
    if bill is None or hashlib.sha256(bill).hexdigest() != sha256:
        raise ProvenanceBroken(f"the {name} is missing or is not the one of the record", why=f"hash {sha256}")
    return f"its {name} is the one of the record"
