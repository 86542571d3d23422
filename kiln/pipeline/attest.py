"""The records of what is published: from the ledger, the recipe and the packages themselves."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from typing import TYPE_CHECKING, Any

from kiln import __version__, archive, files, provenance
from kiln.model.provenance import Attestation, Provenance
from kiln.pipeline.done import recipe_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kiln.model.release import Candidate
    from kiln.model.rendered import Rendered
    from kiln.model.run import CellRun, MatrixReport
    from kiln.pipeline.release import Built

_ENGINE = re.compile(r"^  rattler-build: (\S+)$", re.MULTILINE)


def attestation(
    built: Built, candidates: Sequence[Candidate], *, sign: Callable[[str], str] | None = None
) -> Attestation:
    """Return what goes into a channel beside these packages."""
    records, boms = [], {}
    digest = recipe_digest(built.feedstock)
    for candidate in candidates:
        record = record_of(built, candidate, recipe=digest)
        assert candidate.contents is not None, "the gate lets no broken package through"
        bill = provenance.bill(record, home=_text(candidate.contents.about.get("home")))
        boms[record.sha256] = bill
        records.append(dataclasses.replace(record, sbom_sha256=hashlib.sha256(bill).hexdigest()))
    return Attestation(seal=lambda previous: provenance.sealed(records, previous, sign), boms=boms)


def record_of(built: Built, candidate: Candidate, *, recipe: str) -> Provenance:
    """Return the record of one package."""
    contents = candidate.contents
    assert contents is not None, "the gate lets no broken package through"
    report, cell = maker(built, candidate)
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
        licence=_text(contents.about.get("license")),
        depends=tuple(index.get("depends", ())),
        cell=cell.config,
        variant=dict(built.rendered[cell.config].cell.variant),
        sources=_sources(built, built.rendered[cell.config]),
        recipe=recipe,
        commit=extra.get("sha"),
        remote=extra.get("remote_url"),
        engine=report.engine,
        engine_version=_engine_version(candidate.path),
        kiln=__version__,
        container=report.container,
        image=report.image,
        machine=report.machine,
        cores=report.cores,
        started=cell.started,
        finished=cell.finished,
        epoch=int(timestamp) // 1000 if isinstance(timestamp, int) else None,
        tests=candidate.verdict.value,
        log_sha256=files.sha256(cell.log) if cell.log and cell.log.is_file() else None,
        extra={key: value for key, value in extra.items() if key == "flow_run_id"},
    )


def maker(built: Built, candidate: Candidate) -> tuple[MatrixReport, CellRun]:
    """Return the run and the cell that made a package: of those that have it by its hash, who did not take it over."""
    found = [
        (package.reused, report, cell)
        for report in built.history
        for cell in report.cells
        for package in cell.packages
        if cell.config in candidate.cells and package.artifact.sha256 == candidate.artifact.sha256
    ]
    _, report, cell = next((each for each in found if not each[0]), found[-1])
    return report, cell


def log_of(built: Built, candidate: Candidate) -> Path | None:
    """Return the log of the run that made a package, where it still lies."""
    log = maker(built, candidate)[1].log
    return log if log and log.is_file() else None


def _sources(built: Built, rendered: Rendered) -> tuple[Mapping[str, Any], ...]:
    """Return the recipe's sources, each with what pins it: its hash, its revision, or the hash of its folder."""
    from kiln.pipeline.memo import file_or_folder_digest

    told = []
    for source in rendered.sources:
        fields = {name: value for name, value in dataclasses.asdict(source).items() if value}
        if source.path is not None:
            place = built.feedstock.recipe / source.path
            fields["digest"] = file_or_folder_digest(place) if place.exists() else None
        told.append(fields)
    return tuple(told)


def _engine_version(package: Path) -> str | None:
    """Return the version that the engine gave of itself, in what it says of its rendering or its metadata."""
    with archive.reading(package) as members:
        for member, content in members:
            if member.name == "info/recipe/rendered_recipe.yaml" and content is not None:
                found = _ENGINE.search(content.read().decode(errors="replace"))
                return found[1] if found else None
            if not member.name.startswith("info/"):
                break
    told = archive.read_info(package, "about.json").get("conda_build_version")
    return None if told is None else str(told)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
