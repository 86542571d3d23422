"""What integration tests share: the container engines of this machine, and an image in each."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kiln import bootstrap, image
from kiln.container import Engine, choose
from kiln.errors import MissingTool
from kiln.model.feedstock import Feedstock
from tests.conftest import lack_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let what uses real machines be tried twice: what it meets there once is told at the end, not taken for ours."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why a test was tried twice, so that a fault which comes now and then is found all the same."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"first try of {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture(scope="session", params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each container engine in turn; a test is skipped where one is missing."""
    try:
        found = choose(request.param, env=os.environ).engine
    except MissingTool as missing:
        pytest.skip(f"{missing.what}{f': {missing.why}' if missing.why else ''}")
    assert found is not None
    return found


@pytest.fixture(scope="session")
def base_image(engine: Engine) -> str:
    """The base image in the engine: found there, or imported, or made first, which takes most of a minute."""
    tag = image.default_tag("bookworm")
    folder = Feedstock(root=ROOT).artifacts / "images"
    try:
        return image.base(engine, image.recipe(), tag=tag, folder=folder, env=os.environ).tag
    except MissingTool:
        pytest.skip(lack_of("mmdebstrap"))


@pytest.fixture(scope="session")
def fleet_python() -> Path:
    """The Python of the fleet's environment, beside which Ansible's programs lie; made here when it is missing."""
    if sys.version_info < bootstrap.OLDEST_FOR_THE_FLEET:
        pytest.skip("Ansible needs Python 3.11 or newer")
    return bootstrap.fleet(ROOT)
