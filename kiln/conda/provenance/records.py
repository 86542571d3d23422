"""The records of a channel's packages, chained by hashes, and the verification of a package by them."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln.base import files, git
from kiln.base.errors import BrokenPackage, ProvenanceBroken
from kiln.base.serialization import canonical_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from kiln.conda.provenance.signing import AllowedSigners


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalRepository:
    """A repository that Bazel's files of a source declare: a module of a registry, or an archive at an address.

    ``alias`` is the name that the source's own files use for a module, ``version`` that of a module or a Git revision.
    Unknown values are empty.
    """

    name: str
    alias: str = ""
    version: str = ""
    registry: str = ""
    url: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPackage:
    """A package that the solver chose for an environment: ``scope`` is ``build``, ``host``, or ``run`` in a test.

    ``url`` is its address without credentials, ``channel`` that of its channel. Unknown values are empty.
    """

    scope: str
    name: str
    version: str
    build: str
    subdir: str = ""
    url: str = ""
    sha256: str = ""
    channel: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The provenance of one package: times are in seconds since the epoch, ``epoch`` is the package's own timestamp.

    ``sources`` are the recipe's, each with its hash or commit. ``recipe`` is a hash over the recipe's files,
    ``log_sha256`` one over the build's log. ``tests`` is the verdict, ``tested_with`` the run dependencies that the
    tests were run with, each with its package URL. ``cross_compiled`` says for which platform on which one, empty for a
    native build. ``kiln`` is the version that built, ``workflow`` and ``run_url`` are of the CI that built, empty on a
    user's machine. ``feedstock_files`` are texts of files of the feedstock that the
    package does not carry, by their paths. Unknown values are None.
    """

    file: str
    subdir: str
    sha256: str
    size: int
    name: str
    version: str
    build: str
    license: str
    depends: tuple[str, ...]
    config: str
    variant: Mapping[str, tuple[str, ...]]
    sources: tuple[Mapping[str, Any], ...]
    recipe: str
    commit: str | None
    remote: str | None
    engine: str
    engine_version: str | None
    kiln: str
    container: str
    image: str | None
    machine: str
    cores: int
    started: float | None
    finished: float | None
    epoch: int | None
    tests: str
    log_sha256: str | None
    tested_with: tuple[Mapping[str, str], ...] = ()
    cross_compiled: str = ""
    workflow: str = ""
    run_url: str = ""
    sbom_sha256: str = ""
    cyclonedx_sha256: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    feedstock_files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseAttestations:
    """The attestations that are published with packages.

    ``seal`` returns the lines of the records, given the hash of the line before them; ``boms`` and ``cyclonedx`` are
    bills of materials by the hash of their package, as SPDX and as CycloneDX. ``bundles`` signs the statements about a
    package, given by its hash, and returns them as Sigstore bundles: first that of its publication; None where nothing
    is to be signed. ``is_own`` returns whether the same signer has attested its publication already, in a sidecar.
    """

    seal: Callable[[str], bytes]
    boms: Mapping[str, bytes]
    cyclonedx: Mapping[str, bytes] = field(default_factory=dict)
    bundles: Callable[[str], tuple[bytes, ...]] | None = None
    is_own: Callable[[str, bytes], bool] = field(default=lambda _sha256, _sidecar: False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainedRecord:
    """One line: ``record`` as JSON values, the hash of the line before, its own hash, and its signature if any."""

    record: Mapping[str, Any]
    previous: str
    hash: str
    signature: str = ""


def serialize_chain(records: Iterable[Provenance], previous: str, sign: Callable[[str], str] | None = None) -> bytes:
    """Return the lines of records after a line with the hash ``previous``, which is empty for the first."""
    lines = []
    for record in records:
        values = dataclasses.asdict(record)
        digest = _record_hash(values, previous)
        signature = {"signature": sign(digest)} if sign else {}
        lines.append(canonical_json({"record": values, "previous": previous, "hash": digest, **signature}))
        previous = digest
    return b"".join(line + b"\n" for line in lines)


def parse_chain(data: bytes) -> tuple[ChainedRecord, ...]:
    """Return the lines of a chain, each of which follows the one before.

    Raises:
        ProvenanceBroken: naming the first line that does not.
    """
    links: list[ChainedRecord] = []
    for number, line in enumerate(data.splitlines(), 1):
        link = _parse_line(number, line)
        previous = links[-1].hash if links else ""
        if link.previous != previous or link.hash != _record_hash(link.record, previous):
            raise ProvenanceBroken(
                f"line {number} of the channel's records does not follow the one before",
                why="a record was changed, removed or inserted later",
            )
        links.append(link)
    return tuple(links)


def last_record_hash(data: bytes) -> str:
    """Return the hash of the last line, empty without lines; raises ProvenanceBroken."""
    lines = data.splitlines()
    return _parse_line(len(lines), lines[-1]).hash if lines else ""


def chain_without_trailing_records(data: bytes, hashes: Iterable[str]) -> bytes:
    """Return a chain without those of its last lines that are of packages with these hashes."""
    removed = set(hashes)
    lines = data.splitlines(keepends=True)
    while lines and _parse_line(len(lines), lines[-1]).record.get("sha256") in removed:
        lines.pop()
    return b"".join(lines)


def _parse_line(number: int, line: bytes) -> ChainedRecord:
    from kiln.conda import package_reader

    try:
        link = ChainedRecord(**package_reader.parse_strict_json(line))
    except (ValueError, TypeError) as error:
        raise _invalid_line_error(number, str(error)) from error
    if not isinstance(link.record, dict):
        raise _invalid_line_error(number, "its record is not an object")
    if not all(isinstance(text, str) for text in (link.previous, link.hash, link.signature)):
        raise _invalid_line_error(number, "a hash or a signature in it is not text")
    return link


def _invalid_line_error(number: int, why: str) -> ProvenanceBroken:
    return ProvenanceBroken(
        f"line {number} of the channel's records is invalid",
        why=why,
        hint="the file was damaged or changed: request the records from the channel's owner",
    )


def _record_hash(record: Mapping[str, Any], previous: str) -> str:
    return hashlib.sha256(canonical_json({"record": record, "previous": previous})).hexdigest()


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
    from kiln.conda import package_reader

    index = package_reader.read_info_json_object(package, "index.json")
    about = package_reader.read_info_json_object(package, "about.json")
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
