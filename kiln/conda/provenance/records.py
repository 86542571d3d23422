"""The record of how a package was made, and the comparison of a package with its record."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln.base import files, git
from kiln.base.errors import BrokenPackage, ProvenanceBroken
from kiln.conda import package_reader
from kiln.conda.provenance import bundles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kiln.conda.index import SubdirIndex


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
    """What is published about packages, each given by its hash.

    ``documents`` are files of the channel by their paths: the statement of how a package was made, and its bills of
    materials. ``bundles`` signs the statements about a package, and returns them as Sigstore bundles: first that of its
    publication; None where nothing is to be signed. ``is_own`` returns whether the same signer has attested its
    publication already, in a sidecar.
    """

    documents: Mapping[str, Mapping[str, bytes]]
    bundles: Callable[[str], tuple[bytes, ...]] | None = None
    is_own: Callable[[str, bytes], bool] = field(default=lambda _sha256, _sidecar: False)


def verify_package_statement(
    package: Path, statement: bytes, *, bills: Mapping[str, bytes | None], index: SubdirIndex | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the record in the statement of how a package was made, and the facts that were verified.

    ``bills`` are its bills of materials by the fields of the record that have their hashes, ``index`` is that of its
    subdir in the channel; None without one, as in a bundle.

    Raises:
        ProvenanceBroken: at the first fact that is wrong.
        BrokenPackage: when the package cannot be read.
    """
    sha256 = files.sha256(package)
    try:
        parsed = bundles.parse_statement(statement)
    except ValueError as error:
        raise _invalid_statement_error(package, str(error)) from error
    if mismatch := parsed.subject_mismatch(package.name, sha256):
        raise ProvenanceBroken(
            f"{package.name} is not the package that was published",
            why=f"its hash is {sha256}, and the channel's statement {mismatch.removeprefix('it ')}",
        )
    if not bundles.is_kiln_predicate(parsed.predicate):
        raise _invalid_statement_error(package, "it does not have the provenance that kiln writes")
    record = bundles.record_from_predicate(parsed.predicate, package.name, sha256)
    return record, (
        f"the file is the one of the channel's statement, by its hash {sha256}",
        _verify_metadata(record, package),
        *_cross_compilation_facts(record),
        *_verify_index_hash(record, index),
        *(_verify_bill(record, key, bill) for key, bill in bills.items() if record.get(key) or key == BILLS[0]),
    )


BILLS = (
    "sbom_sha256",
    "cyclonedx_sha256",
)  # the fields of a record with the hashes of its bills; a package has the first


def _invalid_statement_error(package: Path, why: str) -> ProvenanceBroken:
    return ProvenanceBroken(
        f"the channel's statement about {package.name} is invalid",
        why=why,
        hint="the file was damaged or changed: request it from the channel's owner",
    )


def _verify_metadata(record: Mapping[str, Any], package: Path) -> str:
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


def _verify_index_hash(record: Mapping[str, Any], index: SubdirIndex | None) -> list[str]:
    if index is None:
        return []
    path, offered = f"{record['subdir']}/{record['file']}", index.records.get(record["file"])
    if offered is None:
        if record["file"] in index.removed_files:
            return ["the channel's index does not offer it: it was withdrawn"]
        raise ProvenanceBroken(
            f"the channel's index lacks {path}",
            why="it was not withdrawn either",
            hint="ask the channel's owner; for a folder, kiln publish --to FOLDER --reindex adds it again",
        )
    if offered.get("sha256") != record["sha256"]:
        raise ProvenanceBroken(f"the channel's index has another hash for {path}", why=str(offered.get("sha256")))
    return ["the channel's index has the same hash"]


def _verify_bill(record: Mapping[str, Any], key: str, bill: bytes | None) -> str:
    sha256, name = record.get(key), "bill of materials" if key == BILLS[0] else "CycloneDX bill"
    if bill is None or hashlib.sha256(bill).hexdigest() != sha256:
        raise ProvenanceBroken(f"the {name} is missing or is not the one of the record", why=f"hash {sha256}")
    return f"its {name} is the one of the record"
