"""Runs of the fleet on a feedstock with a recipe.yaml."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UnsupportedPython
from kiln.state.results import ConfigState
from tests.integration.fleet.helpers import ROOT, assert_given_back, containers, docker, report, words
from tests.integration.recipe_v1_feedstocks import built as built_here
from tests.integration.recipe_v1_feedstocks import contents, in_v1

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.slow("a whole run of the fleet: a machine is made, prepared, built on and removed"),
    pytest.mark.needs("docker", "ssh", "ssh-keygen", "rsync", "nginx"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason=f"{UnsupportedPython.__name__}: Ansible needs Python 3.11"),
]


@pytest.fixture
def feedstock(tmp_path: Path, workers: None) -> Iterator[Path]:
    """The small feedstock in the new format; whatever a test left of its workers is removed."""
    root = in_v1(tmp_path)
    yield root
    if left := containers(root):
        docker("rm", "--force", "--volumes", *left)


def test_packages_of_a_worker_are_those_of_this_machine(feedstock: Path, tmp_path: Path) -> None:
    options = ("--provider", "local", "--all", "--workers", "1", "--container", "none", "--poll", "1s")
    ended = subprocess.run(words(feedstock, "run", *options), cwd=ROOT, text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    configs = report(feedstock).configs
    assert {config.state for config in configs} == {ConfigState.DONE}
    assert all((config.worker or "").startswith("kiln-") for config in configs)
    titles = [step.title for step in configs[0].steps]
    assert [title for title in titles if title.startswith("compile")] == [
        "compile small-split-build-interpreter3.11",
        "compile small-split-build-interpreter3.12",
    ]
    packages = sorted((feedstock / "build_artifacts").glob("linux-64/*.conda"))
    assert len(packages) == 6
    assert_given_back(feedstock)
    here = in_v1(tmp_path / "here")
    built_here(here, "--all")
    for package in packages:
        assert contents(package) == contents(here / "build_artifacts" / "linux-64" / package.name)
