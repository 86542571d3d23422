"""Which cells are finished: same inputs, and every package still lies in the channel as it was put there."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from kiln import __version__, files
from kiln.errors import AlreadyRunning
from kiln.ledger import Kept, records
from kiln.pipeline.memo import digest, folder_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from kiln.ledger import Ledger
    from kiln.model.artifact import PackageReport
    from kiln.model.feedstock import Feedstock
    from kiln.model.rendered import Output
    from kiln.pipeline.layout import Layout

TITLE = "cell"  # what the ledger calls a cell that is finished
REHEARSED = "rehearsed cell"
WAIT, LONG = 0.05, 86_400.0  # seconds: between two looks at a lock, and until one is given up on that others need long


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a cell's packages are made of: ``shared`` is the same for all cells of an image, ``key`` this cell's own."""

    shared: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A finished cell as the ledger knows it; ``seconds`` are what it took."""

    packages: tuple[PackageReport, ...]
    seconds: float


def recipe_digest(feedstock: Feedstock) -> str:
    """Return a hash over the recipe and the feedstock's settings."""
    settings = feedstock.root / "conda-forge.yml"
    return digest([folder_digest(feedstock.recipe), files.sha256(settings) if settings.is_file() else ""])


def inputs(
    feedstock: Feedstock, config: str, *, recipe: str, engine: str, where: str, rehearsed_with: str | None = None
) -> Inputs:
    """Return what decides a cell's packages: recipe, engine, image (``where``: its digest, or the host), variant.

    ``rehearsed_with`` is a hash of a rehearsal's wheels and Python: none is ever taken for a build, nor the other way.
    """
    engines = (version("py-rattler-build"), __version__) if engine == "rattler-build" else ()
    rehearsal = () if rehearsed_with is None else (REHEARSED, rehearsed_with)
    shared = digest([recipe, engine, engines, where, *rehearsal])
    return Inputs(shared=shared, key=digest([shared, config, files.sha256(feedstock.configs / f"{config}.yaml")]))


def finished(ledger: Ledger, layout: Layout, wanted: Inputs) -> Finished | None:
    """Return a cell that is finished, or None when it is not or something of it is missing or changed."""
    known = ledger.finished(wanted.key)
    if known is None:
        return None
    packages = tuple(records.package(told) for told in known.detail["packages"])
    if not all(_is_kept(ledger, layout, report.artifact.path, wanted) for report in packages):
        return None
    found = tuple(
        dataclasses.replace(
            report,
            reused=True,
            artifact=dataclasses.replace(report.artifact, path=layout.root / report.artifact.path),
        )
        for report in packages
    )
    return Finished(packages=found, seconds=known.seconds)


def _is_kept(ledger: Ledger, layout: Layout, path: Path | str, wanted: Inputs) -> bool:
    """Whether a package made of the same inputs lies in the channel; read again only when its time has changed."""
    kept, place = ledger.kept(str(path)), layout.root / path
    if kept is None or kept.inputs != wanted.shared or not place.is_file():
        return False
    status = place.stat()
    if status.st_size != kept.size:
        return False
    return status.st_mtime_ns == kept.modified or files.sha256(place) == kept.sha256


def publish(
    ledger: Ledger,
    layout: Layout,
    config: str,
    made: Sequence[tuple[Path, dict[str, Any]]],
    wanted: Inputs,
    *,
    seconds: float,
    disk: int,
) -> tuple[PackageReport, ...]:
    """Put a finished cell's packages into the channel, its wheel beside it, and write the cell down as done.

    ``made`` are package files with their reports, ``disk`` the bytes that making them took. A package that another cell
    has put there, made of the same recipe by the same engine under the same name, stays: what depends on it may have
    been tested with it.
    """
    with waiting(layout.lock("channel")):
        layout.channel.mend()
        reports = [records.package(told) for _, told in made]
        sources = [source for source, _ in made]
        paths = [_place(report) for report in reports]
        stays = [_others(ledger, layout, path, wanted, config) for path in paths]
        fresh = [(source, path) for source, path, other in zip(sources, paths, stays, strict=True) if other is None]
        packages = [(source, path.split("/")[0]) for source, path in fresh if source.suffix != ".whl"]
        if packages:
            layout.channel.add(packages)
        for source, path in fresh:
            if source.suffix == ".whl":
                files.link_or_copy(source, layout.root / path)
        kept = [_kept(layout, path, report, config, wanted) for path, report in zip(paths, reports, strict=True)]
        known = [other or own for other, own in zip(stays, kept, strict=True)]
        ledger.keep(*known)
    told = tuple(_told(layout, report, each) for report, each in zip(reports, known, strict=True))
    detail = {"disk": disk, "packages": [records.package_as_json(_relative(layout, report)) for report in told]}
    ledger.record(wanted.key, config=config, title=TITLE, seconds=seconds, detail=detail)
    return told


