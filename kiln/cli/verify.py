"""``kiln verify`` and ``kiln rebuild``: a package verified against its provenance, or built again from it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import BrokenPackage, ProvenanceBroken, UsageError
from kiln.base.patterns import is_channel_subdir
from kiln.base.system.files import full_path
from kiln.cli import arguments
from kiln.cli.output import print_notes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from kiln.conda.provenance.check import AttestedFacts, ListedAttestation


NAME_SIGNER = "; --require-attestation SIGNER names a signer"
LONGEST = 1000  # characters of a fact that are shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln verify``."""
    _add_published_package_arguments(parser)
    parser.add_argument(
        "--target-channel",
        metavar="URL",
        help="expect this channel in attestations (default: --channel; for a copy, the channel it is a copy of)",
    )
    parser.add_argument("--json", action="store_true", help="print the provenance record as JSON")


def _add_published_package_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("package", metavar="PACKAGE", type=Path, help="path of a .conda file")
    parser.add_argument(
        "--channel",
        metavar="CHANNEL",
        help="read the provenance from this folder, URL or bundle (default: the channel that contains the file)",
    )
    arguments.add_attestation_arguments(parser, of_a_channel=False)


def run(options: argparse.Namespace, root: Path) -> int:  # noqa: ARG001 - a verification needs no feedstock
    """Verify the package and print the verified facts."""
    verified = _verified_package(options)
    if options.json:
        print(json.dumps(verified.as_data(), indent=2))
        return 0
    for fact in verified.facts:
        print(f"verified: {bounded_terminal_text(fact)}")
    print_notes(map(bounded_terminal_text, verified.notes))
    return 0


