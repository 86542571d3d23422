"""The test of a release's new packages, installed from where they are staged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import emulation, files
from kiln.install.install_and_test import tester_of
from kiln.job.required_channels_and_network import needed_channels
from kiln.release.candidate_packages import ConfigsAndRuns, new_packages
from kiln.store.layout import ArtifactLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kiln.model.release import Candidate, Release
    from kiln.model.rendered import Output, RenderedConfig
    from kiln.virtual_packages import VirtualPackages


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingTest:
    """The test of staged packages: each is installed from there into a clean prefix, and its tests run.

    ``channels`` have the packages that were published before.
    """

    matrix: ConfigsAndRuns
    candidates: tuple[Candidate, ...]
    channels: tuple[str, ...]
    machine: VirtualPackages
    environment: Mapping[str, str]
    on_line: Callable[[str], None]

    def __call__(self, staged: str) -> None:
        """Test all packages.

        Raises:
            SolveFailed, TestsFailed: for the first that fails.
        """
        for candidate in self.candidates:
            output = self.matrix.config_and_output(candidate)
            assert output is not None, "the gate refuses packages that no config renders"
            runs = emulation.can_run_platform(candidate.artifact.subdir, in_container=False)
            self.on_line(f"{'test' if runs else 'install'} {candidate.path.name}")
            self._test_package(*output, staged, runs=runs)

    def _test_package(self, rendered: RenderedConfig, output: Output, staged: str, *, runs: bool) -> None:
        feedstock, channels = self.matrix.feedstock, (staged, *self.channels, *needed_channels(rendered))
        folder = ArtifactLayout.for_feedstock(feedstock).root / "publish"
        tester = tester_of(rendered, output, feedstock, folder=folder, channels=channels, machine=self.machine)
        if runs:
            tester.run(tester.plan(output), environment=self.environment)
        else:
            tester.trial_install(tester.plan(output))


def new_packages_test(
    matrix: ConfigsAndRuns,
    release: Release,
    *,
    channels: tuple[str, ...],
    environment: Mapping[str, str],
    on_line: Callable[[str], None],
) -> StagingTest:
    """Return the test of the packages of a release that are new in its channel."""
    from kiln.virtual_packages import machine_virtual_packages

    files.remove(
        ArtifactLayout.for_feedstock(matrix.feedstock).safe_path("publish")
    )  # an earlier package may have had the same name
    return StagingTest(
        matrix=matrix,
        candidates=new_packages(release),
        channels=channels,
        machine=machine_virtual_packages(),
        environment=environment,
        on_line=on_line,
    )
