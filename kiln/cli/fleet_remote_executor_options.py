"""The remote executor of a fleet's compiles: the secret variables of its builds, which no argument or playbook has."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from kiln.cli import option_value_parsers
from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from kiln.fleet.fleet_run_settings import FleetRunConfig
    from kiln.model.feedstock import Feedstock
    from kiln.run.options import RunOptions

EXECUTOR, CREDENTIALS = "BAZEL_REMOTE_EXECUTOR", "BAZEL_REMOTE_CREDENTIALS"
POOL_SERVER = "grpcs://pool"  # stands for the address that the server of a pool will have
SETTINGS, SECTION, IMAGE = "compile.ini", "remote", "container-image"
IMAGE_NAME = re.compile(r"docker://[A-Za-z0-9][A-Za-z0-9_./:@-]*")
LITERAL = re.compile(r"[A-Za-z0-9_.,:/=@%+~-]*")  # characters that systemd's file of variables takes as they are


def check_options(options: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Refuse options of an executor without one, and an executor together with a cache over HTTP.

    Raises:
        UsageError: with the option.
    """
    if not hasattr(options, "remote_executor"):  # another command than run
        return
    if options.pool and has_remote_executor(options, environment):
        raise UsageError(
            "--pool cannot be used with --remote-executor", why="the pool is the executor of all compiles of the run"
        )
    if not has_remote_executor(options, environment):
        names = ("remote_credentials", "remote_jobs", "remote_fallback")
        unused = [name for name in names if getattr(options, name)]
        if unused:
            raise UsageError(f"--{unused[0].replace('_', '-')} requires --remote-executor")
    elif options.cache:
        raise UsageError(
            "--cache cannot be used with --remote-executor",
            why="Bazel does not combine a remote executor with a cache over HTTP",
            hint="leave --cache out: the executor has a cache of its own, which all builds share",
        )
    elif not LITERAL.fullmatch(_executor_address(options, environment) or ""):
        raise UsageError(
            "the URL of the remote executor has characters that cannot be passed to the workers",
            hint="put a password into --remote-credentials, as a header",
        )


def has_remote_executor(options: argparse.Namespace, environment: Mapping[str, str]) -> bool:
    """Return whether the compiles of a run use a remote executor."""
    return _executor_address(options, environment) is not None


def _executor_address(options: argparse.Namespace, environment: Mapping[str, str]) -> str | None:
    address: str | None = getattr(options, "remote_executor", None)
    return address or option_value_parsers.parse_remote_executor_url(environment.get(EXECUTOR, ""))


def executor_job_options(options: argparse.Namespace, run_config: FleetRunConfig | None = None) -> tuple[str, ...]:
    """Return the options of builds on the workers for an executor or a pool, which are not inputs of packages."""
    jobs, fallback = getattr(options, "remote_jobs", None), getattr(options, "remote_fallback", False)
    jobs = jobs if run_config is None or run_config.pool is None else run_config.pool.cores * run_config.pool_workers
    return (*(("--remote-jobs", str(jobs)) if jobs else ()), *(("--remote-fallback",) if fallback else ()))


def executor_secret_variables(options: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the secret variables of each build: the executor's address, and its credentials' content.

    Raises:
        UsageError: when they are invalid.
    """
    from kiln.run import bazel_remote_executor_secrets_and_refusals

    if not has_remote_executor(options, environment):
        return {}
    run_options = _executor_run_options(options, environment, ())
    return bazel_remote_executor_secrets_and_refusals.remote_secret_variables(run_options)


def require_recipe_support(feedstock: Feedstock, configs: Iterable[str], options: argparse.Namespace) -> None:
    """Refuse an executor that a feedstock's recipe does not use, before workers are paid for.

    Raises:
        UsageError: when the option would have no effect.
    """
    from kiln import expand
    from kiln.run import bazel_remote_executor_secrets_and_refusals

    if not hasattr(options, "remote_executor"):
        return
    if options.pool:
        pool_platform_properties(feedstock, options)
    if options.pool or has_remote_executor(options, os.environ):
        names = tuple(configs)
        bazel_remote_executor_secrets_and_refusals.refuse_ineffective_remote_options(
            feedstock, expand.read_configs(feedstock, names), _executor_run_options(options, os.environ, names)
        )


def pool_platform_properties(feedstock: Feedstock, options: argparse.Namespace) -> dict[str, str]:
    """Return the platform properties of the actions of a pool: the playbooks' variable, or those of compile.ini.

    Raises:
        UsageError: when none is the image that the actions run in.
    """
    from kiln.cli.fleet_run_folder_and_variables import playbook_variable_value

    properties = playbook_variable_value("kiln_pool_properties", options.vars) or _recipe_platform_properties(feedstock)
    image = properties.get(IMAGE) if isinstance(properties, dict) else None
    if not isinstance(image, str) or not IMAGE_NAME.fullmatch(image):
        raise UsageError(
            "--pool: the image that the actions run in is unknown",
            why=f"[{SECTION}] in recipe/{SETTINGS} has no property {IMAGE}=docker://IMAGE@sha256:DIGEST",
            hint="write it there, or into kiln_pool_properties in a file for --vars",
        )
    return {str(name): str(value) for name, value in properties.items()}


def _recipe_platform_properties(feedstock: Feedstock) -> dict[str, str]:
    """Return the platform properties that a recipe's compile step names, as far as it has them in compile.ini."""
    import configparser

    settings = configparser.ConfigParser(interpolation=None)
    try:
        settings.read(feedstock.recipe / SETTINGS, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise UsageError(f"recipe/{SETTINGS} cannot be read", why=str(error).splitlines()[0]) from error
    lines = settings.get(SECTION, "properties", fallback="").splitlines()
    pairs = (line.strip().partition("=") for line in lines if "=" in line)
    return {name: value for name, _, value in pairs}


def _executor_run_options(
    options: argparse.Namespace, environment: Mapping[str, str], configs: tuple[str, ...]
) -> RunOptions:
    """Return the options of a run on a worker, as far as the executor is concerned."""
    from kiln.run.options import RunOptions

    folder = getattr(options, "remote_credentials", None)
    return RunOptions(
        configs=configs,
        command="",
        remote_executor=POOL_SERVER if getattr(options, "pool", None) else _executor_address(options, environment),
        remote_credentials=folder or option_value_parsers.parse_credentials_setting(environment.get(CREDENTIALS, "")),
    )
