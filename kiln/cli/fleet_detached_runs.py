"""Detached runs from any computer: attach to them, collect their packages, stop them."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from kiln.cli import fleet_controller_type_and_charge
from kiln.cli.commands_in_hints import make_pasteable
from kiln.cli.environment_filters import container_client_variables
from kiln.cli.fleet_detach_to_controller import remove_controller
from kiln.cli.fleet_run_folder_and_variables import artifact_layout, playbook_site, run_folder
from kiln.cli.fleet_run_terms_from_options import CLOUDS
from kiln.errors import (
    AlreadyRunning,
    BrokenPackage,
    FeedstockNotFound,
    Interrupted,
    KilnError,
    MachinesUnknown,
    UsageError,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kiln.fleet.detached.attach_key import RunKey
    from kiln.fleet.detached.controller_client import ControllerClient
    from kiln.fleet.playbook_runner import PlaybookSite
    from kiln.model.feedstock import Feedstock

GONE_SECONDS = 60.0  # for the controller to end, once it was asked to stop
LOOK = 2.0  # seconds between two looks at a run that is being stopped
UNANSWERED = 10  # looks in a row without an answer: the controller is gone
OVER = frozenset({"ended", "failed"})


def run_key_and_feedstock(options: argparse.Namespace, root: Path) -> tuple[RunKey, Feedstock | None]:
    """Return the key of the run of a command line, and the feedstock of its folder, if it has one."""
    from kiln import feedstock_folder_check
    from kiln.fleet.detached import attach_key

    if options.key is not None:
        with contextlib.suppress(FeedstockNotFound):
            feedstock = feedstock_folder_check.load(root)
            key = attach_key.read_run_key(options.key)
            return key, (feedstock if is_run_of_feedstock(feedstock, key) else None)
        return attach_key.read_run_key(options.key), None
    feedstock = feedstock_folder_check.load(root)
    return attach_key.key_of_run(feedstock, options.run), feedstock


def is_run_of_feedstock(feedstock: Feedstock, key: RunKey) -> bool:
    """Return whether a run builds this feedstock: it was started here, or has the same inputs."""
    from kiln.store import configs_built_on_workers

    if (run_folder(feedstock, key.run) / "key.json").exists():
        return True
    try:
        entries = configs_built_on_workers.remote_configs(feedstock, tuple(key.inputs), options=key.build_options)
    except KilnError:
        return False
    return all(entry.inputs.key == key.inputs[entry.config].key for entry in entries)


def attach_to_run(options: argparse.Namespace, root: Path) -> int:
    """Show a detached run until it is over, then collect its packages; Ctrl-C leaves it as it is."""
    from kiln.cli.run_view_choice_and_printing import run_view_for_stream
    from kiln.fleet.detached import controller_client, follow

    key, feedstock = run_key_and_feedstock(options, root)
    with controller_client.controller_connection(key, container_client_variables(os.environ)) as connection:
        with contextlib.ExitStack() as stack:

            def enter_run_view(labels: Mapping[str, str]) -> Any:
                return stack.enter_context(run_view_for_stream(sys.stderr, os.environ, labels))

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
        if options.no_collect:
            return run_exit_code(follower.last)
        return collect_from_controller(connection, key, feedstock, options, root)


def provider_lists_controller(options: argparse.Namespace, feedstock: Feedstock | None, key: RunKey) -> bool | None:
    """Return whether the provider lists a run's controller; None when it cannot be asked from here."""
    from kiln.fleet import run_and_removal as fleet

    if feedstock is None or key.provider not in CLOUDS:
        return None
    if (site := site_of_controller_started_here(options, feedstock, key)) is None:
        return None
    try:
        machines = fleet.list_existing_workers(site)
    except KilnError as error:
        print(f"the provider could not be asked for the controller: {error}", file=sys.stderr)
        return None
    return any(machine["name"] == key.machine and not machine["ended"] for machine in machines)