def bounded_terminal_text(text: str) -> str:
    """Return a text of others for a terminal: in one line of limited length, with hidden characters escaped."""
    plain = text if text.isprintable() else ascii(text)[1:-1]
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPackage:
    """The record of a package, from the channel's statement or from a signed one, and the verified facts.

    ``notes`` say what was not verified.
    """

    record: Mapping[str, Any]
    facts: tuple[str, ...]
    notes: tuple[str, ...] = ()
    attested: AttestedFacts | None = None
    attestations: tuple[ListedAttestation, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Return the record as JSON values, with the attestation if one was verified."""
        attested = {"attestation": dataclasses.asdict(self.attested)} if self.attested else {}
        listed = [dataclasses.asdict(one) for one in self.attestations]
        return {**self.record, **attested, **({"attestations": listed} if listed else {})}


def _verified_package(options: argparse.Namespace) -> VerifiedPackage:
    from kiln.base import files
    from kiln.conda.channel import channel_reader
    from kiln.conda.index_files import index_from_repodata
    from kiln.conda.provenance import bundles, records
    from kiln.publish.attestations import BILL, CYCLONEDX, STATEMENT

    package = options.package
    if not package.is_file():
        raise UsageError(f"file not found: {package}", hint="download the package first")
    own = {"file": package.name, "sha256": files.sha256(package)}
    channel = options.channel or str(full_path(package).parents[1])
    read = channel_reader(channel)
    subdir = _subdir_of_package(package)
    repodata = read(f"{subdir}/repodata.json") if subdir else None
    index = None if repodata is None else index_from_repodata(subdir, repodata)
    statement = read(STATEMENT.format(f"{subdir}/{package.name}")) if subdir else None
    record: Mapping[str, Any] = {}
    facts: tuple[str, ...] = ()
    if statement is not None:
        bills = {
            key: read(place.format(own["sha256"])) for key, place in zip(records.BILLS, (BILL, CYCLONEDX), strict=True)
        }
        record, facts = records.verify_package_statement(package, statement, bills=bills, index=index)
    sidecar = None
    if subdir:
        # A bundle has no index, and other tools than kiln may make one without the names of attestations (CEP 50): then
        # those next to the package count. Whoever can place a file there cannot sign for another.
        path, offered = f"{subdir}/{package.name}", {} if index is None else index.records
        named = offered.get(package.name, {}).get(bundles.SIDECAR_FIELD)
        sidecar = (
            read(f"{path}{bundles.SIDECAR_ENDING}")
            if named is None
            else bundles.download_sidecar(f"{channel.rstrip('/')}/{path}", named)
        )
    attested, attestations, notes = _attested_facts_and_notes(options, own, channel, sidecar)
    if statement is None and attested is None:
        raise _unverified_error(package, channel, notes)
    signed = _record_from_attestation(attested, own)
    if statement is not None and "config" not in signed and (attested or not notes):
        notes = (*notes, "nobody has signed the statement of how it was made; kiln publish --attest KEY signs it")
    if attested and statement is None:
        facts = (f"the file is the attested one, by its hash {own['sha256']}",)
    elif attested and options.require_attestation and "config" in signed:
        if wrong := sorted(key for key in signed.keys() | record.keys() if signed.get(key) != record.get(key)):
            raise ProvenanceBroken(f"the channel's statement and the attested one differ in {', '.join(wrong)}")
        facts = (*facts, "the channel's statement is the attested one")
    if attested and (statement is None or options.require_attestation):
        record = signed  # where a signature is required, what nobody signed is no record to build from
    return VerifiedPackage(
        record=record,
        facts=(
            *facts,
            *(attested.fact_lines if attested else ()),
            *(bundles.build_fact_lines(attested.provenance) if attested and attested.provenance else ()),
            *_attestation_signer_lines(attestations, verified=True),
        ),
        notes=(*notes, *_attestation_signer_lines(attestations, verified=False)),
        attested=attested,
        attestations=attestations,
    )


def _subdir_of_package(package: Path) -> str:
    """Return the subdir that a package names, or whose folder it is in; empty for a name that no subdir has."""
    from kiln.conda.package_reader import read_info_json_object

    try:
        subdir = str(read_info_json_object(package, "index.json").get("subdir"))
    except BrokenPackage:  # or of the older format: attestations are about the file, whatever is in it
        subdir = package.absolute().parent.name
    return subdir if is_channel_subdir(subdir) else ""


def _unverified_error(package: Path, channel: str, notes: Sequence[str]) -> ProvenanceBroken:
    if notes:
        return ProvenanceBroken(
            f"{package.name} has attestations, of which none was verified, and no statement in {channel}",
            why="; ".join(note.removesuffix(NAME_SIGNER) for note in notes),
            hint="--require-attestation SIGNER, with the signer's public key or identity",
        )
    return ProvenanceBroken(
        f"there is no statement about {package.name} in the channel {channel}",
        why="it is written when a package is published",
        hint="kiln publish --to CHANNEL publishes it; --channel CHANNEL reads the statements of another channel",
    )


def _attested_facts_and_notes(
    options: argparse.Namespace, own: Mapping[str, str], channel: str, sidecar: bytes | None
) -> tuple[AttestedFacts | None, tuple[ListedAttestation, ...], tuple[str, ...]]:
    """Return what the required signers attest, or anybody where none is required, all attestations, and notes.

    The notes say what was not verified.
    """
    from kiln.base import http
    from kiln.conda.provenance import check

    required = arguments.trusted_attestation_signers(options, options.require_attestation)
    if sidecar is None:
        if required:
            hint = "kiln publish --to CHANNEL --attest KEY signs it"
            raise ProvenanceBroken(f"{options.package.name} has no attestation in {channel}", hint=hint)
        return None, (), ()
    anybody = check.TrustedSigner(root=check.read_trusted_root(options.trusted_root))
    url = channel if "://" in channel else full_path(Path(channel)).as_uri()
    target = getattr(options, "target_channel", None) or url
    facts: dict[str, Any] = {**own, "channel": http.url_without_credentials(target)}
    signers = required or (anybody,)
    try:
        attested = check.verified_attestation_facts(sidecar, **facts, signers=signers)
        notes = () if required else ("any identity is accepted; --require-attestation SIGNER requires one",)
    except ProvenanceBroken as error:
        if required and getattr(options, "target_channel", "") is None:
            with contextlib.suppress(ProvenanceBroken):
                elsewhere = check.verified_attestation_facts(sidecar, **{**facts, "channel": None}, signers=signers)
                error.hint = f"for a copy of that channel, or a bundle for it: --target-channel {elsewhere.channel}"
        if required:
            raise
        note = f"its attestations were not verified: {error.why}{NAME_SIGNER}"
        claims: tuple[ListedAttestation, ...] = ()
        with contextlib.suppress(ProvenanceBroken):  # not even a list
            claims = check.package_attestations(sidecar, **facts, signers=())
        return None, claims, (note,)
    return attested, check.package_attestations(sidecar, **facts, signers=signers), notes


def _attestation_signer_lines(attestations: Sequence[ListedAttestation], *, verified: bool) -> list[str]:
    """Return who has signed which attestation, or is named in it, where they are not all of one signer."""
    if len({(one.signer, one.verified, one.fault) for one in attestations}) == 1:
        return []
    return [one.description(len(attestations)) for one in attestations if one.verified is verified]


def _record_from_attestation(attested: AttestedFacts | None, own: Mapping[str, str]) -> dict[str, Any]:
    """Return the record that the provenance of an attestation has, where kiln wrote it; else only the file's facts."""
    from kiln.conda.provenance import bundles

    if attested is None or not bundles.is_kiln_predicate(attested.provenance):
        return dict(own)
    return bundles.record_from_predicate(attested.provenance, **own)


def add_rebuild_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln rebuild``."""
    _add_published_package_arguments(parser)
    parser.add_argument(
        "--into",
        metavar="DIR",
        type=Path,
        help="make the feedstock again in this new folder, from the package and its record alone, and build there",
    )


def run_rebuild(options: argparse.Namespace, root: Path) -> int:
    """Verify the record, rebuild from it, and compare the packages."""
    from kiln.base import process_table
    from kiln.build.job.job import BuildOptions, HostMachine, RunOptions
    from kiln.cli.options import container_client_variables, variables_passed_to_builds
    from kiln.publish import provenance, rebuild
    from kiln.recipe import feedstock as recipe_feedstock

    feedstock = None if options.into else recipe_feedstock.load(root)
    record = _verified_package(options).record
    feedstock = feedstock or provenance.restore_feedstock(options.package, record, options.into)
    rebuild.require_same_recipe(feedstock, record)
    request = RunOptions(
        configs=(record["config"],),
        command="kiln rebuild",
        container=record["container"],
        image=rebuild.recorded_image_name(record),
        build=BuildOptions(
            engine=record["engine"], executable=os.environ.get("DOCKER_EXECUTABLE") or None, rebuild=True
        ),
        caller_variables=rebuild.recorded_build_variables(record),
        client=container_client_variables(os.environ),
    )
    machine = HostMachine(environment=variables_passed_to_builds(os.environ), python=Path(sys.executable))
    # The build's output is in its log; printed here, it would hide the result.
    with process_table.termination_as_interrupt(), contextlib.redirect_stdout(io.StringIO()):
        package = rebuild.rebuild_and_compare(feedstock, request, machine, options.package, image=record["image"])
    print(f"reproduced, byte for byte: {package.name} {record['sha256']}")
    return 0
