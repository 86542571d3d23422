"""The provenance of published packages: written, bundled, and a feedstock made again from it."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from kiln.base import files as base_files
from kiln.base import git, limits, locks, secret_forms
from kiln.base.errors import BrokenPackage, NotWritable, ProvenanceBroken
from kiln.base.system.files import full_path
from kiln.build.engine.info_files import META, TEMPLATE, VARIANT, VARIANT_V1
from kiln.conda import package_reader
from kiln.conda.provenance import bazel_repositories, bundles, check, sbom
from kiln.conda.provenance.contents import (
    RENDERED_V1,
    bazel_files_in_packed_recipe,
    build_and_host_packages,
    bundled_and_declared_components,
    is_valid_package,
    package_license_files,
    package_purl,
)
from kiln.conda.provenance.records import ExternalRepository, Provenance, ReleaseAttestations, ResolvedPackage
from kiln.publish import gate
from kiln.publish.attestations import BILL, CYCLONEDX, STATEMENT
from kiln.recipe.feedstock import Feedstock
from kiln.state.store.cache import recipe_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kiln.conda.provenance.check import TrustedSigner
    from kiln.conda.provenance.contents import BundledComponent, LicenseFile
    from kiln.publish.model import Candidate, Release
    from kiln.publish.release import ConfigsAndRuns
    from kiln.recipe.rendered import RenderedConfig
    from kiln.state.results import ConfigRun, MatrixReport, PackageReport


LARGEST = 1 << 18  # bytes of a file in a record
_RENDERED_V1 = "rendered_recipe.yaml"


def read_feedstock_files_to_record(feedstock: Feedstock, config: str) -> dict[str, str]:
    """Return the texts of the files that a build of a config reads, and that its packages do not carry."""
    places = (feedstock.conda_forge_yml, feedstock.config_folder / f"{config}.yaml", feedstock.recipe / VARIANT)
    texts = {}
    for place in places:
        if place.is_file() and place.stat().st_size <= LARGEST:
            texts[place.relative_to(feedstock.root).as_posix()] = place.read_bytes().decode("utf-8", "replace")
    return texts


RECIPE = "info/recipe/"


def restore_feedstock(package: Path, record: Mapping[str, Any], into: Path) -> Feedstock:
    """Write the feedstock of a package into a new folder, completely or not at all.

    Raises:
        NotWritable: when the folder is not empty.
        ProvenanceBroken: when the record lacks the files.
        BrokenPackage: when the package carries no recipe, or paths that lead out of it.
    """
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise NotWritable(f"{into} is not empty", hint="name a new folder")
    texts, config = record.get("feedstock_files"), record.get("config")
    commit = git.base_commit(record.get("commit")) or "the commit of its release"
    allowed = {"conda-forge.yml", f".ci_support/{config}.yaml", f"recipe/{VARIANT}"}
    if (
        not isinstance(texts, dict)
        or f".ci_support/{config}.yaml" not in texts
        or not _is_portable_file_name(str(config))
    ):
        raise ProvenanceBroken(
            f"the record of {package.name} does not have the files of its feedstock",
            why="they are recorded since kiln 0.1; or its config file is too large",
            hint=f"git checkout {commit}, and rebuild there",
        )
    if texts.keys() - allowed or not all(isinstance(text, str) for text in texts.values()):
        raise ProvenanceBroken(f"the record of {package.name} has files that are not of a feedstock")
    contents = {**_recipe_in_package(package), **{name: (text.encode(), 0o644) for name, text in texts.items()}}
    root = into.absolute()
    with (
        base_files.full_disk_as_kiln_error(root.parent),
        locks.exclusive_folder_lock(root),
        base_files.atomic_replacement(root) as part,
    ):
        for name, (data, mode) in contents.items():
            base_files.write_bytes(part / name, data, mode=mode)
    return Feedstock(root=root)


def _recipe_in_package(package: Path) -> dict[str, tuple[bytes, int]]:
    """Return the files of a package's recipe by their paths: the content, and the mode as git has it."""
    with package_reader.open_package_members(package, only_info=True) as members:
        carried = {
            member.name.removeprefix(RECIPE): (content.read(), 0o755 if member.mode & 0o100 else 0o644)
            for member, content in members
            if content and member.name.startswith(RECIPE)
        }
    if f"parent/{META}" in carried:
        parent = "parent/"
        recipe = {name.removeprefix(parent): data for name, data in carried.items() if name.startswith(parent)}
    elif TEMPLATE in carried:
        recipe = {name: data for name, data in carried.items() if name not in {META, TEMPLATE, VARIANT}}
        recipe[META] = carried[TEMPLATE]
    elif "recipe.yaml" in carried:
        recipe = {name: data for name, data in carried.items() if name not in {_RENDERED_V1, VARIANT_V1}}
    else:
        raise BrokenPackage(f"{package.name} carries no recipe", hint="rebuild it in a checkout of its feedstock")
    if wrong := [
        name
        for name in recipe
        if not all(map(_is_portable_file_name, PurePosixPath(name).parts)) or name.startswith("/")
    ]:
        raise BrokenPackage(f"{package.name} has a recipe with a path that leads out of it: {wrong[0]!r}")
    return {f"recipe/{name}": data for name, data in recipe.items()}


