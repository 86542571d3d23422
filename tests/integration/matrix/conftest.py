"""The small feedstock and the places in which its matrix is built."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.matrix.helpers import SMALL, usable, working_in

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A copy of the small feedstock; a test that fails half-way leaves no process at work there."""
    root = Path(shutil.copytree(SMALL, tmp_path / "small-feedstock"))
    yield root
    for pid in working_in(root):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=["none", "docker", pytest.param("podman", marks=pytest.mark.sampled)])
def where(request: pytest.FixtureRequest) -> str:
    """The host and each container engine in turn."""
    return usable(request.param)


@pytest.fixture
def docker() -> str:
    """Docker alone."""
    return usable("docker")
