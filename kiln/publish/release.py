"""The candidates of a release, from the ledger and the channel, judged and tested where they are staged."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.base import files, limits
from kiln.base.errors import BrokenPackage, UsageError
from kiln.build.executor import environment as executor_environment
from kiln.build.job.job import channels_needed_by_config
from kiln.build.test.tester import make_package_tester
from kiln.conda.index import IndexEntry, read_index_entry
from kiln.container import emulation
from kiln.feedstock import config_file
from kiln.publish import gate
from kiln.publish.gate import require_releasable
from kiln.publish.model import Candidate, Release
from kiln.recipe import pins, render
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import Artifact, ConfigRun, ConfigState, PackageReport, TestVerdict
from kiln.state.store import cache
from kiln.state.store.layout import ArtifactLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from kiln.publish.gate import ForbiddenText
    from kiln.recipe.feedstock import Feedstock
    from kiln.recipe.rendered import Output, RenderedConfig
    from kiln.state.results import MatrixReport


def tester_of_staged_packages(
    matrix: ConfigsAndRuns,
    candidates: Sequence[Candidate],
    *,
    channels: tuple[str, ...],
    environment: Mapping[str, str],
    on_line: Callable[[str], None],
) -> Callable[[str], None]:
    """Return the test of packages in a staging channel, given by its URL; ``channels`` have those published before.

    Each package is installed into a clean prefix, and its tests run. The test raises SolveFailed or TestsFailed for the
    first that fails.
    """
    from kiln.conda.solve import machine_virtual_packages

    feedstock, machine = matrix.feedstock, machine_virtual_packages()
    folder = ArtifactLayout.for_feedstock(feedstock).safe_path("publish")
    files.remove(folder)  # an earlier package may have had the same name

    def test_packages(staged: str) -> None:
        for candidate in candidates:
            found = matrix.find_output(candidate.path.name, candidate.configs)
            assert found is not None, "the gate refuses packages that no config renders"
            rendered, output = found
            runs = emulation.can_run_platform(candidate.artifact.subdir, in_container=False)
            on_line(f"{'test' if runs else 'install'} {candidate.path.name}")
            tester = make_package_tester(
                rendered,
                output,
                feedstock,
                folder=folder,
                channels=(staged, *channels, *channels_needed_by_config(rendered)),
                machine=machine,
            )
            if runs:
                tester.run_tests(tester.plan_tests(output), environment=environment)
            else:
                tester.trial_install(tester.plan_tests(output))

    return test_packages


ALLOWED = "outputs.txt"  # in the feedstock: globs of the names that it may publish, one per line


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigsAndRuns:
    """A feedstock's configs, rendered now, and their last runs, by name."""

    feedstock: Feedstock
    rendered: Mapping[str, RenderedConfig]
    runs: Mapping[str, tuple[MatrixReport, ConfigRun]]
    history: tuple[MatrixReport, ...]

    @classmethod
    def from_feedstock(cls, feedstock: Feedstock) -> ConfigsAndRuns:
        """Render every config and find its last run in the ledger."""
        names = feedstock.config_names
        configs = limits.run_bounded(
            lambda: {
                name: pins.close_static_pins(render.render(feedstock, config_file.read_config(feedstock, name)))
                for name in names
            }
        )
        history = runs_in_ledger(feedstock)
        return cls(feedstock=feedstock, rendered=configs, runs=last_run_of_each_config(history), history=history)

    def assemble_release(
        self,
        packages: Sequence[Path],
        *,
        partial: Iterable[str] = (),
        published: Mapping[str, str],
        damaged: frozenset[str] = frozenset(),
        tokens: Sequence[str] = (),
        untested: Iterable[str] = (),
        allow_dirty: bool = False,
    ) -> Release:
        """Return the release of all configs' packages, or of the named ones, whatever made them.

        ``partial`` are names of configs that may be missing, or patterns of them.
        """
        build_paths = (
            self.feedstock.root,
            executor_environment.ROOT,
            executor_environment.RECIPE,
            executor_environment.WORKER_ROOT,
        )
        searched = gate.forbidden_texts(tuple(map(str, build_paths)), tokens)
        packages_made = self._reports_by_package_file()
        selected = {path: _reports_of_package(path, packages_made) for path in packages} if packages else packages_made
        return Release(
            configs={name: self.runs[name][1].state if name in self.runs else None for name in self.rendered},
            expected={}
            if packages
            else {
                name: tuple(output.channel_path for output in config.outputs if not output.skip)
                for name, config in self.rendered.items()
            },
            candidates=tuple(self._inspected_candidate(path, reports, searched) for path, reports in selected.items()),
            partial=frozenset(
                name for pattern in partial for name in fnmatch.filter(self.rendered, pattern) or [pattern]
            ),
            allowed=allowed_package_names(self.feedstock),
            held=published,
            damaged=damaged,
            untested=frozenset(untested),
            allow_dirty=allow_dirty,
        )

    def find_output(self, name: str, configs: Iterable[str]) -> tuple[RenderedConfig, Output] | None:
        """Return the config and the output that render a package's file name; None without one."""
        for config in configs:
            for output in self.rendered[config].outputs:
                if not output.skip and output.package_file_name == name:
                    return self.rendered[config], output
        return None

    def find_build(self, sha256: str) -> tuple[MatrixReport, ConfigRun, PackageReport] | None:
        """Return the run and the config that made a package, by its hash, and its report there.

        Where no run of that config has it, the first that reused it; None without any.
        """
        builds = self._builds_of_package(sha256)
        # A resumed run reuses the steps of an interrupted one.
        made = (build for build in builds if not build[2].reused)
        return next(made, builds[-1] if builds else None)

    def _builds_of_package(self, sha256: str) -> list[tuple[MatrixReport, ConfigRun, PackageReport]]:
        """Return the builds of a package by the config that made it, the latest first; without any, the others."""
        builds = [
            (report, config, package)
            for report in self.history
            for config in report.configs
            for package in config.packages
            if package.artifact.sha256 == sha256
        ]
        return [build for build in builds if build[2].artifact.config == build[1].config] or builds

    def _is_current(self, sha256: str) -> bool:
        """Return whether a package was built from the feedstock's files as they are now, by a config of the matrix."""
        digests = {
            (config.config, package.feedstock)
            for _, config, package in self._builds_of_package(sha256)
            if {config.config, package.artifact.config} <= self.rendered.keys()
        }
        return any(cache.recipe_and_config_digest(self.feedstock, name) == digest for name, digest in digests)

    def _reports_by_package_file(self) -> dict[Path, tuple[tuple[str, PackageReport], ...]]:
        """Return every package file of the last runs, each with the configs that made it and their reports."""
        reports_by_path: dict[Path, list[tuple[str, PackageReport]]] = {}
        for name in sorted(self.rendered.keys() & self.runs.keys()):
            for report in (package for package in self.runs[name][1].packages if not package.artifact.is_wheel):
                reports_by_path.setdefault(report.artifact.path, []).append((name, report))
        return {path: tuple(reports_by_path[path]) for path in sorted(reports_by_path)}

    def _inspected_candidate(
        self, path: Path, reports: Sequence[tuple[str, PackageReport]], searched: Sequence[ForbiddenText]
    ) -> Candidate:
        configs = tuple(name for name, _ in reports)
        try:
            package_contents, broken = gate.inspect_package(path, searched), ""
        except BrokenPackage as error:
            package_contents, broken = None, f"{error.what}: {error.why}"
        except OSError as error:
            package_contents, broken = None, f"it cannot be read: {error.strerror}"
        rendered = self.find_output(path.name, configs)
        sha256 = package_contents.sha256 if package_contents else ""
        report = _report_with_hash_or_first(reports, sha256)
        return Candidate(
            path=path,
            configs=configs,
            artifact=report.artifact if report else _artifact_outside_ledger(path, sha256),
            verdict=report.tests.verdict if report else TestVerdict.NONE,
            contents=package_contents,
            broken=broken,
            built_on=_cross_build_platform(rendered),
            output=rendered and rendered[1],
            is_current=report is not None and self._is_current(report.artifact.sha256),
            needs_nothing_else=rendered is not None and _has_no_build_requirements(*rendered),
        )


