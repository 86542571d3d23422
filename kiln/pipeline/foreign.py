"""A cell built by conda-build or mambabuild: what it is told, and what it left, from outside of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln import archive, files
from kiln.build import conda_build
from kiln.channel import SUBDIRS
from kiln.ledger import records
from kiln.model.artifact import Artifact, PackageReport, TestReport, Verdict
from kiln.pipeline import contract
from kiln.pipeline.outline import channel_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kiln.model.feedstock import Feedstock
    from kiln.model.rendered import Rendered

NOTE = "tested by the engine itself, before it was told finished"


def prepare(
    feedstock: Feedstock,
    rendered: Rendered,
    folder: Path,
    cache: Path,
    *,
    engine: str,
    variables: Mapping[str, str],
    seen: Callable[[Path], Path],
    debug: str | None = None,
) -> Path:
    """Write the script that runs the engine, with what it reads, into a fresh cell's folder; returns the script.

    ``seen`` turns a path of this process into the engine's. ``debug``, an output's pattern or nothing, has the script
    make that output ready and end in a shell instead.
    """
    files.remove(folder)
    config = rendered.cell.name
    call = conda_build.Call(
        engine=engine,
        recipe=seen(feedstock.recipe),
        variant_file=seen(feedstock.configs / f"{config}.yaml"),
        clobber_file=seen(folder / f"clobber_{config}.yaml"),
        condarc=seen(folder / "condarc"),
        croot=seen(folder / "croot"),
        cache=seen(cache / "conda"),
        channels=channel_sources(rendered.cell),
        extra={name: variables.get(name, "") for name in contract.EXTRA},
    )
    folder.mkdir(parents=True)
    (cache / "conda").mkdir(parents=True, exist_ok=True)
    files.write_text(folder / f"clobber_{config}.yaml", conda_build.clobber(rendered))
    files.write_text(folder / "condarc", conda_build.condarc(call))
    files.write_text(folder / "build.sh", conda_build.script(call, debug=debug))
    return folder / "build.sh"


def made(folder: Path, config: str) -> list[dict[str, Any]]:
    """Return the packages that the engine left, as JSON values; it keeps those whose tests fail elsewhere."""
    found = [file for subdir in SUBDIRS for file in sorted((folder / "croot" / subdir).glob("*.conda"))]
    return [records.package_as_json(_report(file, folder, config)) for file in found]


def _report(file: Path, folder: Path, config: str) -> PackageReport:
    index = archive.read_info(file, "index.json")
    artifact = Artifact(
        path=file.relative_to(folder),
        sha256=files.sha256(file),
        size=file.stat().st_size,
        cell=config,
        name=index["name"],
        version=index["version"],
        build_string=index["build"],
        subdir=file.parent.name,
    )
    tests = TestReport(package=index["name"], verdict=Verdict.PASSED, notes=(NOTE,))
    return PackageReport(artifact=artifact, build_seconds=0.0, reused=False, tests=tests)