def _is_portable_file_name(part: str) -> bool:
    """Return whether a text is the name of a file on every system."""
    return bool(part) and part not in {".", ".."} and not set(part) & set('/\\:*?"<>|') and part.isprintable()


_ENGINE = re.compile(r"^  rattler-build: (\S+)$", re.MULTILINE)


class Attester(Protocol):
    """A signer of attestations: a key, or the identity of a CI job."""

    def sign_statements(self, statements: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return the Sigstore bundles of statements."""

    def trusted_signer(self, workflow: str) -> TrustedSigner | None:
        """Return this signer, to verify with; None where it is unknown. ``workflow`` is the CI's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestationSettings:
    """The attestations to make: by whom, for the channel at a URL, and the workflow of a CI that publishes."""

    attester: Attester
    channel: str
    workflow: str = ""

    def sign_package_bundles(self, record: Provenance) -> tuple[bytes, ...]:
        """Return the signed statements about a package: that it is published, and how it was made."""
        published = bundles.publication_statement(record.file, record.sha256, self.channel)
        return self.attester.sign_statements([published, _slsa_statement_of_record(record)])

    def has_own_attestation(self, record: Provenance, sidecar: bytes) -> bool:
        """Return whether this signer has attested a publication to this channel, in a sidecar."""
        signer = self.attester.trusted_signer(self.workflow)
        if signer is None:
            return False
        try:
            check.verified_attestation_facts(
                sidecar, file=record.file, sha256=record.sha256, channel=self.channel, signers=[signer]
            )
        except ProvenanceBroken:
            return False
        return True


def release_provenance_and_attestations(
    matrix: ConfigsAndRuns, candidates: Sequence[Candidate], *, attesting: AttestationSettings | None = None
) -> ReleaseAttestations:
    """Return the provenance that is published along with packages."""
    records, documents = {}, {}
    digest = recipe_digest(matrix.feedstock)
    for candidate in candidates:
        assert candidate.contents is not None, "the gate refuses broken packages"
        info = package_reader.read_info_files(candidate.path)
        *_, package = recorded_build_of_candidate(matrix, candidate)
        tested_with = tuple(filter(is_valid_package, package.tests.run_packages))
        record = provenance_record(matrix, candidate, info, tested_with, recipe=digest)
        resolved = (*build_and_host_packages(info), *tested_with)
        license_ = sbom.license_expression(record.license)
        expression = "" if license_ == sbom.NO else license_  # files are identified by it
        licenses = package_license_files(candidate.path, info, expression=expression)
        parts = _bundled_and_declared_components(info, licenses, package.repositories)
        home = _text_or_empty(candidate.contents.about.get("home"))
        bill = sbom.spdx_bill_of_materials(record, home=home, resolved=resolved, licenses=licenses, bundled=parts)
        other = sbom.cyclonedx_bill_of_materials(record, resolved=resolved, licenses=licenses, bundled=parts)
        digests = [hashlib.sha256(data).hexdigest() for data in (bill, other)]
        record = dataclasses.replace(record, sbom_sha256=digests[0], cyclonedx_sha256=digests[1])
        records[record.sha256] = record
        documents[record.sha256] = package_documents(record, bill, other)

    if attesting is None:
        return ReleaseAttestations(documents=documents)
    return ReleaseAttestations(
        documents=documents,
        bundles=lambda sha256: attesting.sign_package_bundles(records[sha256]) if sha256 in records else (),
        is_own=lambda sha256, sidecar: attesting.has_own_attestation(records[sha256], sidecar),
    )


def package_documents(record: Provenance, spdx: bytes, cyclonedx: bytes) -> dict[str, bytes]:
    """Return what a channel has about a package next to it, by path: the statement of its making, and its bills."""
    return {
        STATEMENT.format(f"{record.subdir}/{record.file}"): _slsa_statement_of_record(record),
        BILL.format(record.sha256): spdx,
        CYCLONEDX.format(record.sha256): cyclonedx,
    }


def _slsa_statement_of_record(record: Provenance) -> bytes:
    predicate = bundles.predicate_of_record(dataclasses.asdict(record))
    return bundles.slsa_statement(record.file, record.sha256, predicate)


def provenance_record(
    matrix: ConfigsAndRuns,
    candidate: Candidate,
    info: Mapping[str, bytes],
    tested_with: Iterable[ResolvedPackage],
    *,
    recipe: str,
) -> Provenance:
    """Return the provenance record of one package, whose metadata files are ``info``."""
    contents = candidate.contents
    assert contents is not None, "the gate refuses broken packages"
    report, config, _ = recorded_build_of_candidate(matrix, candidate)
    index, extra = contents.index, contents.about.get("extra", {})
    timestamp = index.get("timestamp")
    return Provenance(
        file=candidate.path.name,
        subdir=index["subdir"],
        sha256=contents.sha256,
        size=contents.size,
        name=index["name"],
        version=index["version"],
        build=index["build"],
        license=_text_or_empty(contents.about.get("license")),
        depends=tuple(index.get("depends", ())),
        config=config.config,
        variant=dict(matrix.rendered[config.config].config.variant),
        sources=_recorded_sources(matrix, matrix.rendered[config.config]),
        recipe=recipe,
        commit=extra.get("sha"),
        remote=extra.get("remote_url"),
        engine=report.engine,
        engine_version=_engine_version(info, contents.about),
        kiln=report.kiln_version,
        workflow=report.workflow,
        run_url=report.ci_url,
        container=report.container,
        image=report.image,
        machine=report.machine,
        cores=report.cores,
        started=config.started,
        finished=config.finished,
        epoch=int(timestamp) // 1000 if isinstance(timestamp, int) else None,
        tests=candidate.verdict.value,
        tested_with=tuple(map(_tested_dependency_identifiers, tested_with)),
        cross_compiled=gate.cross_compilation_text(candidate),
        log_sha256=base_files.sha256(config.log) if config.log and config.log.is_file() else None,
        extra={key: value for key, value in extra.items() if key == "flow_run_id"},
        feedstock_files=read_feedstock_files_to_record(matrix.feedstock, config.config),
    )


def _bundled_and_declared_components(
    info: Mapping[str, bytes], licenses: Sequence[LicenseFile], declared: Sequence[ExternalRepository] = ()
) -> tuple[BundledComponent, ...]:
    """Return what a package bundles, with the versions that its sources declare.

    ``declared`` are those of the sources during the build; sources in the recipe are in the package too.
    """
    files = bazel_files_in_packed_recipe(info)
    carried = limits.run_bounded(lambda: bazel_repositories.external_repositories(files)) if files else ()
    valid = [item for item in declared if bazel_repositories.is_valid_repository(item)]
    names = {item.name for item in valid}
    return bundled_and_declared_components(licenses, [*valid, *(item for item in carried if item.name not in names)])


def _tested_dependency_identifiers(package: ResolvedPackage) -> dict[str, str]:
    fields = {"purl": package_purl(package), "url": package.url, "sha256": package.sha256}
    return {name: value for name, value in fields.items() if value}


def recorded_build_of_candidate(
    matrix: ConfigsAndRuns, candidate: Candidate
) -> tuple[MatrixReport, ConfigRun, PackageReport]:
    """Return the run and the config that made a package, and its report there.

    Where the ledger has only other configs' runs that reused it, the times and the log of its build are unknown.
    """
    build = matrix.find_build(candidate.artifact.sha256)
    assert build is not None, "the gate refuses packages of no run"
    report, config, package = build
    if (maker := package.artifact.config) != config.config:
        config = dataclasses.replace(config, config=maker, started=None, finished=None, log=None)
    return report, config, package


def _recorded_sources(matrix: ConfigsAndRuns, rendered: RenderedConfig) -> tuple[Mapping[str, Any], ...]:
    from kiln.state.store.compile_cache import file_or_folder_digest

    sources = []
    for source in rendered.sources:
        fields = {name: value for name, value in dataclasses.asdict(source).items() if value}
        fields |= {"url": tuple(map(secret_forms.with_masked_credentials, source.url))} if source.url else {}
        fields |= {"git_url": secret_forms.with_masked_credentials(source.git_url)} if source.git_url else {}
        if source.checkout is not None:
            checkout = source.checkout
            fields["checkout"] = {
                "program": checkout.program,
                "url": secret_forms.with_masked_credentials(checkout.url),
            }
            fields["checkout"] |= {"revision": checkout.revision} if checkout.revision else {}
        if source.path is not None:
            place = (matrix.feedstock.recipe / source.path).resolve()
            if place.is_relative_to(matrix.feedstock.recipe.resolve()):  # others may have changed since the build
                fields["digest"] = file_or_folder_digest(place) if place.exists() else None
        sources.append(fields)
    return tuple(sources)


def _engine_version(info: Mapping[str, bytes], about: Mapping[str, Any]) -> str | None:
    rendered = info.get(RENDERED_V1)
    if rendered is not None:
        match = _ENGINE.search(rendered.decode(errors="replace"))
        return match[1] if match else None
    engine_version = about.get("rattler_build_version") or about.get("conda_build_version")
    return None if engine_version is None else str(engine_version)


def _text_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""


def write_release_bundle(folder: Path, matrix: ConfigsAndRuns, release: Release, attested: ReleaseAttestations) -> None:
    """Write a bundle into a new folder, completely or not at all.

    It contains ``SUBDIR/*.conda``, with signed attestations as ``*.sigs``, ``logs/CONFIG.log``, ``provenance/`` as in a
    channel, and ``SHA256SUMS`` of all.

    Raises:
        NotWritable: when the folder is not empty.
        AlreadyRunning: while another process writes it.
    """
    folder = full_path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NotWritable(f"{folder} is not empty", hint="name a new folder")
    if folder in {Path.cwd(), *Path.cwd().parents}:
        raise NotWritable(f"{folder} is the working directory, which would be replaced", hint="name a new folder")
    with (
        base_files.full_disk_as_kiln_error(folder.parent),
        locks.exclusive_folder_lock(folder),
        base_files.atomic_replacement(folder) as part,
    ):
        for candidate in release.candidates:
            base_files.copy(candidate.path, part / candidate.artifact.subdir / candidate.path.name)
            if attested.bundles is not None:
                sidecar = bundles.serialize_sidecar(attested.bundles(candidate.artifact.sha256))
                base_files.write_bytes(part / candidate.artifact.subdir / f"{candidate.path.name}.sigs", sidecar)
            _, config, _ = recorded_build_of_candidate(matrix, candidate)
            if config.log and config.log.is_file():
                base_files.copy(config.log, part / "logs" / f"{config.config}.log")
        for documents in attested.documents.values():
            for place, data in documents.items():
                base_files.write_bytes(part / place, data)
        paths = base_files.files_below(part)
        sums = "".join(f"{base_files.sha256(file)}  {file.relative_to(part)}\n" for file in paths)
        base_files.write_text(part / "SHA256SUMS", sums)
