"""Detached runs: started on a controller of their own, followed, collected and stopped from anywhere."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import sys
import time
from typing import TYPE_CHECKING, Any

from kiln.base.errors import (
    AlreadyRunning,
    BrokenPackage,
    FeedstockNotFound,
    Interrupted,
    KilnError,
    MachinesUnknown,
    UsageError,
)
from kiln.base.patterns import escaped_for_terminal
from kiln.cli.fleet.options import CHARGE, RUN_ID
from kiln.cli.fleet.site import (
    artifact_layout,
    executor_secret_variables,
    fleet_python,
    pip_index_variables,
    playbook_environment,
    playbook_site,
    record_region,
    run_folder,
    worker_build_variables,
)
from kiln.cli.main import make_pasteable
from kiln.cli.options import container_client_variables
from kiln.fleet.detached import controller, credentials
from kiln.fleet.detached.controller import HOME, ConfigInputHashes, ControllerSettings
from kiln.fleet.options import ANSIBLE, CLOUDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from kiln.fleet.ansible.playbooks import PlaybookSite
    from kiln.fleet.detached.controller import ControllerClient, RunKey
    from kiln.fleet.options import FleetOptions
    from kiln.fleet.plan.plan import FleetPlan
    from kiln.recipe.feedstock import Feedstock
    from kiln.state.store.cache import RemoteConfig


DAY = 86400
LONGEST = 14 * DAY  # seconds that a run may take which has no time limit


def check_credential_expiry(options: FleetOptions, plan: FleetPlan, *, begins: bool) -> None:
    """Compare the credentials' expiry with the end of the plan of a detached run, which ``begins`` or does not."""
    from kiln.fleet.plan.plan import Assumptions
    from kiln.run.simulation import DEFAULT

    startup, now = Assumptions.read().startup, time.time()  # of the controller; then come the workers
    limit = None if options.time_limit is None else now + startup + options.time_limit
    tests = 0.0 if plan.bounds.tests is None else plan.bounds.tests.seconds
    is_assumed = any(job.source == DEFAULT for job in plan.estimates)  # which refuses no run
    end = now + startup + (0.0 if is_assumed else plan.selection.seconds + tests)
    credentials.require_lasting_credentials(
        options.provider, options.environment, begin=now, end=end, limit=limit, begins=begins
    )


def start_controller_run(options: FleetOptions, feedstock: Feedstock, configs: Sequence[RemoteConfig]) -> int:
    """Start a run on a controller of its own; return as soon as it runs there."""
    from kiln.base import process_table
    from kiln.fleet import run as fleet_run

    run = secrets.token_hex(4)
    private, public = controller.create_ssh_key_pair(run, container_client_variables(options.environment))
    settings = controller_settings(options, feedstock, [config.config for config in configs], run=run, key=public)
    inputs = {
        config.config: ConfigInputHashes(group=config.group, shared=config.inputs.shared, key=config.inputs.key)
        for config in configs
    }
    site, kind = controller_site_and_type(options, feedstock, run)
    path = run_folder(feedstock, run) / controller.NAME
    with process_table.termination_as_interrupt():
        try:
            controller.provision_controller(
                site, run, kind=kind, say=lambda step: print(f"fleet run {run}: {step}", file=sys.stderr)
            )
            key = controller.run_key_of_prepared_controller(site, run, private, inputs, options.build_options)
            key.write_key_file(path)
            controller.start_run_on_controller(site, settings)
        except BaseException:
            print(f"fleet run {run}: removing its controller", file=sys.stderr)
            remove_controller(site, run)
            if path.exists() and options.provider in CLOUDS:  # the run may have begun, and requested workers
                fleet_run.tear_down_run(playbook_site(options, feedstock, run, options.provider), run)
            controller.remove_run_key(run_folder(feedstock, run))
            raise
    print(f"fleet run {run} continues on {key.address}; its key is {path}", file=sys.stderr)
    print(make_pasteable(f"kiln fleet attach {run} shows it", feedstock.root), file=sys.stderr)
    print(f"on another computer, with that file: kiln fleet attach --key {controller.NAME}", file=sys.stderr)
    if options.json:
        print(json.dumps({"run": run, "address": key.address, "port": key.port, "key": str(path)}))
    return 0


