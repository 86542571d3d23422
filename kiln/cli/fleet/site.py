"""The site of a fleet run: its folder, its playbooks' variables, its remote executor, and the account's quotas."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import bootstrap, masking
from kiln.base import files as base_files
from kiln.base.errors import UsageError
from kiln.base.files import text_or_empty
from kiln.base.serialization import read_json_object
from kiln.base.system.machine import PACKAGE_ROOT
from kiln.build.bazel import events
from kiln.cli.options import conda_forge_build_variables, container_client_variables
from kiln.feedstock import config_file
from kiln.fleet import run as fleet_run
from kiln.fleet.ansible.playbooks import PlaybookRunner, PlaybookSite
from kiln.fleet.options import ANSIBLE
from kiln.fleet.options import AWS_REGION as DEFAULT_REGION
from kiln.fleet.plan.plan import Quota
from kiln.fleet.plan.run import priced_controller_type
from kiln.recipe import render
from kiln.state.store.layout import ArtifactLayout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.build.job.job import RunOptions
    from kiln.fleet.options import FleetOptions
    from kiln.fleet.run_config import FleetRunConfig
    from kiln.recipe.feedstock import Feedstock

# What a build needs is imported where a run begins: a status and a log would wait for it.

# Environment variables of the providers' modules; only the playbooks' processes get them.
CLOUD = re.compile(r"AWS_|OS_|ANSIBLE_VAULT_|PIP_|KILN_FLEET_")
AWS_REGION = "AWS_REGION"
# Variables of the environment that say which part of which cloud is asked.
REGION_NAMES = {"aws": (AWS_REGION,), "openstack": ("OS_AUTH_URL", "OS_CLOUD", "OS_REGION_NAME")}
REGION_FILE = "region.json"
INDEX = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")


def executor_secret_variables(options: FleetOptions) -> dict[str, str]:
    """Return the secret variables of each build: the executor's address, and its credentials' content."""
    from kiln.build.job import job

    return {} if options.remote_executor is None else job.compile_secrets(_executor_run_options(options, ()))


def require_recipe_support(feedstock: Feedstock, configs: tuple[str, ...], options: FleetOptions) -> None:
    """Refuse an executor that a feedstock's recipe does not use, before workers are paid for."""
    from kiln.run import checks

    if options.remote_executor is not None:
        renderings = (render.render(feedstock, config) for config in config_file.read_configs(feedstock, configs))
        checks.refuse_ineffective_remote_options(feedstock, renderings, _executor_run_options(options, configs))


def _executor_run_options(options: FleetOptions, configs: tuple[str, ...]) -> RunOptions:
    from kiln.build.job.job import RunOptions

    return RunOptions(
        configs=configs,
        command="",
        remote_executor=options.remote_executor,
        remote_credentials=options.remote_credentials,
    )


def artifact_layout(feedstock: Feedstock) -> ArtifactLayout:
    """Return the layout of a feedstock's artifacts."""
    return ArtifactLayout.for_feedstock(feedstock)


def run_folder(feedstock: Feedstock, run: str) -> Path:
    """Return the folder of a fleet run."""
    return artifact_layout(feedstock).safe_path("fleet", run).absolute()


def fleet_python() -> Path:
    """Return the Python of the fleet's environment, which is made if it is missing."""
    return bootstrap.ensure_fleet_environment(PACKAGE_ROOT, say=lambda line: print(line, file=sys.stderr))


def playbook_site(
    options: FleetOptions,
    feedstock: Feedstock,
    run: str,
    provider: str,
    *,
    run_config: FleetRunConfig | None = None,
    builds: bool = True,
) -> PlaybookSite:
    """Return the site of a run, after creating the fleet's environment if it is missing.

    The workers of one that tests, and builds nothing, need neither container engine nor images.
    """
    python = fleet_python()
    folder = run_folder(feedstock, run)
    environment = {
        **playbook_environment(options.environment, python),
        **_recorded_region_variables(options, folder, run, provider),
    }
    job_secrets = {} if run_config is None or not builds else executor_secret_variables(options)
    job_options = () if run_config is None else options.job_options if builds else ("--container", "none")
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
            "kiln_lease": int(run_config.options.lease),
            "kiln_lifetime": int(run_config.lifetime),
            "kiln_environment": worker_build_variables(feedstock, options.environment),
        }
    if run_config is not None and builds:
        variables |= {"kiln_inputs": fleet_run.inputs_tag(run_config.key), "kiln_images": list(options.images)}
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
        options=job_options,
        job_secrets=job_secrets,
        poll=5.0 if run_config is None else options.poll,
    )


def pip_index_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of pip's index that hold for a worker, too: no folder of this computer."""
    return {name: environment[name] for name in INDEX if environment.get(name) and "file:" not in environment[name]}