def collect_ended_run(options: argparse.Namespace, root: Path) -> int:
    """Collect the packages, logs and report of a detached run that is over, and end its controller."""
    from kiln.fleet.detached import controller_client

    key, feedstock = run_key_and_feedstock(options, root)
    with controller_client.controller_connection(key, container_client_variables(os.environ)) as connection:
        state = connection.run_state()
        if state["process"] not in OVER:
            raise UsageError(
                f"the fleet run {key.run} is not over",
                hint=f"{fleet_action_command('attach', options, key)} shows it, and collects then",
            )
        return collect_from_controller(connection, key, feedstock, options, root)


def collect_from_controller(
    connection: ControllerClient, key: RunKey, feedstock: Feedstock | None, options: argparse.Namespace, root: Path
) -> int:
    """Fetch and check the results, store them in the feedstock or in a folder, and end the controller."""
    from kiln import files
    from kiln.fleet.detached import result_import
    from kiln.ledger.fleet import FleetLedger

    target = options.to
    if feedstock is None and target is None:
        target = root / f"fleet-{key.run}"
    folder = target.absolute() / ".part" if target is not None else run_folder(feedstock, key.run) / "collected"  # type: ignore[arg-type]
    with exclusive_collection_lock(folder, key.run):
        state = connection.export_results_on_controller()
        connection.fetch_exported_files(folder)
        if state["report"] is None:
            print("\n".join(state["output"]), file=sys.stderr)
            print(f"the fleet run {key.run} has ended before its first build", file=sys.stderr)
        else:
            report, fleet = result_import.read_fetched_results(folder)
            if fleet.id != key.run:
                raise BrokenPackage(f"the controller of the run {key.run} sent the results of another", why=fleet.id)
            if target is not None:
                result_import.copy_results_into_folder(report, folder, target)
                where = target
            else:
                assert feedstock is not None, "without one there is a target"
                with FleetLedger(artifact_layout(feedstock).ledger) as ledger:
                    report = result_import.store_results_locally(
                        feedstock, report, fleet, inputs=key.inputs, ledger=ledger
                    )
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
    """Collect a run into a folder alone during the block.

    Raises:
        AlreadyRunning: naming the process that does so.
    """
    from kiln import folder_lock

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(folder_lock.exclusive_folder_lock(folder))
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
    options: argparse.Namespace,
    *,
    is_collected: bool = False,
) -> KilnError | None:
    """Tell the controller that all is collected, and see that it ends; return why something of it remains, if it does.

    The run's key stays then, so that `kiln fleet down` finds the controller again. With ``is_collected`` it may be
    gone: another computer that has collected the run ends it, too.

    Raises:
        MachinesUnknown: when it cannot be reached, and is not known to be collected.
    """
    from kiln.fleet.detached import attach_key

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
        attach_key.remove_run_key(folder)
    text = fleet_controller_type_and_charge.controller_end_text(key, is_alive=alive, is_removed=site is not None)
    print(text, file=sys.stderr)
    return None


def site_of_controller_started_here(
    options: argparse.Namespace, feedstock: Feedstock, key: RunKey
) -> PlaybookSite | None:
    """Return the site of a controller that was started from this folder; None elsewhere."""
    from kiln.fleet.detached import controller_start as starting

    if not run_folder(feedstock, starting.controller_run_name(key.run)).exists():
        return None
    return playbook_site(options, feedstock, starting.controller_run_name(key.run), key.provider)


# Down


def fleet_action_command(action: str, options: argparse.Namespace, key: RunKey) -> str:
    """Return the command for an action on a detached run, as it was named on this command line."""
    name = getattr(options, "key", None)
    return f"kiln fleet {action} {key.run if name is None else f'--key {name}'}"