def controller_settings(
    options: FleetOptions, feedstock: Feedstock, configs: Sequence[str], *, run: str, key: str
) -> ControllerSettings:
    """Return what the controller gets: arguments, variables and files; no token for publishing among them."""
    from kiln.fleet.plan.run import priced_controller_type

    variables, certificates = controller.credentials_to_send(options.provider, options.environment)
    names = credentials.variables_read_by_playbooks(ANSIBLE, options.provider)

    def ansible_vault_and_environment() -> tuple[Path, Mapping[str, str]]:
        """Return the program that decrypts variables, and its environment, in which it finds the password."""
        python = fleet_python()
        return python.with_name("ansible-vault"), playbook_environment(options.environment, python)

    vault = credentials.VaultDecryption(ansible_vault_and_environment)
    host = existing_controller_host(options, options.controller) if options.controller is not None else {}
    place = (str(host["address"]), int(host.get("port", 22))) if host else None
    texts = credentials.variable_files_to_send(options.vars, names, vault, controller=place)
    index = pip_index_variables(options.environment)
    # Without --rebuild, which is decided here: a run that is resumed there builds nothing that it has collected before.
    arguments = ["fleet", "run", *configs, *options.controller_words, "--json"]
    arguments += [word for name in texts if name.startswith("vars/") for word in ("--vars", f"{HOME}/{name}")]
    if options.prices is not None:
        texts["prices.csv"] = controller.read_file_to_send(options.prices)
        arguments += ["--prices", f"{HOME}/prices.csv"]
    sizes = feedstock.root / "fleet-sizes.yml"
    kind = priced_controller_type(options)
    price = {}
    if kind is not None and kind.is_priced and (hourly := kind.hourly_price(spot=False)):
        price = {CHARGE: " ".join((repr(hourly), repr(kind.billed), repr(time.time()), kind.currency, kind.name))}
    variables |= {**index, **price, **executor_secret_variables(options), RUN_ID: run}
    return ControllerSettings(
        run=run,
        arguments=tuple(arguments),
        key=key,
        keep=options.keep,
        environment={**worker_build_variables(feedstock, options.environment), **variables},
        files={**texts, **certificates},
        feedstock={"fleet-sizes.yml": controller.read_file_to_send(sizes)} if sizes.is_file() else {},
    )


