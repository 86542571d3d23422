"""The site of a fleet run: its folder, the variables of its playbooks, and its remote executor."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import masking
from kiln.base.errors import UsageError
from kiln.base.system.machine import PACKAGE_ROOT
from kiln.base.text import duration_seconds
from kiln.cli import arguments
from kiln.cli.options import conda_forge_build_variables, container_client_variables

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from kiln.build.job.job import RunOptions
    from kiln.fleet.ansible.playbooks import PlaybookSite
    from kiln.fleet.run_config import FleetRunConfig
    from kiln.recipe.feedstock import Feedstock
    from kiln.state.store.layout import ArtifactLayout


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
    return address or arguments.parse_remote_executor_url(environment.get(EXECUTOR, ""))


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
    from kiln.build.job import job

    if not has_remote_executor(options, environment):
        return {}
    run_options = _executor_run_options(options, environment, ())
    return job.remote_secret_variables(run_options)


def require_recipe_support(feedstock: Feedstock, configs: Iterable[str], options: argparse.Namespace) -> None:
    """Refuse an executor that a feedstock's recipe does not use, before workers are paid for.

    Raises:
        UsageError: when the option would have no effect.
    """
    from kiln.feedstock import config_file
    from kiln.recipe import render
    from kiln.run import checks

    if not hasattr(options, "remote_executor"):
        return
    if options.pool:
        pool_platform_properties(feedstock, options)
    if options.pool or has_remote_executor(options, os.environ):
        names = tuple(configs)
        checks.refuse_ineffective_remote_options(
            feedstock,
            (render.render(feedstock, config) for config in config_file.read_configs(feedstock, names)),
            _executor_run_options(options, os.environ, names),
        )


def pool_platform_properties(feedstock: Feedstock, options: argparse.Namespace) -> dict[str, str]:
    """Return the platform properties of the actions of a pool: the playbooks' variable, or those of compile.ini.

    Raises:
        UsageError: when none is the image that the actions run in.
    """
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
    from kiln.build.job.job import RunOptions

    folder = getattr(options, "remote_credentials", None)
    return RunOptions(
        configs=configs,
        command="",
        remote_executor=POOL_SERVER if getattr(options, "pool", None) else _executor_address(options, environment),
        remote_credentials=folder or arguments.parse_credentials_setting(environment.get(CREDENTIALS, "")),
    )


ANSIBLE = PACKAGE_ROOT / "ansible"
# Environment variables of the providers' modules; only the playbooks' processes get them.
CLOUD = re.compile(r"AWS_|OS_|ANSIBLE_VAULT_|PIP_|KILN_FLEET_")
AWS_REGION = "AWS_REGION"
# Variables of the environment that say which part of which cloud is asked.
REGION_NAMES = {"aws": (AWS_REGION,), "openstack": ("OS_AUTH_URL", "OS_CLOUD", "OS_REGION_NAME")}
REGION_FILE = "region.json"
INDEX = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")


def worker_build_options(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the options of ``kiln build`` on the workers."""
    return () if options.container is None else ("--container", options.container)


def worker_job_options(options: argparse.Namespace, run_config: FleetRunConfig | None = None) -> tuple[str, ...]:
    """Return the options of ``kiln build`` on the workers, with those that have no part in the packages."""
    return (
        *worker_build_options(options),
        *executor_job_options(options, run_config),
    )


def artifact_layout(feedstock: Feedstock) -> ArtifactLayout:
    """Return the layout of a feedstock's artifacts."""
    from kiln.state.store.layout import ArtifactLayout

    return ArtifactLayout.for_feedstock(feedstock)


def run_folder(feedstock: Feedstock, run: str) -> Path:
    """Return the folder of a fleet run."""
    return artifact_layout(feedstock).safe_path("fleet", run).absolute()


def playbook_site(
    options: argparse.Namespace,
    feedstock: Feedstock,
    run: str,
    provider: str,
    *,
    run_config: FleetRunConfig | None = None,
) -> PlaybookSite:
    """Return the site of a run, after creating the fleet's environment if it is missing."""
    from kiln.base import bootstrap
    from kiln.build.bazel import events
    from kiln.fleet import run as fleet_run
    from kiln.fleet.ansible.playbooks import PlaybookSite

    python = bootstrap.ensure_fleet_environment(PACKAGE_ROOT, say=lambda line: print(line, file=sys.stderr))
    folder = run_folder(feedstock, run)
    environment = {
        **playbook_environment(os.environ, python),
        **recorded_region_variables(options, folder, run, provider),
    }
    builds_alone = run_config is not None and run_config.pool is None
    job_secrets = executor_secret_variables(options, os.environ) if builds_alone else {}
    variables: dict[str, Any] = {
        "kiln_run": run,
        "kiln_owner": run,  # it is random, and so unique
        "kiln_provider": provider,
        "kiln_run_dir": str(folder),
        "kiln_project": str(PACKAGE_ROOT),
        "kiln_feedstock": str(feedstock.root.absolute()),
        "kiln_pip": {
            name: f"{{{{ lookup('ansible.builtin.env', '{name}') }}}}" for name in pip_index_variables(environment)
        },
    }
    if run_config is not None:
        if run_config.previous_run is None:
            record_region(options, folder, provider)
        variables |= {
            "kiln_inputs": fleet_run.inputs_tag(run_config.key),
            "kiln_lease": int(run_config.lease),
            "kiln_lifetime": int(run_config.lifetime),
            "kiln_images": [parsed_image_option(text) for text in options.image],
            "kiln_environment": worker_build_variables(feedstock),
        }
        if run_config.pool is not None:
            variables["kiln_pool_properties"] = pool_platform_properties(feedstock, options)
    return PlaybookSite(
        folder=folder,
        playbooks=ANSIBLE,
        python=python,
        variables=variables,
        variable_files=tuple(path.absolute() for path in options.vars),
        environment=environment,
        secrets=(
            *masking.secrets_of_environment(environment),
            *events.with_secrets_inside_credentials(job_secrets).values(),
        ),
        options=worker_job_options(options, run_config) if run_config is not None else (),
        job_secrets=job_secrets,
        poll=duration_seconds(options.poll) if run_config is not None else 5.0,
    )


