"""The configs that a command line selects, and the options of a build from arguments and environment."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from kiln.base import masking
from kiln.base.errors import KilnError, UnknownConfig, UsageError
from kiln.base.patterns import lazy_pattern
from kiln.cli.main import NAMES, top_parser
from kiln.cli.output import print_line, print_unless_quiet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from kiln.build.job.job import BuildOptions, HostMachine, RunOptions
    from kiln.cli import arguments as cli_arguments
    from kiln.recipe.feedstock import Feedstock
    from kiln.state.results import ConfigState


# Without credentials, query and fragment.
WEB_ADDRESS = lazy_pattern(r"https?://[\w.-]+(?::\d+)?(?:/[\w.~+-]+)*/?", re.ASCII)
WORKFLOW = lazy_pattern(r"https://[\w.-]+(?::\d+)?/[\w./~+-]+@[\w./~+-]+", re.ASCII)


def repository_and_run_urls(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the URLs of the feedstock's repository and of the CI's run, without credentials; empty where unknown.

    ``remote_url`` is conda-forge's variable of the repository; the others are GitHub Actions' default variables
    (https://docs.github.com/actions/reference/workflows-and-actions/variables).
    """
    from kiln.base import http

    server, repository, number = (environment.get(f"GITHUB_{name}") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID"))
    on_github = f"{server}/{repository}" if server and repository else ""
    run = f"{on_github}/actions/runs/{number}" if on_github and number else ""
    remote = environment.get("remote_url") or on_github
    urls = (http.url_without_credentials(url) for url in (remote, run))
    remote_url, ci_url = (url if WEB_ADDRESS.fullmatch(url) else "" for url in urls)
    return remote_url, ci_url


def workflow_uri(environment: Mapping[str, str]) -> str:
    """Return the URI of the CI's workflow with its revision, as Sigstore's certificates name it; empty where unknown.

    GITHUB_WORKFLOW_REF and CI_CONFIG_REF_URI are GitHub's and GitLab's variables of it.
    """
    server, workflow = environment.get("GITHUB_SERVER_URL"), environment.get("GITHUB_WORKFLOW_REF")
    uri = f"{server}/{workflow}" if server and workflow else ""
    if not uri and environment.get("CI_CONFIG_REF_URI"):
        uri = f"https://{environment['CI_CONFIG_REF_URI']}"
    return uri if WORKFLOW.fullmatch(uri) else ""


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

    The commit of a checkout counts, not the caller's ``sha``: see `kiln.base.git.checkout_commit` for its form.
    """
    from kiln.base import git, http
    from kiln.build.executor import environment as executor_environment

    names = {*executor_environment.CONTRACT, "CPU_COUNT", "FEEDSTOCK_NAME"}
    variables = {name: value for name, value in environment.items() if name in names or PROXIES.match(name)}
    if "remote_url" in variables:  # it is written into packages
        variables["remote_url"] = http.url_without_credentials(variables["remote_url"])
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
    from kiln.build.job.job import HostMachine

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


def selected_configs(feedstock: Feedstock, options: argparse.Namespace) -> tuple[str, ...]:
    """Return the configs to build: the named ones, all, the failed ones, or one picked by the user.

    The default of a rehearsal is the only config, or the CPU config of the machine's Python.
    """
    names = matching_configs(feedstock, options)
    if getattr(options, "changed", False):
        return _changed_configs(feedstock, options, names)
    if getattr(options, "since", "HEAD") != "HEAD":
        raise UsageError("--since goes with --changed", hint=f"--changed --since {options.since}")
    if options.configs and not options.failed:
        return names
    if options.failed:
        from kiln.run import runner

        return failed_configs(names, runner.last_config_states(feedstock, rehearsal=options.rehearsal))
    from kiln.run import checks

    containers = getattr(options, "container", None) != "none"
    names, note = checks.buildable_configs(feedstock, names, rehearsal=options.rehearsal, containers=containers)
    if note:
        print_unless_quiet(options, note)
    if options.rehearsal and not (options.all or options.filter or len(names) == 1):
        from kiln.build.rehearsal.inputs import cpu_config_for_machine

        return (cpu_config_for_machine(feedstock, host_machine_from_options(options), names),)
    if options.all or options.rehearsal or len(names) == 1:
        return names
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        if options.filter:
            hint = "add --all to build them all, or name a CONFIG"
            raise UsageError(f"{len(names)} configs match {options.filter!r}", hint=hint)
        hint = "name a CONFIG (kiln matrix lists them), or use --all"
        raise UsageError(f"no config selected, {len(names)} are available", hint=hint)
    from kiln.build.rehearsal.inputs import cpu_config_for_python

    default = names[0]
    with contextlib.suppress(KilnError):  # the CPU config of the running Python, if there is one
        default = cpu_config_for_python(feedstock, f"{sys.version_info.major}.{sys.version_info.minor}", names).name
    return (prompt_for_config(names, default),)


def _changed_configs(feedstock: Feedstock, options: argparse.Namespace, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the configs of which a package differs since a git revision, and that this machine can build."""
    from kiln.feedstock.difference import changed_outputs, extracted_git_revision
    from kiln.recipe.feedstock import load
    from kiln.run import checks

    env = variables_of_names(os.environ, ("PATH", "HOME"))
    with extracted_git_revision(feedstock.root, options.since, env=env) as before:
        changed = changed_outputs(load(before), feedstock)
    found = tuple(name for name in names if name in changed)
    print_unless_quiet(options, f"{len(found)} of {len(names)} configs differ since {options.since}")
    if not found:
        return ()
    containers = getattr(options, "container", None) != "none"
    found, note = checks.buildable_configs(feedstock, found, rehearsal=options.rehearsal, containers=containers)
    if note:
        print_unless_quiet(options, note)
    return found


def failed_configs(names: tuple[str, ...], states: Mapping[str, ConfigState]) -> tuple[str, ...]:
    """Return the configs that failed or were interrupted."""
    from kiln.state.results import ConfigState

    good = {ConfigState.DONE, ConfigState.CACHED, ConfigState.LOCKED, ConfigState.WAITING}
    return tuple(name for name in names if states.get(name, ConfigState.DONE) not in good)


def matching_configs(feedstock: Feedstock, options: argparse.Namespace) -> tuple[str, ...]:
    """Return the names of the named configs, or of all configs, that match the filter."""
    requested = dict.fromkeys(name.removesuffix(".yaml").removeprefix(".ci_support/") for name in options.configs)
    names = requested or feedstock.config_names
    matching = tuple(fnmatch.filter(names, options.filter or "*"))
    if not matching:
        from kiln.base.text import first_of

        scope = f" of {', '.join(requested)}" if requested else ""
        what = (
            f"no config{scope} matches {options.filter!r}"
            if options.filter
            else f"no configs in {feedstock.config_folder}"
        )
        hint = f"a pattern of {first_of(names, NAMES)}" if names else "kiln rerender writes them"
        raise UnknownConfig(what, hint=hint)
    return matching


def prompt_for_config(names: tuple[str, ...], default: str) -> str:
    """Ask the user to pick a config by its number; an empty line picks the default."""
    selected = names.index(default) + 1
    print("config not selected, please choose from the following:\n", file=sys.stderr)
    for number, name in enumerate(names, 1):
        print(f"{number}. {name}", file=sys.stderr)
    print(f"\nnumber [{selected}]> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    answer = str(selected) if line == "\n" else line.strip()  # not at the end of the input, which is no line
    if not answer.isdecimal() or not 1 <= int(answer) <= len(names):
        raise UsageError(f"invalid choice {answer!r}: expected a number from 1 to {len(names)}")
    return names[int(answer) - 1]


def run_options(feedstock: Feedstock, options: argparse.Namespace, configs: tuple[str, ...]) -> RunOptions:
    """Return the options of a run over configs; the arguments that set a field have its name."""
    from kiln.build.job.job import BuildOptions, RunOptions, parse_docker_run_arguments
    from kiln.cli import arguments as cli_arguments
    from kiln.feedstock import job_settings
    from kiln.run import runner

    environment = os.environ
    # Of all configs: those that share a package must agree on the values that it was made with.
    secrets = variables_of_names(environment, runner.caller_variable_names(feedstock, feedstock.config_names))
    masked = {**secrets, **variables_of_names(environment, job_settings.ci_secret_names(feedstock.conda_forge_yml))}
    masking.register_secrets(masking.secrets_of_script_variables(masked))
    for name in masking.unmaskable_variable_names(masked):
        print_unless_quiet(options, f"note: the value of {name} is too short to be masked in logs")
    arguments = _arguments_named_as_fields(RunOptions, options)
    executable, run_arguments = (environment.get(name) for name in ("DOCKER_EXECUTABLE", "CONDA_FORGE_DOCKER_RUN_ARGS"))
    engine_replaced = bool(executable or options.rehearsal or arguments.get("container"))
    containers = job_settings.container_settings(
        feedstock.conda_forge_yml, engine_replaced=engine_replaced, run_arguments_replaced=bool(run_arguments)
    )
    build = BuildOptions(
        **_arguments_named_as_fields(BuildOptions, options),
        **_budget_fields(options),
        executable=executable or None,
        run_arguments=parse_docker_run_arguments(run_arguments) if run_arguments else containers.run_arguments,
    )
    arguments["container"] = arguments.get("container") or containers.engine
    arguments["remote_cache"] = options.remote_cache or cli_arguments.parse_remote_cache_url(
        environment.get("BAZEL_REMOTE_CACHE", "")
    )
    arguments["remote_executor"] = options.remote_executor or cli_arguments.parse_remote_executor_url(
        environment.get("BAZEL_REMOTE_EXECUTOR", "")
    )
    text = environment.get("BAZEL_REMOTE_CREDENTIALS", "")
    arguments["remote_credentials"] = options.remote_credentials or cli_arguments.parse_credentials_setting(text)
    variables = conda_forge_build_variables(feedstock, environment)
    origin = run_origin(variables, environment, quiet=options.verbosity == "quiet")
    return RunOptions(
        **{**arguments, "configs": configs},
        build=build,
        command=masked_command_line(),
        image=environment.get("DOCKER_IMAGE") or None,
        fetch=not options.dry_run,
        remote_url=origin["remote_url"],
        ci_url=origin["ci_url"],
        workflow=origin["workflow"],
        caller_variables=variables,
        client={**container_client_variables(environment), **pip_variables(environment), **secrets},
        script_values=secrets,
    )


def run_origin(variables: Mapping[str, str], environment: Mapping[str, str], *, quiet: bool = False) -> dict[str, str]:
    """Return what a run's report says of its origin, with a note on standard error where the work tree has changes.

    ``variables`` are those of `conda_forge_build_variables`.
    """
    from kiln.base import git

    if git.is_dirty(commit := variables.get("sha", "")) and not quiet:
        print_line(f"note: built from changes to the commit {commit[:8]}; kiln publish needs --allow-dirty")
    remote_url, ci_url = repository_and_run_urls(environment)
    return {"commit": commit, "remote_url": remote_url, "ci_url": ci_url, "workflow": workflow_uri(environment)}


def _budget_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a build's options for ``--budget``, whose time begins now."""
    from kiln.build.job.messages import least_reserve_seconds

    budget: cli_arguments.Budget | None = getattr(options, "budget", None)
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