def _requested_region_variables(options: FleetOptions, provider: str) -> dict[str, str]:
    """Return the region and cloud of a provider that are named now, as variables of the environment."""
    environment = options.environment
    names = {name: environment[name] for name in REGION_NAMES.get(provider, ()) if environment.get(name)}
    aws_region = options.variable_text("kiln_aws_region") if provider == "aws" else ""
    return {**names, AWS_REGION: aws_region} if aws_region else names


def record_region(options: FleetOptions, folder: Path, provider: str) -> None:
    """Store the region and cloud in which a run begins, in its folder.

    It is resumed and torn down there, whatever is set later: asked in another region, a provider lists none of the
    run's workers, which would count as gone.
    """
    if provider in REGION_NAMES:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        default = {AWS_REGION: DEFAULT_REGION} if provider == "aws" else {}
        place = {**default, **_requested_region_variables(options, provider)}
        base_files.write_text(folder / REGION_FILE, json.dumps({"provider": provider, "place": place}))


def _recorded_region_variables(options: FleetOptions, folder: Path, run: str, provider: str) -> dict[str, str]:
    """Return the variables of the region in which a run began; empty where they are unknown."""
    data = read_json_object(folder / REGION_FILE)
    stored = data.get("place") if data.get("provider") == provider else None
    if not isinstance(stored, dict):
        return {}
    known = {name: str(text) for name, text in stored.items() if name in REGION_NAMES.get(provider, ())}
    for name, text in _requested_region_variables(options, provider).items():
        if known.get(name, text) != text:
            raise UsageError(
                f"the fleet run {run} is in {known[name]}, and {name} is {text}",
                why="its workers would not be found there, and count as gone",
                hint=f"set {name}={known[name]}, then run this command again",
            )
    return known


def worker_build_variables(feedstock: Feedstock, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are passed to builds on workers: conda-forge's, without secrets."""
    from kiln.build.executor import environment as executor_environment

    return {
        name: text
        for name, text in conda_forge_build_variables(feedstock, environment).items()
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


QUOTA_SECONDS = 30.0  # for the answer, Ansible's own start included
# Variables that name credentials, and the files that have them otherwise, with the variables that name these. Those of
# a machine, such as an instance's role, are not looked for: the search alone takes seconds without any.
CREDENTIALS = {
    "aws": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    "openstack": ("OS_CLOUD", "OS_AUTH_URL"),
}
FILES = {"aws": {"AWS_SHARED_CREDENTIALS_FILE": ".aws/credentials", "AWS_CONFIG_FILE": ".aws/config"}}
# The keys of a profile from which botocore has credentials (botocore/credentials.py); a region alone does not count.
PROFILE = re.compile(
    r"^\s*(aws_access_key_id|role_arn|web_identity_token_file|credential_process|sso_start_url|login_session)\s*=",
    re.MULTILINE,
)


def has_credentials(provider: str, environment: Mapping[str, str]) -> bool:
    """Return whether the environment, or a file of the user's, names credentials of a provider that has quotas."""
    home = Path(environment.get("HOME", "/"))
    files = (home / environment.get(name, path) for name, path in FILES.get(provider, {}).items())
    return any(environment.get(name) for name in CREDENTIALS.get(provider, ())) or any(
        PROFILE.search(text_or_empty(file)) for file in files
    )


def account_quotas(options: FleetOptions, feedstock: Feedstock) -> tuple[Quota, ...]:
    """Return the quotas of the account; none without credentials, with ``--offline``, or if the provider gives none.

    The controller that ``--detach`` provisions has its part of them. A plan never fails for lack of them, and makes no
    environment to ask.
    """
    if options.offline or not has_credentials(options.provider, options.environment):
        return ()
    if not bootstrap.has_fleet_environment(PACKAGE_ROOT):
        print("quotas are not known: the first 'kiln fleet run' makes the environment to ask for them", file=sys.stderr)
        return ()
    site = playbook_site(options, feedstock, "quota", options.provider)
    site.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    playbooks = PlaybookRunner(site)
    timer = threading.Timer(QUOTA_SECONDS, playbooks.stop_all_playbooks)
    timer.start()
    try:
        result = playbooks.run_playbook("quota.yml")
    finally:
        timer.cancel()
    if not result.ok or result.answer is None:
        reason = result.failure_reason("localhost").splitlines()[0][:200]
        print(f"quotas are not known: {reason}; see {site.folder / 'playbooks.log'}", file=sys.stderr)
        return ()
    controller = priced_controller_type(options)
    return tuple(Quota.from_provider_answer(row, controller) for row in result.answer["quotas"])