def print_remaining_detached_runs(feedstock: Feedstock, *, is_alone: bool) -> None:
    """Print the detached runs that only their names tear down; ``is_alone`` when there was no other run to tear down.

    They may have packages that were not collected.
    """
    from kiln.fleet.detached import attach_key

    keys = attach_key.find_run_keys(feedstock)
    notes = [f"{key.run}: detached on {key.address}; kiln fleet down {key.run} stops it" for key in keys]
    if is_alone:
        kind = "other fleet runs" if notes else "fleet runs"
        notes.insert(0, f"all {kind} have ended; kiln fleet sweep looks for workers at a provider")
    for note in notes:
        print(make_pasteable(note, feedstock.root), file=sys.stderr)


def is_detached(feedstock: Feedstock, run: str) -> bool:
    """Return whether a run of a feedstock is detached, and was not collected."""
    from kiln.fleet.detached import attach_key

    return any(key.run == run for key in attach_key.find_run_keys(feedstock))


def tear_down_run_of_key(options: argparse.Namespace, root: Path) -> int:
    """Stop the detached run of a key, from any computer.

    Raises:
        UsageError: when another run is named, too.
    """
    from kiln import files, signals

    key, feedstock = run_key_and_feedstock(options, root)
    if set(options.runs) - {key.run}:
        raise UsageError(
            f"--key is that of the fleet run {key.run}, and cannot be used for {', '.join(options.runs)}",
            hint="leave out RUN, or --key",
        )
    with contextlib.ExitStack() as stack:
        if feedstock is not None:
            stack.enter_context(files.held_lock_file(artifact_layout(feedstock).common_lock_file("fleet")))
        stack.enter_context(signals.termination_as_interrupt())
        tear_down_detached_run(options, feedstock, key)
    return 0


def tear_down_detached_run(options: argparse.Namespace, feedstock: Feedstock | None, key: RunKey) -> None:
    """Stop a detached run, and end its controller.

    A controller that cannot be reached is terminated at its provider, and then the workers that it has left there;
    from another computer than that which has started it, it cannot be.

    Raises:
        MachinesUnknown: when it cannot be reached from such a computer.
        KilnError: when something of it remains.
    """
    from kiln.fleet.detached import attach_key, controller_client

    try:
        with controller_client.controller_connection(key, container_client_variables(os.environ)) as connection:
            run = stop_run_and_wait(connection).get("fleet")
            left = end_controller(connection, key, feedstock, options)
    except MachinesUnknown as error:
        site = None if feedstock is None else site_of_controller_started_here(options, feedstock, key)
        if feedstock is None or site is None:
            raise
        print(f"{error}", file=sys.stderr)
        remove_controller(site, key.run)
        terminate_workers_without_controller(options, feedstock, key)
        attach_key.remove_run_key(run_folder(feedstock, key.run))
        return
    if run is not None and run["finished"] is None:  # it was killed, or could not terminate them
        terminate_workers_without_controller(options, feedstock, key, run["provider"])
    if left is not None:
        raise left


def terminate_workers_without_controller(
    options: argparse.Namespace, feedstock: Feedstock | None, key: RunKey, provider: str = ""
) -> None:
    """Terminate the workers of a run whose controller is gone, which nobody else does; elsewhere, say how.

    Existing machines are claimed in the controller's folder alone: they are released when their leases end.
    """
    from kiln.fleet import run_and_removal as fleet

    provider = options.provider or provider or key.provider
    if feedstock is not None and provider in CLOUDS:
        fleet.tear_down_run(playbook_site(options, feedstock, key.run, provider), key.run)
        print(f"{key.run}: all workers are terminated", file=sys.stderr)
        return
    print(f"{key.run}: its workers may run until their leases end", file=sys.stderr)
    command = f"kiln fleet down {key.run} --provider PROVIDER terminates them now, if a cloud has them"
    print(command if feedstock is None else make_pasteable(command, feedstock.root), file=sys.stderr)


def stop_run_and_wait(connection: ControllerClient) -> dict[str, Any]:
    """Stop a run, wait until it has ended, and return its state; a connection that fails for a moment is made again.

    Raises:
        MachinesUnknown: when the controller did not answer several times in a row.
    """
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
