"""The parts of the user's environment that builds, container engines and pip see; tokens and passwords are excluded."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from kiln.job.host_environment_and_python import HostMachine
    from kiln.model.feedstock import Feedstock

# Variables that are passed on to a build.
PASSED_ON = (
    *("PATH", "HOME", "USER", "LANG", "LC_ALL", "TERM", "TMPDIR", "CPU_COUNT"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "no_proxy", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "XDG_DATA_HOME"),
    "KILN_LIMITS",
)
# Further variables that the client of a container engine needs.
CLIENT = lazy_pattern(
    r"DOCKER_(?!IMAGE|EXECUTABLE)|CONTAINER|XDG_RUNTIME_DIR$|XDG_CONFIG_HOME$|DBUS_SESSION_BUS_ADDRESS$"
)
PROXIES = lazy_pattern(r"(?:https?|no|all)_proxy$", re.IGNORECASE)


def conda_forge_build_variables(feedstock: Feedstock, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a build: conda-forge's, proxies, and the commit with its time.

    The commit of a checkout counts, not the caller's ``sha``: see `kiln.git.checkout_commit` for its form.
    """
    from kiln import channel_url_credentials, git
    from kiln.executor import conda_forge_variables_and_paths

    names = {*conda_forge_variables_and_paths.CONTRACT, "CPU_COUNT", "FEEDSTOCK_NAME"}
    variables = {name: value for name, value in environment.items() if name in names or PROXIES.match(name)}
    if "remote_url" in variables:  # it is written into packages
        variables["remote_url"] = channel_url_credentials.url_without_credentials(variables["remote_url"])
    inputs = (feedstock.recipe, feedstock.config_folder, feedstock.conda_forge_yml)
    commit, commit_time = git.checkout_commit(feedstock.root, inputs, env=variables_passed_to_builds(environment))
    if commit and "sha" not in variables:
        variables.setdefault("SOURCE_DATE_EPOCH", commit_time)
    return {**variables, "sha": commit} if commit else variables


def container_client_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a container engine's client and for kiln's own processes."""
    settings = {name: value for name, value in environment.items() if CLIENT.match(name)}
    return {**variables_passed_to_builds(environment), **settings}


def host_machine_from_options(options: argparse.Namespace) -> HostMachine:
    """Return the properties of this machine that a run uses."""
    from kiln.job.host_environment_and_python import HostMachine

    return HostMachine(
        environment=variables_passed_to_builds(os.environ),
        python=options.python or options.calling_python,
        insists=options.python is not None,
    )


def variables_of_names(environment: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the variables of these names that an environment has."""
    return {name: environment[name] for name in names if name in environment}


def variables_passed_to_builds(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a build may see."""
    return variables_of_names(environment, PASSED_ON)


def git_and_pip_environment(environment: Mapping[str, str], *more: str) -> dict[str, str]:
    """Return the environment of git, of pip and of generators of recipes, with further variables by their names."""
    return {
        **variables_passed_to_builds(environment),
        **pip_variables(environment),
        **variables_of_names(environment, more),
    }


def pip_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for pip alone: its settings, which may contain an index with a password, and its cache."""
    return {name: value for name, value in environment.items() if name.startswith("PIP_") or name == "XDG_CACHE_HOME"}