def controller_site_and_type(options: FleetOptions, feedstock: Feedstock, run: str) -> tuple[PlaybookSite, str]:
    """Return the site and the machine type of a controller: the provider's of the workers, or an existing machine."""
    from kiln.base import files
    from kiln.fleet.plan.run import CONTROLLER_TYPE, controller_type_row

    name = controller.controller_run_name(run)
    provider = "static" if options.controller is not None else options.provider
    site = playbook_site(options, feedstock, name, provider)
    record_region(options, run_folder(feedstock, name), provider)
    record_region(options, run_folder(feedstock, run), options.provider)
    life = LONGEST if options.time_limit is None else options.time_limit + DAY
    own: dict[str, Any] = {
        "kiln_lease": 5400,
        "kiln_lifetime": int(life + options.keep),
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
    host = existing_controller_host(options, options.controller)
    variables = {**site.variables, **own}
    variables |= {"kiln_ssh_options": host.pop("ssh_options", {}), "kiln_static_hosts": [host]}
    return dataclasses.replace(site, variables=variables, variable_files=()), "static"


def existing_controller_host(options: FleetOptions, address: str) -> dict[str, Any]:
    """Return the host of ``--controller``: one of kiln_static_hosts in a file of variables, else what ssh reaches."""
    from kiln.base import yaml

    for path in options.vars:
        text = controller.read_file_to_send(path)
        data = {} if credentials.VAULT.search(text) else yaml.load(text)
        for host in (data.get("kiln_static_hosts") or ()) if isinstance(data, dict) else ():
            if isinstance(host, dict) and host.get("address") == address:
                common = data.get("kiln_ssh_options")
                return {**host, **({"ssh_options": common} if common else {})}
    return credentials.static_host_from_user_ssh(address, container_client_variables(options.environment))


def remove_controller(site: PlaybookSite, run: str) -> None:
    """Terminate, or release, the machine of a controller and what else it has at its provider."""
    from kiln.base import files
    from kiln.fleet import run as fleet_run

    fleet_run.tear_down_run(site, controller.controller_run_name(run))
    files.remove(site.folder)


GONE_SECONDS = 60.0  # for the controller to end, once it was asked to stop
LOOK = 2.0  # seconds between two looks at a run that is being stopped
UNANSWERED = 10  # looks in a row without an answer: the controller is gone
OVER = frozenset({"ended", "failed"})


def run_key_and_feedstock(options: FleetOptions, root: Path) -> tuple[RunKey, Feedstock | None]:
    """Return the key of the run of a command line, and the feedstock of its folder, if it has one."""
    from kiln.recipe import feedstock as recipe_feedstock

    if options.key is not None:
        with contextlib.suppress(FeedstockNotFound):
            feedstock = recipe_feedstock.load(root)
            key = controller.read_run_key(options.key)
            return key, (feedstock if is_run_of_feedstock(feedstock, key) else None)
        return controller.read_run_key(options.key), None
    feedstock = recipe_feedstock.load(root)
    return controller.key_of_run(feedstock, options.run), feedstock


def is_run_of_feedstock(feedstock: Feedstock, key: RunKey) -> bool:
    """Return whether a run builds this feedstock: it was started here, or has the same inputs."""
    from kiln.state.store import cache

    if (run_folder(feedstock, key.run) / "key.json").exists():
        return True
    try:
        entries = cache.remote_configs(feedstock, tuple(key.inputs), options=key.build_options)
    except KilnError:
        return False
    return all(entry.inputs.key == key.inputs[entry.config].key for entry in entries)


def attach_to_run(options: FleetOptions, root: Path, *, target: Path | None, collects: bool) -> int:
    """Show a detached run until it is over, then collect its packages; Ctrl-C leaves it as it is."""
    from kiln.cli.output import run_view_for_stream
    from kiln.fleet.detached import follow

    key, feedstock = run_key_and_feedstock(options, root)
    with controller.controller_connection(key, container_client_variables(options.environment)) as connection:
        with contextlib.ExitStack() as stack:

            def enter_run_view(labels: Mapping[str, str]) -> Any:
                return stack.enter_context(run_view_for_stream(sys.stderr, options.environment, labels))

            follower = follow.RunFollower(enter_run_view, lambda line: print(line, file=sys.stderr))
            try:
                follow.follow_run_with_reconnects(
                    connection, follower, exists=lambda: provider_lists_controller(options, feedstock, key)
                )
            except KeyboardInterrupt:
                stack.close()
                command = fleet_action_command("attach", options, key)
                text = f"\nthe fleet run {key.run} goes on: {command} shows it again"
                print(make_pasteable(text, root), file=sys.stderr)
                return Interrupted.exit_code
        if follower.last.get("process") == "failed":
            print("the run was killed again and again, and is not started any more", file=sys.stderr)
        if not collects:
            return run_exit_code(follower.last)
        return collect_from_controller(connection, key, feedstock, options, root, target)


def provider_lists_controller(options: FleetOptions, feedstock: Feedstock | None, key: RunKey) -> bool | None:
    """Return whether the provider lists a run's controller; None when it cannot be asked from here."""
    from kiln.fleet import run as fleet_run

    if feedstock is None or key.provider not in CLOUDS:
        return None
    if (site := site_of_controller_started_here(options, feedstock, key)) is None:
        return None
    try:
        machines = fleet_run.list_existing_workers(site)
    except KilnError as error:
        print(f"the provider could not be asked for the controller: {error}", file=sys.stderr)
        return None
    return any(machine["name"] == key.machine and not machine["ended"] for machine in machines)


def collect_ended_run(options: FleetOptions, root: Path, *, target: Path | None) -> int:
    """Collect the packages, logs and report of a detached run that is over, and end its controller."""
    key, feedstock = run_key_and_feedstock(options, root)
    with controller.controller_connection(key, container_client_variables(options.environment)) as connection:
        state = connection.run_state()
        if state["process"] not in OVER:
            raise UsageError(
                f"the fleet run {key.run} is not over",
                hint=f"{fleet_action_command('attach', options, key)} shows it, and collects then",
            )
        return collect_from_controller(connection, key, feedstock, options, root, target)


def collect_from_controller(
    connection: ControllerClient,
    key: RunKey,
    feedstock: Feedstock | None,
    options: FleetOptions,
    root: Path,
    target: Path | None,
) -> int:
    """Fetch and check the results, store them in the feedstock or in a folder, and end the controller."""
    from kiln.base import files
    from kiln.fleet.detached import follow
    from kiln.fleet.records import FleetLedger

    if feedstock is None and target is None:
        target = root / f"fleet-{key.run}"
    folder = target.absolute() / ".part" if target is not None else run_folder(feedstock, key.run) / "collected"  # type: ignore[arg-type]
    with exclusive_collection_lock(folder, key.run):
        state = connection.export_results_on_controller()
        connection.fetch_exported_files(folder, follow.announced_files(state))
        if state["report"] is None:
            print("\n".join(state["output"]), file=sys.stderr)
            print(f"the fleet run {key.run} has ended before its first build", file=sys.stderr)
        else:
            report, fleet = follow.read_fetched_results(folder)
            if fleet.id != key.run:
                raise BrokenPackage(f"the controller of the run {key.run} sent the results of another", why=fleet.id)
            if target is not None:
                follow.copy_results_into_folder(report, folder, target)
                where = target
            else:
                assert feedstock is not None, "without one there is a target"
                with FleetLedger(artifact_layout(feedstock).ledger) as ledger:
                    report = follow.store_results_locally(feedstock, report, fleet, inputs=key.inputs, ledger=ledger)
                where = feedstock.artifacts
            packages = {package.artifact.path.name for config in report.configs for package in config.packages}
            print(f"{len(packages)} packages collected: {where}", file=sys.stderr)
            if fleet.finished is None:  # it was killed, or could not terminate them
                text = f"workers may run until their leases end: kiln fleet down {key.run} --provider {fleet.provider}"
                print(make_pasteable(text, root), file=sys.stderr)
        files.remove(folder if target is not None else folder / "packages")
        error = end_controller(connection, key, feedstock, options, is_collected=True)
    return run_exit_code(state) or (0 if error is None else error.exit_code)


@contextlib.contextmanager
def exclusive_collection_lock(folder: Path, run: str) -> Iterator[None]:
    """Collect a run into a folder alone during the block."""
    from kiln.base import locks

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locks.exclusive_folder_lock(folder))
        except AlreadyRunning as error:
            what = f"the fleet run {run} is being collected by another command"
            hint = "wait until it has ended: it stores the packages for both"
            raise AlreadyRunning(what, why=error.what, hint=hint) from error
        yield


