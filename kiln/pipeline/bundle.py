"""A release to be handed over: packages, what was said while they were made, hashes, and who built what with what.

CFEP-03 asks for this of packages that were built elsewhere than on conda-forge's machines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import files
from kiln.errors import NotWritable
from kiln.pipeline.attest import log_of

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.provenance import Attestation
    from kiln.model.release import Release
    from kiln.pipeline.release import Built


def write(folder: Path, built: Built, release: Release, attested: Attestation) -> None:
    """Write a bundle into a new folder, whole or not at all.

    It holds ``SUBDIR/*.conda``, ``logs/CELL.log``, ``provenance/`` as a channel has it, and ``SHA256SUMS`` over all.

    Raises:
        NotWritable: when something is there already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NotWritable(f"{folder} is not empty", hint="name a new folder")
    with files.no_room_as_disk_full(folder.parent), files.replacing(folder) as part:
        for candidate in release.candidates:
            files.link_or_copy(candidate.path, part / candidate.artifact.subdir / candidate.path.name)
            if log := log_of(built, candidate):
                files.link_or_copy(log, part / "logs" / f"{candidate.cells[0]}.log")
        files.write_bytes(part / "provenance" / "chain.jsonl", attested.seal(""))
        bills = {f"{sha256}.spdx.json": bill for sha256, bill in attested.boms.items()}
        files.write_all(part / "provenance" / "sbom", bills)
        found = sorted(file for file in part.rglob("*") if file.is_file())
        sums = "".join(f"{files.sha256(file)}  {file.relative_to(part)}\n" for file in found)
        files.write_text(part / "SHA256SUMS", sums)
