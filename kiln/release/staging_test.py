"""The test of a release's new packages, installed from where they are staged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import emulation, files
from kiln.install.install_and_test import make_package_tester
from kiln.job.required_channels_and_network import channels_needed_by_config
from kiln.store.layout import ArtifactLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kiln.model.release_packages import Candidate
    from kiln.release.candidate_packages import ConfigsAndRuns


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
    from kiln.virtual_packages import machine_virtual_packages

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
