"""Builds and container engines see only parts of the user's environment."""

from __future__ import annotations

from pathlib import Path

from kiln.cli import options
from kiln.recipe.feedstock import Feedstock


def test_secrets_reach_neither_builds_nor_engines() -> None:
    variables = {"PATH": "/bin", "GITHUB_TOKEN": "hidden", "DOCKER_HOST": "tcp://d", "DOCKER_IMAGE": "i", "CI": "1"}
    assert options.container_client_variables(variables) == {
        "PATH": "/bin",
        "DOCKER_HOST": "tcp://d",
    }
    assert options.conda_forge_build_variables(
        Feedstock(root=Path("/f")), {**variables, "sha": "1", "https_proxy": "p"}
    ) == {
        "CI": "1",
        "sha": "1",
        "https_proxy": "p",
    }