def remember(
    ledger: Ledger,
    layout: Layout,
    config: str,
    made: Sequence[tuple[Path, dict[str, Any]]],
    wanted: Inputs,
    *,
    seconds: float,
) -> tuple[PackageReport, ...]:
    """Write a rehearsed cell down as done; its packages lie in a channel of their own already, and stay there."""
    told = []
    for source, fields in made:
        report = records.package(fields)
        path = str(source.relative_to(layout.root))
        kept = _kept(layout, path, report, config, wanted)
        ledger.keep(kept)
        told.append(_told(layout, report, kept))
    detail = {"packages": [records.package_as_json(_relative(layout, report)) for report in told]}
    ledger.record(wanted.key, config=config, title=REHEARSED, seconds=seconds, detail=detail)
    return tuple(told)


def taken(
    ledger: Ledger, layout: Layout, outputs: Sequence[Output], wanted: Inputs, config: str
) -> tuple[PackageReport, ...]:
    """Return which of a cell's packages another cell has made of the same recipe under the same name, and tested.

    They are told as that cell told of them, with a note of whose they are.
    """
    places = {
        f"{each.subdir}/{each.name}-{each.version}-{each.build_string}.conda" for each in outputs if not each.skip
    }
    kept = [found for place in sorted(places) if (found := _others(ledger, layout, place, wanted, config))]
    reports = [(each, _report_of(ledger, each)) for each in kept]
    return tuple(_whose(layout, report, each) for each, report in reports if report is not None)


def _report_of(ledger: Ledger, kept: Kept) -> PackageReport | None:
    """What the cell that made a package told of it."""
    told = (package for known in ledger.latest(TITLE, kept.config) for package in known.detail["packages"])
    reports = (records.package(each) for each in told)
    same = (each for each in reports if (str(each.artifact.path), each.artifact.sha256) == (kept.path, kept.sha256))
    return next(same, None)


def _whose(layout: Layout, report: PackageReport, kept: Kept) -> PackageReport:
    note = f"made and tested by {kept.config}"
    tests = dataclasses.replace(report.tests, notes=(*report.tests.notes, note))
    return dataclasses.replace(_told(layout, report, kept), reused=True, tests=tests)


def _place(report: PackageReport) -> str:
    return f"{report.artifact.subdir}/{report.artifact.path.name}"


def _others(ledger: Ledger, layout: Layout, path: str, wanted: Inputs, config: str) -> Kept | None:
    kept = ledger.kept(path)
    if kept is None or kept.config == config or not _is_kept(ledger, layout, path, wanted):
        return None
    return kept


def _kept(layout: Layout, path: str, report: PackageReport, config: str, wanted: Inputs) -> Kept:
    status = (layout.root / path).stat()
    return Kept(
        path=path,
        sha256=report.artifact.sha256,
        size=status.st_size,
        modified=status.st_mtime_ns,
        config=config,
        inputs=wanted.shared,
    )


def _told(layout: Layout, report: PackageReport, kept: Kept) -> PackageReport:
    artifact = dataclasses.replace(report.artifact, path=layout.root / kept.path, sha256=kept.sha256, size=kept.size)
    return dataclasses.replace(report, artifact=artifact)


def _relative(layout: Layout, report: PackageReport) -> PackageReport:
    artifact = dataclasses.replace(report.artifact, path=report.artifact.path.relative_to(layout.root))
    return dataclasses.replace(report, artifact=artifact)


@contextlib.contextmanager
def waiting(lock: Path, *, while_true: Callable[[], bool] = lambda: True, seconds: float = 600.0) -> Iterator[None]:
    """Hold a lock, once who has it lets go; raises AlreadyRunning when that takes too long, or is not worth waiting."""
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(files.locked(lock))
                break
            except AlreadyRunning:
                if time.monotonic() > until or not while_true():
                    raise
            time.sleep(WAIT)
        yield
