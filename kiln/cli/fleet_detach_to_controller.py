"""``kiln fleet run --detach``: start a run on a controller of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
import sys
import time
from typing import TYPE_CHECKING, Any

from kiln.cli import fleet_remote_executor_options
from kiln.cli.commands_in_hints import make_pasteable
from kiln.cli.environment_filters import container_client_variables
from kiln.cli.fleet_controller_type_and_charge import (
    CONTROLLER_TYPE,
    KEEP,
    controller_price_variable,
    controller_type_row,
)
from kiln.cli.fleet_planning import priced_controller_type
from kiln.cli.fleet_prices import user_price_table_path
from kiln.cli.fleet_run_folder_and_variables import (
    ANSIBLE,
    PACKAGE_ROOT,
    pip_index_variables,
    playbook_environment,
    playbook_site,
    record_region,
    run_folder,
    worker_build_options,
    worker_build_variables,
)
from kiln.cli.fleet_run_terms_from_options import CLOUDS
from kiln.console.text import duration_seconds
from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kiln.fleet.detached.settings_sent_to_controller import ControllerSettings
    from kiln.fleet.plan import FleetPlan
    from kiln.fleet.playbook_runner import PlaybookSite
    from kiln.model.feedstock import Feedstock
    from kiln.store.configs_built_on_workers import RemoteConfig

PROVIDERS = ("aws", "openstack", "static")  # whose workers another machine can reach
DAY = 86400
LONGEST = 14 * DAY  # seconds that a run may take which has no time limit
TIMES = ("lease", "poll", "capacity_timeout", "unreachable_timeout")
ID = "KILN_FLEET_ID"  # the variable by which a controller knows the name of its run
# Options that stay here, or whose values are sent in another way.
HERE = frozenset(
    {
        *("help", "configs", "filter", "all", "failed", "rebuild", "json", "vars", "prices", "image"),
        *("detach", "controller", "controller_type", "keep"),
        *("remote_executor", "remote_credentials"),
    }
)


def new_run_id(environment: Mapping[str, str]) -> str:
    """Return the name of a new run: a random one, or the one that a controller was given."""
    name = environment.get(ID, "")
    return name if re.fullmatch(r"[0-9a-f]{8}", name) else secrets.token_hex(4)


def check_options(options: argparse.Namespace) -> None:
    """Check the options of a run for contradictions with ``--detach``.

    Raises:
        UsageError: when there is one.
    """
    if not getattr(options, "detach", False):
        for name in ("controller", "controller_type", "keep"):
            if getattr(options, name, None) is not None:
                raise UsageError(f"--{name.replace('_', '-')} requires --detach")
        return
    if options.provider not in PROVIDERS:
        raise UsageError(
            f"--detach requires --provider {', '.join(PROVIDERS[:-1])} or {PROVIDERS[-1]}",
            why="jobs of Slurm wait for nobody: nohup is enough on a login node"
            if options.provider == "slurm"
            else "workers of this computer end with it",
        )
    if options.provider == "static" and options.controller is None:
        raise UsageError("--detach with --provider static requires --controller HOST", hint="a host that ssh reaches")
    if getattr(options, "image", None):
        raise UsageError("--image cannot be used with --detach", hint="have the workers pull the image")
    for name in TIMES:  # which only the run itself would read, on its controller
        duration_seconds(getattr(options, name, None) or "0")


def check_credential_expiry(options: argparse.Namespace, plan: FleetPlan, *, begins: bool) -> None:
    """Compare the expiry of the credentials with the end of the plan of a detached run, which ``begins`` or does not.

    Raises:
        UsageError: when a run begins whose credentials expire before.
    """
    from kiln.fleet.assumptions import Assumptions
    from kiln.fleet.detached import credential_expiry

    startup, now = Assumptions.read().startup, time.time()  # of the controller; then come the workers
    limit = None if options.time_limit is None else now + startup + duration_seconds(options.time_limit)
    tests = 0.0 if plan.bounds.tests is None else plan.bounds.tests.seconds
    end = now + startup + plan.selection.seconds + tests
    credential_expiry.require_lasting_credentials(
        options.provider, os.environ, begin=now, end=end, limit=limit, begins=begins
    )


def start_controller_run(options: argparse.Namespace, feedstock: Feedstock, configs: Sequence[RemoteConfig]) -> int:
    """Start a run on a controller of its own; return as soon as it runs there."""
    from kiln import signals
    from kiln.fleet import run_and_removal as fleet
    from kiln.fleet.detached import attach_key
    from kiln.fleet.detached import controller_start as starting
    from kiln.fleet.detached.attach_key import ConfigInputHashes

    run = secrets.token_hex(4)
    private, public = starting.create_ssh_key_pair(
        run_folder(feedstock, run), run, container_client_variables(os.environ)
    )
    settings = controller_settings(options, feedstock, [config.config for config in configs], run=run, key=public)
    inputs = {
        config.config: ConfigInputHashes(group=config.group, shared=config.inputs.shared, key=config.inputs.key)
        for config in configs
    }
    site, kind = controller_site_and_type(options, feedstock, run)
    path = run_folder(feedstock, run) / attach_key.NAME
    with signals.termination_as_interrupt():
        try:
            starting.provision_controller(
                site, run, kind=kind, say=lambda step: print(f"fleet run {run}: {step}", file=sys.stderr)
            )
            key = starting.run_key_of_prepared_controller(site, run, private, inputs, worker_build_options(options))
            key.write_key_file(path)
            starting.start_run_on_controller(site, settings)
        except BaseException:
            print(f"fleet run {run}: removing its controller", file=sys.stderr)
            remove_controller(site, run)
            if path.exists() and options.provider in CLOUDS:  # the run may have begun, and requested workers
                fleet.tear_down_run(playbook_site(options, feedstock, run, options.provider), run)
            attach_key.remove_run_key(run_folder(feedstock, run))
            raise
    print(f"fleet run {run} continues on {key.address}; its key is {path}", file=sys.stderr)
    print(make_pasteable(f"kiln fleet attach {run} shows it", feedstock.root), file=sys.stderr)
    print(f"on another computer, with that file: kiln fleet attach --key {attach_key.NAME}", file=sys.stderr)
    if options.json:
        print(json.dumps({"run": run, "address": key.address, "port": key.port, "key": str(path)}))
    return 0


def controller_settings(
    options: argparse.Namespace, feedstock: Feedstock, configs: Sequence[str], *, run: str, key: str
) -> ControllerSettings:
    """Return what the controller gets: arguments, variables and files; no token for publishing among them."""
    from kiln.fleet.detached import decrypted_playbook_variables, settings_sent_to_controller
    from kiln.fleet.detached.settings_sent_to_controller import HOME, ControllerSettings

    variables, certificates = settings_sent_to_controller.credentials_to_send(options.provider, os.environ)
    names = decrypted_playbook_variables.variables_read_by_playbooks(ANSIBLE, options.provider)
    vault = decrypted_playbook_variables.VaultDecryption(ansible_vault_and_environment)
    host = existing_controller_host(options) if options.controller is not None else {}
    place = (str(host["address"]), int(host.get("port", 22))) if host else None
    texts = decrypted_playbook_variables.variable_files_to_send(options.vars, names, vault, controller=place)
    index = pip_index_variables(os.environ)
    # Without --rebuild, which is decided here: a run that is resumed there builds nothing that it has collected before.
    arguments = ["fleet", "run", *configs, *controller_run_options(options), "--json"]
    arguments += [word for name in texts if name.startswith("vars/") for word in ("--vars", f"{HOME}/{name}")]
    prices = options.prices or user_price_table_path(os.environ)
    if prices.is_file():
        texts["prices.csv"] = settings_sent_to_controller.read_file_to_send(prices)
        arguments += ["--prices", f"{HOME}/prices.csv"]
    sizes = feedstock.root / "fleet-sizes.yml"
    kind = priced_controller_type(options)
    price = {} if kind is None else controller_price_variable(kind, time.time())
    executor = fleet_remote_executor_options.executor_secret_variables(options, os.environ)
    return ControllerSettings(
        run=run,
        arguments=tuple(arguments),
        key=key,
        keep=duration_seconds(options.keep or KEEP),
        environment={**worker_build_variables(feedstock), **index, **variables, **price, **executor, ID: run},
        files={**texts, **certificates},
        feedstock={"fleet-sizes.yml": settings_sent_to_controller.read_file_to_send(sizes)} if sizes.is_file() else {},
    )


def ansible_vault_and_environment() -> tuple[Path, Mapping[str, str]]:
    """Return the program that decrypts variables, and its environment, in which it finds the password."""
    from kiln import bootstrap

    python = bootstrap.ensure_fleet_environment(PACKAGE_ROOT, say=lambda line: print(line, file=sys.stderr))
    return python.with_name("ansible-vault"), playbook_environment(os.environ, python)


def controller_run_options(options: argparse.Namespace) -> list[str]:
    """Return the options of this command line that the controller's own run gets."""
    words: list[str] = []
    for action in options.parser._actions:  # noqa: SLF001 - argparse has no public list of a parser's options
        value = getattr(options, action.dest, action.default)
        if action.dest in HERE or value == action.default or not action.option_strings:
            continue
        option = action.option_strings[-1]
        if value is True:
            words.append(option)
        else:
            words += [f"{option}={item}" for item in (value if isinstance(value, list) else [value])]
    return words


