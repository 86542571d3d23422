"""A cell built by conda-build or mambabuild: what it is told, and what it left, from outside of it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kiln import archive, expand, files
from kiln.build import conda_build
from kiln.channel import SUBDIRS
from kiln.ledger import records
from kiln.model.artifact import Artifact, PackageReport, TestReport, Verdict
from kiln.pipeline import contract
from kiln.pipeline.cuda import cuda_of
from kiln.pipeline.outline import channel_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kiln.errors import KilnError
    from kiln.model.feedstock import Feedstock
    from kiln.model.rendered import Rendered

NOTE = "tested by the engine itself, before it was told finished"
FETCHED = "fetched"  # the cell's own package cache
SHARED = "conda"  # what cells have fetched, in the cache of all of them
END_OF_LOG = 65_536  # bytes
STAMP = "2026-01-31 23:59:59 "  # what a line of a log begins with
KINDS = (".conda", ".tar.bz2")
INDEXES = "cache"  # where conda keeps the indexes of channels, in its first package cache


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
    conda = expand.conda_settings(feedstock.root / "conda-forge.yml")
    call = conda_build.Call(
        engine=engine,
        recipe=seen(feedstock.recipe),
        variant_file=seen(feedstock.configs / f"{config}.yaml"),
        clobber_file=seen(folder / f"clobber_{config}.yaml"),
        condarc=seen(folder / "condarc"),
        croot=seen(folder / "croot"),
        fetched=seen(folder / FETCHED),
        cache=seen(cache / SHARED),
        channels=channel_sources(rendered.cell),
        channel_priority=conda.channel_priority,
        settings=conda.conda_build,
        solver=conda.solver,
        cuda=cuda_of(rendered.cell),
        cuda_arch=rendered.cell.variant.get("cuda_arch_version", (None,))[0],
        extra={name: variables.get(name, "") for name in contract.EXTRA},
    )
    make_caches(folder, cache)
    files.write_text(folder / f"clobber_{config}.yaml", conda_build.clobber(rendered))
    files.write_text(folder / "condarc", conda_build.condarc(call))
    files.write_text(folder / "build.sh", conda_build.script(call, debug=debug))
    return folder / "build.sh"


def make_caches(folder: Path, cache: Path) -> None:
    """Make the cell's folder with a package cache of its own, whose indexes of channels are those of all cells.

    conda-build puts the packages that it made into the first cache to test them, and before removes from every cache
    what is called the same: in a shared one that is another cell's, which may be at its tests.
    """
    indexes = cache / SHARED / INDEXES
    indexes.mkdir(parents=True, exist_ok=True)
    (folder / FETCHED).mkdir(parents=True)
    (folder / FETCHED / INDEXES).symlink_to(os.path.relpath(indexes, folder / FETCHED))


def share_fetched(folder: Path, cache: Path) -> None:
    """Move the packages that the engine fetched to where other cells look for them; its own stay, and go with the cell.

    A package is whole once conda has written its record, and a folder that is there already is not replaced.
    """
    own = {file.name.removesuffix(".conda") for file in (folder / "croot").glob("*/*.conda")}
    for record in sorted((folder / FETCHED).glob("*/info/repodata_record.json")):
        package = record.parents[1]
        if package.name in own:
            continue
        with suppress(OSError):  # when another cell was first
            package.rename(cache / SHARED / package.name)
            for file in (package.with_name(package.name + kind) for kind in KINDS):
                if file.is_file():
                    file.rename(cache / SHARED / file.name)


def failure(engine: str, exit_code: int, tail: str, log: Path) -> KilnError:
    """Return why an engine ended badly, by the end of the cell's log, or by ``tail`` where the disk took no log."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - END_OF_LOG))
        lines = file.read().decode(errors="replace").splitlines()[1:]
        tail = "\n".join(line[len(STAMP) :] for line in lines) or tail
    return conda_build.failure(engine, exit_code, tail)


def last_words(error: KilnError | None) -> list[str]:
    """Return what an engine's failure comes down to, to stand at the end of its log, where its calls stood."""
    return [] if error is None else [line.strip(" |") for line in error.why.splitlines()]


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
