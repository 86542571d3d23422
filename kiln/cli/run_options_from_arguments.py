"""The options of a build, from the command line and from conda-forge's environment variables."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from kiln import git, masking
from kiln.cli import option_value_parsers, top_parser
from kiln.cli.current_ci_run_urls import repository_and_run_urls, workflow_uri
from kiln.cli.environment_filters import (
    conda_forge_build_variables,
    container_client_variables,
    pip_variables,
    variables_of_names,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from kiln.job.job_descriptions import BuildOptions
    from kiln.model.feedstock import Feedstock
    from kiln.run.options import RunOptions


def run_options(feedstock: Feedstock, options: argparse.Namespace, configs: tuple[str, ...]) -> RunOptions:
    """Return the options of a run over configs; the arguments that set a field have its name."""
    from kiln import expand
    from kiln.job.job_descriptions import BuildOptions
    from kiln.run import feedstock_run
    from kiln.run.options import RunOptions, parse_docker_run_arguments

    environment = os.environ
    secrets = variables_of_names(environment, feedstock_run.caller_variable_names(feedstock, configs))
    masked = {**secrets, **variables_of_names(environment, expand.ci_secret_names(feedstock.conda_forge_yml))}
    masking.register_secrets(masking.secrets_of_script_variables(masked))
    for name in masking.unmaskable_variable_names(masked):
        print(f"note: the value of {name} is too short to be masked in logs", file=sys.stderr)
    arguments = _arguments_named_as_fields(RunOptions, options)
    executable, run_arguments = (environment.get(name) for name in ("DOCKER_EXECUTABLE", "CONDA_FORGE_DOCKER_RUN_ARGS"))
    engine_replaced = bool(executable or options.rehearsal or arguments.get("container"))
    containers = expand.container_settings(
        feedstock.conda_forge_yml, engine_replaced=engine_replaced, run_arguments_replaced=bool(run_arguments)
    )
    build = BuildOptions(
        **_arguments_named_as_fields(BuildOptions, options),
        **_budget_fields(options),
        executable=executable or None,
        run_arguments=parse_docker_run_arguments(run_arguments) if run_arguments else containers.run_arguments,
    )
    arguments["container"] = arguments.get("container") or containers.engine
    arguments["remote_cache"] = options.remote_cache or option_value_parsers.parse_remote_cache_url(
        environment.get("BAZEL_REMOTE_CACHE", "")
    )
    arguments["remote_executor"] = options.remote_executor or option_value_parsers.parse_remote_executor_url(
        environment.get("BAZEL_REMOTE_EXECUTOR", "")
    )
    text = environment.get("BAZEL_REMOTE_CREDENTIALS", "")
    arguments["remote_credentials"] = options.remote_credentials or option_value_parsers.parse_credentials_setting(text)
    variables = conda_forge_build_variables(feedstock, environment)
    if git.is_dirty(commit := variables.get("sha", "")):
        print(f"note: built from changes to the commit {commit[:8]}; kiln publish needs --allow-dirty", file=sys.stderr)
    remote_url, ci_url = repository_and_run_urls(environment)
    return RunOptions(
        **{**arguments, "configs": configs},
        build=build,
        command=masked_command_line(),
        image=environment.get("DOCKER_IMAGE") or None,
        fetch=not options.dry_run,
        remote_url=remote_url,
        ci_url=ci_url,
        workflow=workflow_uri(environment),
        caller_variables=variables,
        client={**container_client_variables(environment), **pip_variables(environment), **secrets},
    )


def _budget_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a build's options for ``--budget``, whose time begins now."""
    from kiln.job.budget_monitor import least_reserve_seconds

    budget: option_value_parsers.Budget | None = getattr(options, "budget", None)
    if budget is None:
        return {}
    if budget.seconds is None:
        return {"action_limit": budget.actions}
    return {"deadline": time.time() + budget.seconds, "least_reserve": least_reserve_seconds(budget.seconds)}


def _arguments_named_as_fields(record: type[RunOptions | BuildOptions], options: argparse.Namespace) -> dict[str, Any]:
    import dataclasses

    fields = {field.name for field in dataclasses.fields(record)}
    return {name: value for name, value in vars(options).items() if name in fields}


def masked_command_line() -> str:
    """Return the command of this process, as a report has it."""
    return masking.masked(command_as_typed(sys.argv[1:]))


def command_as_typed(words: Sequence[str]) -> str:
    """Return the command as the user typed it, without the words that an entry script adds."""
    import shlex

    if "--called" not in words[:1]:
        return shlex.join(("kiln", *words))
    top = top_parser().parse_args(words)
    typed = top.rest[2:] if top.rest[:1] == ["--calling-python"] else top.rest
    return shlex.join((top.called, *typed))
