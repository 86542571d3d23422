"""Write the provenance of published packages, from the ledger, the recipe and the packages."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kiln import files, limits, masking
from kiln.bazel import declared_repositories
from kiln.conda_package import reader
from kiln.errors import ProvenanceBroken
from kiln.model.provenance import ExternalRepository, Provenance, ReleaseAttestations, ResolvedPackage
from kiln.provenance import (
    attestation_check,
    bundled_third_party_components,
    cyclonedx,
    hash_chain,
    license_files,
    resolved_package_reader,
    slsa,
    spdx,
    statements,
)
from kiln.publish import gate
from kiln.release import restored_feedstock
from kiln.store.build_cache import recipe_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from kiln.model.build_results import PackageReport
    from kiln.model.release_packages import Candidate
    from kiln.model.rendered import RenderedConfig
    from kiln.model.run import ConfigRun, MatrixReport
    from kiln.provenance.attestation_check import TrustedSigner
    from kiln.provenance.bundled_third_party_components import BundledComponent
    from kiln.provenance.license_files import LicenseFile
    from kiln.release.candidate_packages import ConfigsAndRuns

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
        predicate = slsa.predicate_of_record(dataclasses.asdict(record))
        published = statements.publication_statement(record.file, record.sha256, self.channel)
        return self.attester.sign_statements(
            [published, statements.slsa_statement(record.file, record.sha256, predicate)]
        )

    def has_own_attestation(self, record: Provenance, sidecar: bytes) -> bool:
        """Return whether this signer has attested a publication to this channel, in a sidecar."""
        signer = self.attester.trusted_signer(self.workflow)
        if signer is None:
            return False
        try:
            attestation_check.verified_attestation_facts(
                sidecar, file=record.file, sha256=record.sha256, channel=self.channel, signers=[signer]
            )
        except ProvenanceBroken:
            return False
        return True


def release_provenance_and_attestations(
    matrix: ConfigsAndRuns,
    candidates: Sequence[Candidate],
    *,
    sign: Callable[[str], str] | None = None,
    attesting: AttestationSettings | None = None,
) -> ReleaseAttestations:
    """Return the provenance that is published along with packages."""
    records, boms, cyclonedx_bills = [], {}, {}
    digest = recipe_digest(matrix.feedstock)
    for candidate in candidates:
        assert candidate.contents is not None, "the gate refuses broken packages"
        info = reader.read_info_files(candidate.path)
        *_, package = recorded_build_of_candidate(matrix, candidate)
        tested_with = _tested_run_dependencies(package)
        record = provenance_record(matrix, candidate, info, tested_with, recipe=digest)
        resolved = (*resolved_package_reader.build_and_host_packages(info), *tested_with)
        license_ = spdx.license_expression(record.license)
        expression = "" if license_ == spdx.NO else license_  # files are identified by it
        licenses = license_files.package_license_files(candidate.path, info, expression=expression)
        parts = _bundled_and_declared_components(info, licenses, package.repositories)
        home = _text_or_empty(candidate.contents.about.get("home"))
        bill = spdx.bill_of_materials(record, home=home, resolved=resolved, licenses=licenses, bundled=parts)
        other = cyclonedx.bill_of_materials(record, resolved=resolved, licenses=licenses, bundled=parts)
        boms[record.sha256], cyclonedx_bills[record.sha256] = bill, other
        digests = [hashlib.sha256(data).hexdigest() for data in (bill, other)]
        records.append(dataclasses.replace(record, sbom_sha256=digests[0], cyclonedx_sha256=digests[1]))
    by_hash = {record.sha256: record for record in records}

    def bundles_of_package(sha256: str) -> tuple[bytes, ...]:
        return attesting.sign_package_bundles(by_hash[sha256]) if attesting and sha256 in by_hash else ()

    return ReleaseAttestations(
        seal=lambda previous: hash_chain.serialize_chain(records, previous, sign),
        boms=boms,
        cyclonedx=cyclonedx_bills,
        bundles=bundles_of_package if attesting else None,
        is_own=lambda sha256, sidecar: (
            attesting is not None and attesting.has_own_attestation(by_hash[sha256], sidecar)
        ),
    )


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
        log_sha256=files.sha256(config.log) if config.log and config.log.is_file() else None,
        extra={key: value for key, value in extra.items() if key == "flow_run_id"},
        feedstock_files=restored_feedstock.read_feedstock_files_to_record(matrix.feedstock, config.config),
    )


def _bundled_and_declared_components(
    info: Mapping[str, bytes], licenses: Sequence[LicenseFile], declared: Sequence[ExternalRepository] = ()
) -> tuple[BundledComponent, ...]:
    """Return what a package bundles, with the versions that its sources declare.

    ``declared`` are those of the sources during the build; sources in the recipe are in the package too.
    """
    files = bundled_third_party_components.bazel_files_in_packed_recipe(info)
    carried = limits.run_bounded(lambda: declared_repositories.external_repositories(files)) if files else ()
    valid = [item for item in declared if declared_repositories.is_valid_repository(item)]
    names = {item.name for item in valid}
    return bundled_third_party_components.bundled_and_declared_components(
        licenses, [*valid, *(item for item in carried if item.name not in names)]
    )


def _tested_run_dependencies(package: PackageReport) -> tuple[ResolvedPackage, ...]:
    """Return the run dependencies that a package was tested with."""
    return tuple(filter(resolved_package_reader.is_valid_package, package.tests.run_packages))


def _tested_dependency_identifiers(package: ResolvedPackage) -> dict[str, str]:
    """Return what identifies a package, for a record."""
    fields = {"purl": resolved_package_reader.package_purl(package), "url": package.url, "sha256": package.sha256}
    return {name: value for name, value in fields.items() if value}


def recorded_build_of_candidate(
    matrix: ConfigsAndRuns, candidate: Candidate
) -> tuple[MatrixReport, ConfigRun, PackageReport]:
    """Return the run and the config that made a package, not those that reused it, and its report there."""
    builds = [
        (report, config, package)
        for report in matrix.history
        for config in report.configs
        for package in config.packages
        if config.config in candidate.configs and package.artifact.sha256 == candidate.artifact.sha256
    ]
    return next((build for build in builds if not build[2].reused), builds[-1])


def build_log(matrix: ConfigsAndRuns, candidate: Candidate) -> Path | None:
    """Return the log of the run that made a package, if it still exists."""
    log = recorded_build_of_candidate(matrix, candidate)[1].log
    return log if log and log.is_file() else None


def _recorded_sources(matrix: ConfigsAndRuns, rendered: RenderedConfig) -> tuple[Mapping[str, Any], ...]:
    """Return the recipe's sources, each pinned by its hash, its revision, or its folder's hash."""
    from kiln.store.digests import file_or_folder_digest

    sources = []
    for source in rendered.sources:
        fields = {name: value for name, value in dataclasses.asdict(source).items() if value}
        fields |= {"url": tuple(map(masking.with_masked_credentials, source.url))} if source.url else {}
        fields |= {"git_url": masking.with_masked_credentials(source.git_url)} if source.git_url else {}
        if source.checkout is not None:
            checkout = source.checkout
            fields["checkout"] = {"program": checkout.program, "url": masking.with_masked_credentials(checkout.url)}
            fields["checkout"] |= {"revision": checkout.revision} if checkout.revision else {}
        if source.path is not None:
            place = (matrix.feedstock.recipe / source.path).resolve()
            if place.is_relative_to(matrix.feedstock.recipe.resolve()):  # others may have changed since the build
                fields["digest"] = file_or_folder_digest(place) if place.exists() else None
        sources.append(fields)
    return tuple(sources)


def _engine_version(info: Mapping[str, bytes], about: Mapping[str, Any]) -> str | None:
    """Return the engine's version, as recorded in the package's rendered recipe or metadata."""
    rendered = info.get(resolved_package_reader.RENDERED_V1)
    if rendered is not None:
        match = _ENGINE.search(rendered.decode(errors="replace"))
        return match[1] if match else None
    engine_version = about.get("rattler_build_version") or about.get("conda_build_version")
    return None if engine_version is None else str(engine_version)


def _text_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""