def run_exit_code(state: Mapping[str, Any]) -> int:
    """Return the exit code of a run that is over; one that has none was killed, or stopped early."""
    code = state.get("exit_code")
    return Interrupted.exit_code if code is None else int(code)


def request_controller_end_and_wait(connection: ControllerClient) -> tuple[bool, bool]:
    """Have the controller ended; return whether it still answers, and whether it waits for others who fetch."""
    waits = connection.confirm_collected()
    until = time.monotonic() + GONE_SECONDS
    while (alive := connection.is_answering()) and time.monotonic() < until:
        time.sleep(1)
    return alive, alive and waits and connection.confirm_collected()


def end_controller(
    connection: ControllerClient,
    key: RunKey,
    feedstock: Feedstock | None,
    options: FleetOptions,
    *,
    is_collected: bool = False,
) -> KilnError | None:
    """Tell the controller that all is collected, and see that it ends; return why something of it remains, if it does.

    The run's key stays then, so that `kiln fleet down` finds the controller again. With ``is_collected`` it may be
    gone: another computer that has collected the run ends it, too.
    """
    try:
        alive, waits = request_controller_end_and_wait(connection)
    except MachinesUnknown as error:
        if not is_collected:
            raise
        print(f"{error}", file=sys.stderr)
        alive = waits = False
    if waits:
        what = f"the controller of the fleet run {key.run} waits until another computer has fetched its packages"
        again = f"{fleet_action_command('down', options, key)} removes what there is of it afterwards"
        if not is_collected:
            return AlreadyRunning(what, hint=again)
        text = f"{what}; {again}"
        print(text if feedstock is None else make_pasteable(text, feedstock.root), file=sys.stderr)
        return None
    site = None
    if feedstock is not None and (folder := run_folder(feedstock, key.run)).exists():
        site = site_of_controller_started_here(options, feedstock, key)
        if site is not None:
            try:  # besides the machine, which ends itself: groups and keys at the provider
                remove_controller(site, key.run)
            except KilnError as error:
                print(f"{error}", file=sys.stderr)
                text = f"{key.run}: something of its controller remains: kiln fleet down {key.run} tries it again"
                print(make_pasteable(text, feedstock.root), file=sys.stderr)
                return error
        controller.remove_run_key(folder)
    state = "still answers, and ends by its lease" if alive else "has ended"
    print(f"{key.run}: its controller {state}", file=sys.stderr)
    if site is None and key.provider in CLOUDS:
        text = f"its security group remains at {key.provider}, and costs nothing"
        print(f"{key.run}: {text}; kiln fleet down {key.run}, where the run began, removes it", file=sys.stderr)
    return None


