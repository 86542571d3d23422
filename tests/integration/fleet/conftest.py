"""The small feedstock and the image of its workers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import shared_inputs
from tests.git_repositories import git
from tests.integration.fleet.helpers import SMALL, containers, docker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def workers() -> None:
    """The image of the machines, made where it is not there."""
    shared_inputs.worker_image(shared_inputs.docker_engine())


@pytest.fixture
def small(tmp_path: Path, workers: None) -> Iterator[Path]:
    """A checkout of the small feedstock; whatever a test left of its machines is removed."""
    root = Path(shutil.copytree(SMALL, tmp_path / "small-feedstock"))
    git(root, "init", "--quiet")
    (root / ".gitignore").write_text("build_artifacts/\n")
    yield root
    left = containers(root)
    if left:
        docker("rm", "--force", "--volumes", *left)