def controller_site_and_type(options: argparse.Namespace, feedstock: Feedstock, run: str) -> tuple[PlaybookSite, str]:
    """Return the site and the machine type of a controller: the provider's of the workers, or an existing machine."""
    from kiln import files
    from kiln.fleet.detached import controller_start as starting

    name = starting.controller_run_name(run)
    provider = "static" if options.controller is not None else options.provider
    site = playbook_site(options, feedstock, name, provider)
    record_region(options, run_folder(feedstock, name), provider)
    record_region(options, run_folder(feedstock, run), options.provider)
    life = LONGEST if options.time_limit is None else duration_seconds(options.time_limit) + DAY
    own: dict[str, Any] = {
        "kiln_lease": 5400,
        "kiln_lifetime": int(life + duration_seconds(options.keep or KEEP)),
        "kiln_build_options": [],
        "kiln_environment": {},
    }
    if options.controller is None:
        if options.controller_type is None:
            own["kiln_machine_types"] = [controller_type_row(provider)]
        # The last file prevails: the user's have the lifetime, the lease and the machine types of the workers.
        last = site.folder / "controller.json"
        site.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.write_text(last, json.dumps(own))
        # Whoever has the run's key can attach from anywhere: ssh accepts nothing but keys there.
        variables = {**site.variables, **own, "kiln_controller": "0.0.0.0/0"}
        site = dataclasses.replace(site, variables=variables, variable_files=(*site.variable_files, last))
        return site, options.controller_type or CONTROLLER_TYPE
    host = existing_controller_host(options)
    variables = {**site.variables, **own}
    variables |= {"kiln_ssh_options": host.pop("ssh_options", {}), "kiln_static_hosts": [host]}
    return dataclasses.replace(site, variables=variables, variable_files=()), "static"


def existing_controller_host(options: argparse.Namespace) -> dict[str, Any]:
    """Return the host of ``--controller``: one of kiln_static_hosts in a file of variables, else what ssh reaches."""
    from kiln import plain_yaml_loading
    from kiln.fleet.detached import decrypted_playbook_variables, settings_sent_to_controller, user_ssh_host_lookup

    for path in options.vars:
        text = settings_sent_to_controller.read_file_to_send(path)
        data = {} if decrypted_playbook_variables.VAULT.search(text) else plain_yaml_loading.load(text)
        for host in (data.get("kiln_static_hosts") or ()) if isinstance(data, dict) else ():
            if isinstance(host, dict) and host.get("address") == options.controller:
                common = data.get("kiln_ssh_options")
                return {**host, **({"ssh_options": common} if common else {})}
    return user_ssh_host_lookup.static_host_from_user_ssh(options.controller, container_client_variables(os.environ))


def remove_controller(site: PlaybookSite, run: str) -> None:
    """Terminate, or release, the machine of a controller and what else it has at its provider."""
    from kiln import files
    from kiln.fleet import run_and_removal as fleet
    from kiln.fleet.detached import controller_start as starting

    fleet.tear_down_run(site, starting.controller_run_name(run))
    files.remove(site.folder)