def site_of_controller_started_here(options: FleetOptions, feedstock: Feedstock, key: RunKey) -> PlaybookSite | None:
    """Return the site of a controller that was started from this folder; None elsewhere."""
    if not run_folder(feedstock, controller.controller_run_name(key.run)).exists():
        return None
    return playbook_site(options, feedstock, controller.controller_run_name(key.run), key.provider)


def fleet_action_command(action: str, options: FleetOptions, key: RunKey) -> str:
    """Return the command for an action on a detached run, as it was named on this command line."""
    return f"kiln fleet {action} {key.run if options.key is None else f'--key {options.key}'}"


def print_remaining_detached_runs(feedstock: Feedstock, *, is_alone: bool) -> None:
    """Print the detached runs that only their names tear down; ``is_alone`` when there was no other run to tear down.

    They may have packages that were not collected.
    """
    keys = controller.find_run_keys(feedstock)
    notes = [f"{key.run}: detached on {key.address}; kiln fleet down {key.run} stops it" for key in keys]
    if is_alone:
        kind = "other fleet runs" if notes else "fleet runs"
        notes.insert(0, f"all {kind} have ended; kiln fleet sweep looks for workers at a provider")
    for note in notes:
        print(make_pasteable(note, feedstock.root), file=sys.stderr)


def is_detached(feedstock: Feedstock, run: str) -> bool:
    """Return whether a run of a feedstock is detached, and was not collected."""
    return any(key.run == run for key in controller.find_run_keys(feedstock))


def tear_down_run_of_key(options: FleetOptions, root: Path, runs: Sequence[str]) -> int:
    """Stop the detached run of a key, from any computer."""
    from kiln.base import files, process_table

    key, feedstock = run_key_and_feedstock(options, root)
    if set(runs) - {key.run}:
        raise UsageError(
            f"--key is that of the fleet run {key.run}, and cannot be used for {', '.join(runs)}",
            hint="leave out RUN, or --key",
        )
    with contextlib.ExitStack() as stack:
        if feedstock is not None:
            stack.enter_context(files.held_lock_file(artifact_layout(feedstock).common_lock_file("fleet")))
        stack.enter_context(process_table.termination_as_interrupt())
        tear_down_detached_run(options, feedstock, key)
    return 0


def tear_down_detached_run(options: FleetOptions, feedstock: Feedstock | None, key: RunKey) -> None:
    """Stop a detached run, and end its controller.

    A controller that cannot be reached is terminated at its provider, and then the workers that it has left there;
    from another computer than that which has started it, it cannot be.
    """
    try:
        with controller.controller_connection(key, container_client_variables(options.environment)) as connection:
            run = stop_run_and_wait(connection).get("fleet")
            left = end_controller(connection, key, feedstock, options)
    except MachinesUnknown as error:
        site = None if feedstock is None else site_of_controller_started_here(options, feedstock, key)
        if feedstock is None or site is None:
            raise
        print(f"{error}", file=sys.stderr)
        remove_controller(site, key.run)
        terminate_workers_without_controller(options, feedstock, key)
        controller.remove_run_key(run_folder(feedstock, key.run))
        return
    if run is not None and run["finished"] is None:  # it was killed, or could not terminate them
        terminate_workers_without_controller(options, feedstock, key, run["provider"])
    if left is not None:
        raise left


