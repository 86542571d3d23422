"""What builds, container engines and pip see of the user's environment; tokens and passwords stay outside."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from kiln.model.feedstock import Feedstock
    from kiln.pipeline import Machine

# What a build sees of the user's environment.
PASSED_ON = (
    *("PATH", "HOME", "USER", "LANG", "LC_ALL", "TERM", "TMPDIR", "CPU_COUNT"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "no_proxy", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "XDG_DATA_HOME"),
)
# What the client of a container engine needs beside that.
CLIENT = re.compile(
    r"DOCKER_(?!IMAGE|EXECUTABLE)|CONTAINER|XDG_RUNTIME_DIR$|XDG_CONFIG_HOME$|DBUS_SESSION_BUS_ADDRESS$"
)
PROXIES = re.compile(r"(?:https?|no|all)_proxy$", re.IGNORECASE)


def given(feedstock: Feedstock, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a build sees: conda-forge's, the way to the network, and the commit with its time."""
    from kiln import command, pipeline
    from kiln.errors import MissingTool

    names = {*pipeline.CONTRACT, "CPU_COUNT", "FEEDSTOCK_NAME"}
    found = {name: value for name, value in environment.items() if name in names or PROXIES.match(name)}
    if "sha" not in found:
        with contextlib.suppress(MissingTool):
            words = ("git", "log", "-1", "--format=%H %ct")
            asked = command.capture(words, env=passed_on(environment), cwd=feedstock.root)
            if asked.ok and asked.stdout:
                found["sha"], commit_time = asked.stdout.split()
                found.setdefault("SOURCE_DATE_EPOCH", commit_time)
    return found


def client(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a container engine's client, and kiln's own processes, need of an environment."""
    named = {name: value for name, value in environment.items() if CLIENT.match(name)}
    return {**passed_on(environment), **named}


def machine_of(options: argparse.Namespace) -> Machine:
    """Return what a run takes from this machine."""
    from kiln import pipeline

    return pipeline.Machine(environment=passed_on(os.environ), python=options.python)


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a build may see of an environment."""
    return {name: environment[name] for name in PASSED_ON if name in environment}


def pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what pip alone may see: its settings, which may hold an index with a password, and its cache's place."""
    return {name: value for name, value in environment.items() if name.startswith("PIP_") or name == "XDG_CACHE_HOME"}