def pip_index_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of pip's index that hold for a worker, too: no folder of this computer."""
    return {name: environment[name] for name in INDEX if environment.get(name) and "file:" not in environment[name]}


def requested_region_variables(options: argparse.Namespace, provider: str) -> dict[str, str]:
    """Return the region and cloud of a provider that are named now, as variables of the environment."""
    names = {name: os.environ[name] for name in REGION_NAMES.get(provider, ()) if os.environ.get(name)}
    aws_region = playbook_variable_text("kiln_aws_region", options.vars) if provider == "aws" else ""
    return {**names, AWS_REGION: aws_region} if aws_region else names


def record_region(options: argparse.Namespace, folder: Path, provider: str) -> None:
    """Store the region and cloud in which a run begins, in its folder.

    It is resumed and torn down there, whatever is set later: asked in another region, a provider lists none of the
    run's workers, which would count as gone.
    """
    from kiln.base import files as base_files

    if provider in REGION_NAMES:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        default = {AWS_REGION: DEFAULT_REGION} if provider == "aws" else {}
        place = {**default, **requested_region_variables(options, provider)}
        base_files.write_text(folder / REGION_FILE, json.dumps({"provider": provider, "place": place}))


def recorded_region_variables(options: argparse.Namespace, folder: Path, run: str, provider: str) -> dict[str, str]:
    """Return the variables of the region in which a run began; those of an earlier kiln are unknown.

    Raises:
        UsageError: when another one is named now.
    """
    from kiln.base.serialization import read_json_object

    data = read_json_object(folder / REGION_FILE)
    stored = data.get("place") if data.get("provider") == provider else None
    if not isinstance(stored, dict):
        return {}
    known = {name: str(text) for name, text in stored.items() if name in REGION_NAMES.get(provider, ())}
    for name, text in requested_region_variables(options, provider).items():
        if known.get(name, text) != text:
            raise UsageError(
                f"the fleet run {run} is in {known[name]}, and {name} is {text}",
                why="its workers would not be found there, and count as gone",
                hint=f"set {name}={known[name]}, then run this command again",
            )
    return known


def worker_build_variables(feedstock: Feedstock) -> dict[str, str]:
    """Return the variables that are passed to builds on workers: conda-forge's, without secrets."""
    from kiln.build.executor import environment as executor_environment

    return {
        name: text
        for name, text in conda_forge_build_variables(feedstock, os.environ).items()
        if name in executor_environment.CONTRACT
    }


def playbook_environment(environment: Mapping[str, str], python: Path) -> dict[str, str]:
    """Return the environment of the playbooks: proxies, the provider's variables, a user's name, and a UTF-8 locale."""
    # Ansible asks for the user's name when it starts, and fails without one; not every user has a line in /etc/passwd.
    cloud = {name: text for name, text in environment.items() if CLOUD.match(name) or name == "LOGNAME"}
    path = os.pathsep.join((str(python.parent), environment.get("PATH", os.defpath)))
    return {**container_client_variables(environment), **cloud, "PATH": path, "LC_ALL": "C.UTF-8"}


def provider_variables_without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the providers' modules, without secrets."""
    return {
        name: text
        for name, text in environment.items()
        if CLOUD.match(name) and not masking.is_secret_variable(name) and not name.startswith("PIP_")
    }


def parsed_image_option(text: str) -> dict[str, str]:
    """Return an image that is copied to the workers.

    Raises:
        UsageError: when it is not FILE=TAG, or the file does not exist.
    """
    file, _, tag = text.rpartition("=")
    if not file or not tag or not Path(file).is_file():
        raise UsageError(
            f"invalid image {text!r}", hint="--image FILE=TAG, with the file that kiln image base has written"
        )
    return {"archive": str(Path(file).absolute()), "tag": tag}


def playbook_variable_text(name: str, files: Iterable[Path]) -> str:
    """Return a text of the playbooks from files of variables; see `playbook_variable_value`."""
    return str(playbook_variable_value(name, files) or "")


def playbook_variable_value(name: str, files: Iterable[Path]) -> Any:
    """Return a variable of the playbooks from files of variables; an encrypted file or value is passed over."""
    import yaml

    class AnsibleTagLoader(yaml.SafeLoader):
        """Reads values with Ansible's tags, such as ``!vault``, as None."""

    AnsibleTagLoader.add_multi_constructor("!", lambda *_: None)
    value = None
    for path in files:
        try:
            data = yaml.load(path.read_text(encoding="utf-8"), AnsibleTagLoader)  # noqa: S506 - it is safe_load's
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise UsageError(f"{path} cannot be read", why=str(error)) from error
        value = (data.get(name) or value) if isinstance(data, dict) else value
    return value


DEFAULT_REGION = "us-east-1"  # that of the role kiln_aws
