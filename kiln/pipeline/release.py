"""From a run to a channel: what the ledger says was built is judged, staged, installed, tested and promoted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import check, expand, files, render, repodata
from kiln.errors import BrokenPackage, UsageError
from kiln.ledger import Ledger
from kiln.model.artifact import Artifact, Verdict
from kiln.model.release import Candidate, Release
from kiln.pipeline import contract
from kiln.pipeline.cuda import offered
from kiln.pipeline.layout import Layout
from kiln.pipeline.outline import channels_for, file_name
from kiln.publish import contents, require_release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from kiln.channel import VirtualPackages
    from kiln.model.artifact import PackageReport
    from kiln.model.feedstock import Feedstock
    from kiln.model.rendered import Output, Rendered
    from kiln.model.run import CellRun, MatrixReport
    from kiln.publish.contents import Sought

ALLOWED = "outputs.txt"  # in the feedstock: globs of the names that it may publish, one a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A feedstock's cells as they render now and as they were last built, by their names."""

    feedstock: Feedstock
    rendered: Mapping[str, Rendered]
    runs: Mapping[str, tuple[MatrixReport, CellRun]]
    history: tuple[MatrixReport, ...]

    @classmethod
    def of(cls, feedstock: Feedstock) -> Built:
        """Render every cell and ask the ledger for its last run."""
        names = sorted(file.stem for file in feedstock.configs.glob("*.yaml"))
        cells = {name: render.finalise(render.render(feedstock, expand.read(feedstock, name))) for name in names}
        history = builds(feedstock)
        return cls(feedstock=feedstock, rendered=cells, runs=last_runs(history), history=history)

    def release(
        self,
        packages: Sequence[Path],
        *,
        partial: Iterable[str] = (),
        held: Mapping[str, str],
        tokens: Sequence[str] = (),
    ) -> Release:
        """Return what is to be released: the packages of all cells, or those named, whatever made them."""
        wanted = contents.sought(self._build_folders(), tokens)
        made = self._made()
        if packages:
            by_name = {path.name: told for path, told in made.items()}
            chosen = {path: by_name.get(path.name, ()) for path in packages}
        else:
            chosen = dict(made)
        return Release(
            cells={name: self.runs[name][1].state if name in self.runs else None for name in self.rendered},
            expected={} if packages else {name: _file_names(cell) for name, cell in self.rendered.items()},
            candidates=tuple(self._candidate(path, told, wanted) for path, told in chosen.items()),
            partial=frozenset(partial),
            allowed=allowed(self.feedstock),
            held=held,
        )

    def output(self, candidate: Candidate) -> tuple[Rendered, Output] | None:
        """Return the cell and the output that render a package."""
        return self._output(candidate.path.name, candidate.cells)

    def _made(self) -> dict[Path, tuple[tuple[str, PackageReport], ...]]:
        """Return every package file of the last runs, each with the cells that made it and their reports."""
        found: dict[Path, tuple[tuple[str, PackageReport], ...]] = {}
        for name in self.rendered.keys() & self.runs.keys():
            for report in (each for each in self.runs[name][1].packages if not each.artifact.is_wheel):
                found[report.artifact.path] = (*found.get(report.artifact.path, ()), (name, report))
        return {path: tuple(sorted(found[path], key=lambda told: told[0])) for path in sorted(found)}

    def _candidate(self, path: Path, told: Sequence[tuple[str, PackageReport]], wanted: Sequence[Sought]) -> Candidate:
        cells = tuple(name for name, _ in told)
        try:
            read, broken = contents.read(path, wanted), ""
        except BrokenPackage as error:
            read, broken = None, f"{error.what}: {error.why}"
        except OSError as error:
            read, broken = None, f"it cannot be read: {error.strerror}"
        rendered = self._output(path.name, cells)
        report = _tested(told, read.sha256 if read else "")
        return Candidate(
            path=path,
            cells=cells,
            artifact=report.artifact if report else _unknown(path, read.sha256 if read else ""),
            verdict=report.tests.verdict if report else Verdict.NONE,
            contents=read,
            broken=broken,
            output=rendered and rendered[1],
            needs_nothing_else=rendered is not None and _needs_nothing_else(*rendered),
        )

    def _output(self, name: str, cells: Iterable[str]) -> tuple[Rendered, Output] | None:
        for cell in cells:
            for output in self.rendered[cell].outputs:
                if not output.skip and file_name(output) == name:
                    return self.rendered[cell], output
        return None

    def _build_folders(self) -> tuple[str, ...]:
        return (str(self.feedstock.root), str(contract.ROOT), str(contract.RECIPE), str(contract.ON_A_MACHINE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The trying out of staged packages: each installed from there into a clean prefix, and its tests run.

    ``known`` are channels that have the packages which were published before.
    """

    built: Built
    candidates: tuple[Candidate, ...]
    known: tuple[str, ...]
    machine: VirtualPackages
    environment: Mapping[str, str]
    on_line: Callable[[str], None]

    def __call__(self, staged: str) -> None:
        """Try out all packages.

        Raises:
            SolveFailed, TestsFailed: naming the first that fails.
        """
        for candidate in self.candidates:
            found = self.built.output(candidate)
            assert found is not None, "the gate lets no package through that no cell renders"
            self.on_line(f"test {candidate.path.name}")
            self._one(*found, staged)

    def _one(self, rendered: Rendered, output: Output, staged: str) -> None:
        layout = Layout.of(self.built.feedstock)
        folder = layout.root / "publish"
        name = f"{output.name}-{output.build_string}"
        step = check.plan(
            output,
            recipe_folder=self.built.feedstock.recipe,
            folder=folder / f"test-{name}",
            prefix=folder / "prefixes" / name,
        )
        check.execute(
            step,
            channels=(staged, *self.known, *channels_for(rendered)),
            cache=folder / "cache",
            virtual_packages=offered(self.machine, rendered.cell),
            environment=self.environment,
            log=folder / f"test-{name}.log",
        )


def judged(release: Release) -> tuple[list[Path], list[repodata.Entry]]:
    """Return the packages of a release with what an index says of them, once nothing speaks against it.

    Raises:
        ReleaseRefused: with every reason.
    """
    require_release(release)
    paths = [candidate.path for candidate in release.candidates]
    return paths, [repodata.read(path) for path in paths]


def trial(
    built: Built,
    release: Release,
    *,
    known: tuple[str, ...],
    environment: Mapping[str, str],
    on_line: Callable[[str], None],
) -> Trial:
    """Return the trying out of what a release brings that is new in its channel."""
    from kiln.channel import machine_virtual_packages

    files.remove(Layout.of(built.feedstock).root / "publish")  # another package may have had the same name
    return Trial(
        built=built,
        candidates=new_of(release),
        known=known,
        machine=machine_virtual_packages(),
        environment=environment,
        on_line=on_line,
    )


def new_of(release: Release) -> tuple[Candidate, ...]:
    """Return the packages that the channel does not have yet."""
    held = release.held
    return tuple(each for each in release.candidates if f"{each.artifact.subdir}/{each.path.name}" not in held)


def builds(feedstock: Feedstock) -> tuple[MatrixReport, ...]:
    """Return all runs of the ledger, the latest first, but for rehearsals, which have a channel of their own."""
    place = Layout.of(feedstock).ledger
    if not place.is_file():  # to open it would begin one
        return ()
    with Ledger(place) as ledger:
        reports = (ledger.report(number) for number in ledger.runs())
        return tuple(report for report in reports if report and not report.rehearsal)


def last_runs(history: Iterable[MatrixReport]) -> dict[str, tuple[MatrixReport, CellRun]]:
    """Return, for each cell, the last run that had it; a run that only found it finished counts."""
    found: dict[str, tuple[MatrixReport, CellRun]] = {}
    for report in history:
        for cell in report.cells:
            found.setdefault(cell.config, (report, cell))
    return found


def allowed(feedstock: Feedstock) -> tuple[str, ...]:
    """Return the names that a feedstock may publish, as globs.

    Raises:
        UsageError: when the feedstock does not say.
    """
    file = feedstock.root / ALLOWED
    if not file.is_file():
        raise UsageError(
            f"{file} is missing",
            why="it lists the names of the packages that this feedstock may publish",
            hint="write one name, or glob, a line; 'kiln render' shows the names",
        )
    lines = (line.split("#")[0].strip() for line in file.read_text().splitlines())
    return tuple(line for line in lines if line)


def _tested(told: Sequence[tuple[str, PackageReport]], sha256: str) -> PackageReport | None:
    """Return the report of the very file that lies there: of several cells that make a package, one is kept."""
    reports = [report for _, report in told]
    return next((report for report in reports if report.artifact.sha256 == sha256), reports[0] if reports else None)


def _file_names(rendered: Rendered) -> tuple[str, ...]:
    return tuple(file_name(output) for output in rendered.outputs if not output.skip)


def _needs_nothing_else(rendered: Rendered, output: Output) -> bool:
    """Whether no requirement for building can have added to what a package runs with."""
    both = (rendered.compile_requirements, output.requirements)
    return not any(needs.build or needs.host for needs in both) and not output.noarch


def _unknown(path: Path, sha256: str) -> Artifact:
    """A package of which the ledger knows nothing."""
    name, version, build = [*path.stem.rsplit("-", 2), "", ""][:3]
    subdir = path.parent.name
    return Artifact(
        path=path,
        sha256=sha256,
        size=path.stat().st_size if path.is_file() else 0,
        cell="",
        name=name,
        version=version,
        build_string=build,
        subdir=subdir,
    )
