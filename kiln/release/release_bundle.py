"""Write a bundle of a release: packages, logs, hashes and provenance.

CFEP-03 requires these for packages that were not built on conda-forge's machines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import files, folder_lock
from kiln.errors import NotWritable
from kiln.provenance import sigstore_bundles
from kiln.release.provenance_creation import build_log

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.provenance import ReleaseAttestations
    from kiln.model.release_packages import Release
    from kiln.release.candidate_packages import ConfigsAndRuns


def write_release_bundle(folder: Path, matrix: ConfigsAndRuns, release: Release, attested: ReleaseAttestations) -> None:
    """Write a bundle into a new folder, completely or not at all.

    It contains ``SUBDIR/*.conda``, with signed attestations as ``*.sigs``, ``logs/CONFIG.log``, ``provenance/`` as in a
    channel, and ``SHA256SUMS`` of all.

    Raises:
        NotWritable: when the folder is not empty.
        AlreadyRunning: while another process writes it.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NotWritable(f"{folder} is not empty", hint="name a new folder")
    with (
        files.full_disk_as_kiln_error(folder.parent),
        folder_lock.exclusive_folder_lock(folder),
        files.atomic_replacement(folder) as part,
    ):
        for candidate in release.candidates:
            files.link_or_copy(candidate.path, part / candidate.artifact.subdir / candidate.path.name)
            if attested.bundles is not None:
                sidecar = sigstore_bundles.serialize_sidecar(attested.bundles(candidate.artifact.sha256))
                files.write_bytes(part / candidate.artifact.subdir / f"{candidate.path.name}.sigs", sidecar)
            if log := build_log(matrix, candidate):
                files.link_or_copy(log, part / "logs" / f"{candidate.configs[0]}.log")
        files.write_bytes(part / "provenance" / "chain.jsonl", attested.seal(""))
        bills = {f"{sha256}.spdx.json": bill for sha256, bill in attested.boms.items()}
        bills |= {f"{sha256}.cdx.json": bill for sha256, bill in attested.cyclonedx.items()}
        files.write_files(part / "provenance" / "sbom", bills)
        paths = sorted(file for file in part.rglob("*") if file.is_file())
        sums = "".join(f"{files.sha256(file)}  {file.relative_to(part)}\n" for file in paths)
        files.write_text(part / "SHA256SUMS", sums)
