"""What builds and engines see of the user's environment."""

from __future__ import annotations

from pathlib import Path

from kiln.cli import environment
from kiln.model.feedstock import Feedstock


def test_secrets_reach_neither_builds_nor_engines() -> None:
    found = {"PATH": "/bin", "GITHUB_TOKEN": "hidden", "DOCKER_HOST": "tcp://d", "DOCKER_IMAGE": "i", "CI": "1"}
    assert environment.client(found) == {"PATH": "/bin", "DOCKER_HOST": "tcp://d"}
    assert environment.given(Feedstock(root=Path("/f")), {**found, "sha": "1", "https_proxy": "p"}) == {
        "CI": "1",
        "sha": "1",
        "https_proxy": "p",
    }