def read_releasable_packages(release: Release) -> tuple[list[Path], list[IndexEntry]]:
    """Return the packages of a release with their index entries; refuse an invalid release.

    Raises:
        ReleaseRefused: with every reason.
    """
    require_releasable(release)
    paths = [candidate.path for candidate in release.candidates]
    return paths, [read_index_entry(path) for path in paths]


def packages_new_in_channel(release: Release) -> tuple[Candidate, ...]:
    """Return the packages that are new in the channel, or published anew, since it offers them without their files."""
    present = release.held.keys() - release.damaged
    return tuple(candidate for candidate in release.candidates if candidate.artifact.channel_path not in present)


def damage_notes(release: Release) -> tuple[str, ...]:
    """Return remarks on the packages that are published anew."""
    paths = {candidate.artifact.channel_path for candidate in release.candidates}
    return tuple(
        f"{path}: its file in the channel is missing or has another size than its index says: it is published anew"
        for path in sorted(paths & release.damaged)
    )


def runs_in_ledger(feedstock: Feedstock) -> tuple[MatrixReport, ...]:
    """Return all runs of the ledger, the latest first, except rehearsals."""
    place = ArtifactLayout.for_feedstock(feedstock).ledger
    if not place.is_file():  # opening a ledger creates it
        return ()
    with Ledger(place) as ledger:
        reports = (ledger.run_report(number) for number in ledger.run_numbers())
        return tuple(report for report in reports if report and not report.rehearsal)


