"""Follow a detached run: its messages become the events of a view, whatever the connection does."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from kiln.errors import BrokenPackage, MachinesUnknown, WorkersLost
from kiln.fleet.worker_leases_and_sweep_timer import LEASE
from kiln.ledger.run_record_json_columns import record_from_json
from kiln.model.run import ConfigRun, MatrixReport, RunCost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kiln.fleet.detached.attach_key import RunKey
    from kiln.fleet.detached.controller_client import ControllerClient
    from kiln.model.observer import RunObserver

PAUSE = 5.0  # seconds before another attempt to connect
# Connections that fail in a row: the address or the key is wrong, or the controller is gone.
REFUSED = 10
NEVER = (None, None)  # the expected times of a config that is finished, or of a controller of an older kiln
LONGEST = LEASE  # seconds without an answer: a controller that cannot renew its own lease ends in that time


class RunFollower:
    """Shows the messages of a run in a view, which is made when the names of the configs are known.

    ``say`` gets a line for what is not part of the view: the controller's set-up, a lost connection.
    """

    def __init__(self, view: Callable[[Mapping[str, str]], RunObserver], say: Callable[[str], None]) -> None:
        self._make_view = view
        self._say = say
        self._view: RunObserver | None = None
        self._report: MatrixReport | None = None
        self._configs: dict[str, ConfigRun] = {}
        self._starts: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._shown_cost: RunCost | None = None
        self._said = ""
        self.last: dict[str, Any] = {}
        self.is_over = False
        self.is_heard = False

    def show_controller_message(self, message: Mapping[str, Any]) -> None:
        """Show a message.

        Raises:
            BrokenPackage: when it is invalid.
        """
        self.is_heard = True
        try:
            self._dispatch_message(message)
        except (KeyError, TypeError, ValueError) as error:
            raise BrokenPackage("the controller sent an invalid message", why=str(error)) from error

    def _dispatch_message(self, message: Mapping[str, Any]) -> None:
        match message["kind"]:
            case "run" | "state":
                self._update_run(message)
            case "config":
                self._update_config(record_from_json(ConfigRun, message["config"]), *message.get("expected", NEVER))
            case "line" if self._view is not None:
                self._view.output_line_received(str(message["config"]), str(message["step"]), str(message["text"]))
            case "shown" if self._view is None and self._report is not None:
                self._view = self._make_view(self.last["labels"])
                self._view.run_began(self._current_report())
                self._shown_cost = self._current_report().cost
            case "shown":
                self._show_cost()
            case "over":
                self.is_over = True
                if self._view is not None and self._report is not None:
                    self._view.run_ended(self._current_report())

    def _update_run(self, message: Mapping[str, Any]) -> None:
        self.last = dict(message)
        if message.get("report") is None:
            lines = message.get("output") or [f"the controller is {message['process']}"]
            self.show_line_once(str(lines[-1]))
            return
        self._report = record_from_json(MatrixReport, message["report"])

    def _show_cost(self) -> None:
        """Show the cost, once the expected times of all configs have arrived."""
        cost = None if self._report is None else self._current_report().cost
        if self._view is not None and cost is not None and cost != self._shown_cost:
            self._shown_cost = cost
            self._view.run_cost_changed(cost)

    def _update_config(self, config: ConfigRun, start: float | None, end: float | None) -> None:
        for times, moment in ((self._starts, start), (self._ends, end)):
            times.pop(config.config, None)
            if moment is not None:
                times[config.config] = float(moment)
        previous = self._configs.get(config.config)
        self._configs[config.config] = config
        if self._view is not None and previous != config:
            self._view.config_changed(config)

    def _current_report(self) -> MatrixReport:
        assert self._report is not None, "a run was reported"
        cost = self._report.cost
        if cost is not None:
            starts, ends = {**cost.config_starts, **self._starts}, {**cost.config_ends, **self._ends}
            cost = dataclasses.replace(cost, config_starts=starts, config_ends=ends)
        return dataclasses.replace(self._report, configs=tuple(self._configs.values()), cost=cost)

    def show_line_once(self, text: str) -> None:
        """Show a line that is not part of the view, unless it was the last one."""
        if text != self._said:
            self._said = text
            self._say(text)


def follow_run_with_reconnects(
    controller: ControllerClient,
    follower: RunFollower,
    *,
    exists: Callable[[], bool | None] = lambda: None,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Follow a run to its end; a connection that is lost is made again.

    ``exists`` asks the provider for the controller's machine after each `REFUSED` connections that have failed in a
    row; it returns None when it cannot be asked.

    Raises:
        WorkersLost: when the controller does not exist any more.
        MachinesUnknown: when it could never be reached, or not for `LONGEST` seconds.
    """
    failures, was_heard, since = 0, False, clock()
    while True:
        follower.is_heard = False
        result = controller.stream_run_messages(follower.show_controller_message)
        if follower.is_over:
            return
        if follower.is_heard:
            failures, was_heard, since = 0, True, clock()
        else:
            failures += 1
        lines = result.tail.strip().splitlines() or ["it was closed"]
        if failures and failures % REFUSED == 0:
            if exists() is False:
                raise _controller_gone_error(controller.key)
            if not was_heard or clock() - since >= LONGEST:
                raise _controller_unreachable_error(controller.key, lines[-1])
        follower.show_line_once(f"no connection to the controller, trying again: {lines[-1][:200]}")
        pause(PAUSE)


def _controller_gone_error(key: RunKey) -> WorkersLost:
    return WorkersLost(
        f"the controller of the run {key.run} does not exist any more",
        why="its provider does not list it; the packages that were not collected are lost with it",
        hint=f"kiln fleet down {key.run} terminates the workers that it may have left; then start the run again",
    )


def _controller_unreachable_error(key: RunKey, reason: str) -> MachinesUnknown:
    return MachinesUnknown(
        f"the controller of the run {key.run} cannot be reached ({key.address}:{key.port})",
        why=reason,
        hint="see whether it still exists, and whether the key is its own; the same command tries it again",
    )
