"""The status and the logs of detached runs, from any computer."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from typing import TYPE_CHECKING

from kiln.cli.commands_in_hints import make_pasteable
from kiln.cli.environment_filters import container_client_variables
from kiln.cli.fleet_detached_runs import fleet_action_command, run_key_and_feedstock
from kiln.name_rules import escaped_for_terminal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    from kiln.fleet.detached.attach_key import RunKey
    from kiln.model.feedstock import Feedstock


def show_run_or_config_log(options: argparse.Namespace, root: Path) -> int:
    """Print the log of a config of a detached run, or without one what the run itself has printed."""
    from kiln.fleet.detached import controller_client

    if options.key is not None and options.run is not None and options.config is None:
        options.run, options.config = None, options.run  # with a key, the only name is a config's
    key, _ = run_key_and_feedstock(options, root)
    with controller_client.controller_connection(key, container_client_variables(os.environ)) as connection:
        if options.config is None:
            print_untrusted_text("\n".join(connection.run_state()["output"]))
        else:
            connection.stream_config_log(options.config.removesuffix(".yaml"), print_untrusted_text)
    return 0


def print_untrusted_text(text: str) -> None:
    """Print lines of a build or of a controller; on a terminal they cannot move, hide or change what it shows."""
    print(escaped_for_terminal(text))


def show_detached_run_status(options: argparse.Namespace, root: Path) -> int:
    """Print the status of a detached run."""
    key, _ = run_key_and_feedstock(options, root)
    print(make_pasteable(detached_run_status_text(key, options), root))
    return 0


def detached_run_status_text(key: RunKey, options: argparse.Namespace) -> str:
    """Return the status of a detached run, asked from its controller."""
    from kiln.fleet import costs, plan_status_output
    from kiln.fleet.detached import controller_client
    from kiln.ledger.run_record_json_columns import record_from_json
    from kiln.model.fleet_run import FleetRun
    from kiln.model.run import MatrixReport
    from kiln.report.run_report_as_json import report_as_json
    from kiln.serialization import from_json_values

    with controller_client.controller_connection(key, container_client_variables(os.environ)) as connection:
        state = connection.run_state()
    fleet = None if state.get("fleet") is None else from_json_values(FleetRun, state["fleet"])
    report = None if state.get("report") is None else record_from_json(MatrixReport, state["report"])
    cost, costs_by_id = None, {}
    if fleet is not None:
        # Its controller has just answered, and is charged for until its packages are collected.
        cost = costs.recorded_run_cost(fleet, None if report is None else report.cost, time.time(), is_controlled=True)
        costs_by_id = {} if cost is None else {fleet.id: cost}
    if options.json:
        shown = {} if fleet is None else {"fleet": plan_status_output.status_as_json([fleet], costs_by_id)[0]}
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
    return f"{head}\n{plan_status_output.status_as_text([fleet], costs_by_id)}"


def detached_run_lines(feedstock: Feedstock) -> Iterator[str]:
    """Return a line for each detached run of a feedstock; nobody is asked."""
    from kiln.fleet.detached import attach_key

    for key in attach_key.find_run_keys(feedstock):
        yield f"{key.run}: detached on {key.address}; kiln fleet status {key.run} asks it"
