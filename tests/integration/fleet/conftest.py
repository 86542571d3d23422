"""The small feedstock and the image of its workers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln import image
from kiln.container import choose
from kiln.model.feedstock import Feedstock
from tests.integration.fleet.helpers import ROOT, SMALL, containers, docker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def workers() -> None:
    """The image of the machines, made where it is not there."""
    engine = choose("docker", env=os.environ).engine
    assert engine is not None
    folder = Feedstock(root=ROOT).artifacts / "images"
    image.base(engine, image.worker_recipe(), tag=image.worker_tag("bookworm"), folder=folder, env=os.environ)


@pytest.fixture
def small(tmp_path: Path, workers: None) -> Iterator[Path]:
    """A copy of the small feedstock; whatever a test left of its machines is removed."""
    root = Path(shutil.copytree(SMALL, tmp_path / "small-feedstock"))
    yield root
    left = containers(root)
    if left:
        docker("rm", "--force", "--volumes", *left)