def last_run_of_each_config(history: Iterable[MatrixReport]) -> dict[str, tuple[MatrixReport, ConfigRun]]:
    """Return the last run with a result of each config, even one that only reused it."""
    runs: dict[str, tuple[MatrixReport, ConfigRun]] = {}
    for report in history:
        for config in report.configs:
            if config.has_result:
                runs.setdefault(config.config, (report, config))
    return runs


def allowed_package_names(feedstock: Feedstock) -> tuple[str, ...]:
    """Return the names that a feedstock may publish, as globs."""
    file = feedstock.root / ALLOWED
    if not file.is_file():
        raise UsageError(
            f"{file} is missing",
            why="it lists the names of the packages that this feedstock may publish",
            hint="write one name or glob per line; 'kiln render' lists the names",
        )
    lines = (line.split("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return tuple(line for line in lines if line)


def _reports_of_package(
    package: Path, packages_made: Mapping[Path, tuple[tuple[str, PackageReport], ...]]
) -> tuple[tuple[str, PackageReport], ...]:
    """Return the reports of a package file, wherever it is: two subdirs may have packages of its name."""
    matches = [reports for path, reports in packages_made.items() if path.name == package.name]
    if len(matches) > 1 and package.is_file():
        sha256 = files.sha256(package)
        matches.sort(key=lambda reports: all(report.artifact.sha256 != sha256 for _, report in reports))
    return matches[0] if matches else ()


def _report_with_hash_or_first(reports: Sequence[tuple[str, PackageReport]], sha256: str) -> PackageReport | None:
    """Return the report of the file in the channel: several configs may make a package, one of them is stored."""
    candidates = [report for _, report in reports]
    return next((report for report in candidates if report.artifact.sha256 == sha256), next(iter(candidates), None))


def _has_no_build_requirements(rendered: RenderedConfig, output: Output) -> bool:
    """Return whether no build requirement can have added run requirements."""
    staging = rendered.staging_of_output(output)
    entries = (output,) if staging is None else (staging, output)
    return not any(entry.requirements.build or entry.requirements.host for entry in entries) and not output.noarch


def _cross_build_platform(rendered: tuple[RenderedConfig, Output] | None) -> str:
    """Return the platform that a package was cross-compiled on; empty for a native or noarch one."""
    if rendered is None or rendered[1].subdir == "noarch" or not rendered[0].config.is_cross:
        return ""
    return rendered[0].config.build_platform


def _artifact_outside_ledger(path: Path, sha256: str) -> Artifact:
    name, version, build = [*path.stem.rsplit("-", 2), "", ""][:3]
    return Artifact(
        path=path,
        sha256=sha256,
        size=path.stat().st_size if path.is_file() else 0,
        config="",
        name=name,
        version=version,
        build_string=build,
        subdir=path.parent.name,
    )


BUILT = (ConfigState.DONE, ConfigState.CACHED)


def latest_packages_of_configs(feedstock: Feedstock, configs: Iterable[str]) -> dict[str, tuple[Path, ...]]:
    """Return the packages of configs from the latest run that built each; configs without any are left out.

    Packages that are missing or have changed since do not count.
    """
    history, names = runs_in_ledger(feedstock), set(configs)
    result: dict[str, tuple[Path, ...]] = {}
    for report in history:
        for config in report.configs:
            is_built = config.is_built or config.state in BUILT
            if config.config in names - result.keys() and is_built and config.packages:
                paths = _unchanged_package_files(config)
                result |= {config.config: paths} if paths else {}
    return result


def _unchanged_package_files(config: ConfigRun) -> tuple[Path, ...]:
    artifacts = [package.artifact for package in config.packages if not package.artifact.is_wheel]
    if not all(artifact.path.is_file() and files.sha256(artifact.path) == artifact.sha256 for artifact in artifacts):
        return ()
    return tuple(artifact.path for artifact in artifacts)