def terminate_workers_without_controller(
    options: FleetOptions, feedstock: Feedstock | None, key: RunKey, provider: str = ""
) -> None:
    """Terminate the workers of a run whose controller is gone, which nobody else does; elsewhere, say how.

    Existing machines are claimed in the controller's folder alone: they are released when their leases end.
    """
    from kiln.fleet import run as fleet_run

    provider = options.provider or provider or key.provider
    if feedstock is not None and provider in CLOUDS:
        fleet_run.tear_down_run(playbook_site(options, feedstock, key.run, provider), key.run)
        print(f"{key.run}: all workers are terminated", file=sys.stderr)
        return
    print(f"{key.run}: its workers may run until their leases end", file=sys.stderr)
    command = f"kiln fleet down {key.run} --provider PROVIDER terminates them now, if a cloud has them"
    print(command if feedstock is None else make_pasteable(command, feedstock.root), file=sys.stderr)


def stop_run_and_wait(connection: ControllerClient) -> dict[str, Any]:
    """Stop a run, wait until it has ended, and return its state; a connection that fails for a moment is made again."""
    connection.send_request("stop")
    failures = 0
    while True:
        try:
            if (state := connection.run_state())["process"] in OVER:
                return state
            failures = 0
        except MachinesUnknown:
            failures += 1
            if failures >= UNANSWERED:
                raise
        time.sleep(LOOK)


def show_run_or_config_log(options: FleetOptions, root: Path, config: str | None) -> int:
    """Print the log of a config of a detached run, or without one what the run itself has printed."""
    if options.key is not None and config is None:
        config = options.run  # with a key, the only name is a config's
    key, _ = run_key_and_feedstock(options, root)
    with controller.controller_connection(key, container_client_variables(options.environment)) as connection:
        if config is None:
            print_untrusted_text("\n".join(connection.run_state()["output"]))
        else:
            connection.stream_config_log(config.removesuffix(".yaml"), print_untrusted_text)
    return 0


def print_untrusted_text(text: str) -> None:
    """Print lines of a build or of a controller; on a terminal they cannot move, hide or change what it shows."""
    print(escaped_for_terminal(text))


def show_detached_run_status(options: FleetOptions, root: Path) -> int:
    """Print the status of a detached run."""
    key, _ = run_key_and_feedstock(options, root)
    print(make_pasteable(detached_run_status_text(key, options), root))
    return 0


def detached_run_status_text(key: RunKey, options: FleetOptions) -> str:
    """Return the status of a detached run, asked from its controller."""
    from kiln.base.serialization import from_json_values
    from kiln.fleet import inventory
    from kiln.fleet.model import FleetRun
    from kiln.fleet.plan import output
    from kiln.run.report.page import report_as_json
    from kiln.state.ledger.json_columns import record_from_json
    from kiln.state.results import MatrixReport

    with controller.controller_connection(key, container_client_variables(options.environment)) as connection:
        state = connection.run_state()
    fleet = None if state.get("fleet") is None else from_json_values(FleetRun, state["fleet"])
    report = None if state.get("report") is None else record_from_json(MatrixReport, state["report"])
    cost, costs_by_id = None, {}
    if fleet is not None:
        # Its controller has just answered, and is charged for until its packages are collected.
        cost = inventory.recorded_run_cost(
            fleet, None if report is None else report.cost, time.time(), is_controlled=True
        )
        costs_by_id = {} if cost is None else {fleet.id: cost}
    if options.json:
        shown = {} if fleet is None else {"fleet": output.status_as_json([fleet], costs_by_id)[0]}
        shown |= {} if report is None else {"report": report_as_json(dataclasses.replace(report, cost=cost))}
        return json.dumps({**state, **shown}, indent=2)
    head = f"{key.run}: detached on {key.address}, {state['process']}"
    if state.get("until"):
        moment = time.strftime("%a %H:%M", time.localtime(state["until"]))
        command = fleet_action_command("collect", options, key)
        head += f" with exit code {state['exit_code']}; its packages wait there until {moment}: {command}"
        if cost is not None and cost.controller is not None:
            rest = max(0.0, state["until"] - time.time()) / 3600 * cost.controller.hourly
            head += f" (the wait costs {cost.controller.hourly:.3f} an hour, {rest:.2f} {cost.currency} more at most)"
    if fleet is None:
        return "\n".join([head, *state.get("output", [])[-3:]])
    return f"{head}\n{output.status_as_text([fleet], costs_by_id)}"


def detached_run_lines(feedstock: Feedstock) -> Iterator[str]:
    """Return a line for each detached run of a feedstock; nobody is asked."""
    for key in controller.find_run_keys(feedstock):
        yield f"{key.run}: detached on {key.address}; kiln fleet status {key.run} asks it"
