"""The site of a fleet run: its folder, and the variables and environment of its playbooks."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import masking
from kiln.cli import fleet_remote_executor_options
from kiln.cli.environment_filters import conda_forge_build_variables, container_client_variables
from kiln.console.text import duration_seconds
from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from kiln.fleet.fleet_run_settings import FleetRunConfig
    from kiln.fleet.playbook_runner import PlaybookSite
    from kiln.model.feedstock import Feedstock
    from kiln.store.layout import ArtifactLayout

PACKAGE_ROOT = Path(__file__).parents[2]
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
        *fleet_remote_executor_options.executor_job_options(options, run_config),
    )


def artifact_layout(feedstock: Feedstock) -> ArtifactLayout:
    """Return the layout of a feedstock's artifacts."""
    from kiln.store.layout import ArtifactLayout

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
    from kiln import bootstrap
    from kiln.fleet import unrecorded_run_recovery
    from kiln.fleet.playbook_runner import PlaybookSite
    from kiln.store import bazel_variables_of_compile_scripts

    python = bootstrap.ensure_fleet_environment(PACKAGE_ROOT, say=lambda line: print(line, file=sys.stderr))
    folder = run_folder(feedstock, run)
    environment = {
        **playbook_environment(os.environ, python),
        **recorded_region_variables(options, folder, run, provider),
    }
    builds_alone = run_config is not None and run_config.pool is None
    job_secrets = fleet_remote_executor_options.executor_secret_variables(options, os.environ) if builds_alone else {}
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
            "kiln_inputs": unrecorded_run_recovery.inputs_tag(run_config.key),
            "kiln_lease": int(run_config.lease),
            "kiln_lifetime": int(run_config.lifetime),
            "kiln_images": [parsed_image_option(text) for text in options.image],
            "kiln_environment": worker_build_variables(feedstock),
        }
        if run_config.pool is not None:
            variables["kiln_pool_properties"] = fleet_remote_executor_options.pool_platform_properties(
                feedstock, options
            )
    return PlaybookSite(
        folder=folder,
        playbooks=ANSIBLE,
        python=python,
        variables=variables,
        variable_files=tuple(path.absolute() for path in options.vars),
        environment=environment,
        secrets=(
            *masking.secrets_of_environment(environment),
            *bazel_variables_of_compile_scripts.with_secrets_inside_credentials(job_secrets).values(),
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
    from kiln import files
    from kiln.cli.fleet_prices import DEFAULT_REGION

    if provider in REGION_NAMES:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        default = {AWS_REGION: DEFAULT_REGION} if provider == "aws" else {}
        place = {**default, **requested_region_variables(options, provider)}
        files.write_text(folder / REGION_FILE, json.dumps({"provider": provider, "place": place}))


def recorded_region_variables(options: argparse.Namespace, folder: Path, run: str, provider: str) -> dict[str, str]:
    """Return the variables of the region in which a run began; those of an earlier kiln are unknown.

    Raises:
        UsageError: when another one is named now.
    """
    from kiln.fleet.playbook_runner import read_json_object

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
    from kiln.executor import conda_forge_variables_and_paths

    return {
        name: text
        for name, text in conda_forge_build_variables(feedstock, os.environ).items()
        if name in conda_forge_variables_and_paths.CONTRACT
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
