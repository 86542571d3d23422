"""Fixtures of all integration tests: the container engines of this machine, and an image in each."""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base import bootstrap
from kiln.base.errors import MissingTool
from kiln.container.engine import Engine, choose_engine
from tests import shared_inputs
from tests.conftest import lack_of
from tests.playbook_calls import PlaybookCaller, forked_ansible

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from kiln.publish.stores.target import StoreTarget
    from tests.playbook_calls import PlaybookResult

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files of slow tests, so that at the end no process waits for another's."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session", params=["docker", pytest.param("podman", marks=pytest.mark.sampled)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each container engine in turn; a test is skipped where one is missing."""
    try:
        result = choose_engine(request.param, env=os.environ).engine
    except MissingTool as missing:
        pytest.skip(f"{missing.what}{f': {missing.why}' if missing.why else ''}")
    assert result is not None
    return result


@pytest.fixture(scope="session")
def base_image(engine: Engine) -> str:
    """The base image in the engine: found there, or imported, or made first, which takes most of a minute."""
    try:
        return shared_inputs.base_image(engine)
    except MissingTool:
        pytest.skip(lack_of("mmdebstrap"))


@pytest.fixture(scope="session")
def fleet_python() -> Path:
    """The Python of the fleet's environment, whose folder has Ansible's programs; it is made if missing."""
    if sys.version_info < bootstrap.OLDEST_FOR_THE_FLEET:
        pytest.skip("Ansible needs Python 3.11 or newer")
    return bootstrap.ensure_fleet_environment(ROOT)


@pytest.fixture(scope="session")
def ansible(fleet_python: Path) -> Iterator[subprocess.Popen[str]]:
    """The process in whose forks playbooks run."""
    with forked_ansible(fleet_python) as process:
        yield process


@pytest.fixture
def play(ansible: subprocess.Popen[str], tmp_path: Path) -> Callable[..., PlaybookResult]:
    """Run playbooks with variables, which may be given as a dictionary; what they say must not hold a secret."""
    return PlaybookCaller(ansible, tmp_path)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreTarget]:
    """A channel in a bucket of a moto server."""
    import boto3
    from moto.server import ThreadedMotoServer

    from kiln.publish.stores.target import StoreTarget
    from kiln.publish.targets import parse_target

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    try:
        urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
        boto3.client("s3").create_bucket(Bucket="wheels", ACL="public-read")
        channel = parse_target("s3://wheels/channel", os.environ, journals=Path("unused"))
        assert isinstance(channel, StoreTarget)
        yield channel
    finally:
        server.stop()
