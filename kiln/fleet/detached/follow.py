"""Follow a detached run, and fetch its results as if it had been here."""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from kiln.base.errors import BrokenPackage, HashMismatch, MachinesUnknown, WorkersLost
from kiln.base.patterns import is_config_name
from kiln.base.serialization import from_json_values
from kiln.fleet import inventory
from kiln.fleet.detached.server import TESTS
from kiln.fleet.model import LEASE, FleetRun
from kiln.state.ledger.json_columns import record_from_json
from kiln.state.results import ConfigRun, MatrixReport, PackageReport, RunCost
from kiln.state.store import cache, deliveries
from kiln.state.store.cache import InputHashes, RemoteConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kiln.fleet.detached.controller import ConfigInputHashes, ControllerClient
    from kiln.fleet.records import FleetLedger
    from kiln.recipe.feedstock import Feedstock
    from kiln.state.results import RunObserver


def announced_files(state: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the results of a run by their paths, packages with their bytes, by the state that its controller has sent.

    Raises:
        BrokenPackage: the state is invalid.
    """
    result: dict[str, int | None] = dict.fromkeys(("state.json", "output.log", "playbooks.log"))
    what = "the controller sent an invalid state of the run"
    try:
        configs = [
            (config["config"], [package["artifact"] for package in config["packages"]])
            for config in (state["report"] or {}).get("configs", ())
        ]
        packages = [
            (str(artifact["subdir"]), PurePosixPath(artifact["path"]).name, artifact["size"])
            for _, artifacts in configs
            for artifact in artifacts
        ]
    except (AttributeError, LookupError, TypeError) as error:
        raise BrokenPackage(what, why=repr(error)) from error
    for config, _ in configs:
        if not (isinstance(config, str) and is_config_name(config)):
            raise BrokenPackage(what, why=f"{str(config)[:80]!r} is not the name of a config")
        result |= dict.fromkeys(f"logs/{config}{ending}" for ending in (".log", TESTS))
    for subdir, name, size in packages:
        if type(size) is not int or size < 0:
            raise BrokenPackage(what, why=f"a package of {str(size)[:80]} bytes")
        result[f"packages/{deliveries.require_package_name(subdir, name)}"] = size
    return result


def read_fetched_results(folder: Path) -> tuple[MatrixReport, FleetRun]:
    """Return the report and the workers of a run whose results are in a folder; paths are those here.

    Raises:
        BrokenPackage: when the state is invalid, or the run has stored nothing.
        HashMismatch: when a package is not the one that was built.
    """
    try:
        state: dict[str, Any] = deliveries.read_report(folder / "state.json")
        if state["report"] is None:
            lines = "\n".join(state.get("output", ()))
            raise BrokenPackage("the run has ended before its first build, and has no results", why=lines)
        report = record_from_json(MatrixReport, state["report"])
        fleet = from_json_values(FleetRun, state["fleet"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise BrokenPackage("the controller sent an invalid state of the run", why=str(error)) from error
    configs = tuple(_config_with_checked_files(folder, config) for config in report.configs)
    return dataclasses.replace(report, configs=configs), fleet


def _config_with_checked_files(folder: Path, config: ConfigRun) -> ConfigRun:
    log = folder / "logs" / f"{config.config}.log"
    packages = tuple(_verified_package(folder / "packages", package) for package in config.packages)
    is_log = log.is_file() and log.parent.resolve() == (folder / "logs").resolve()
    return dataclasses.replace(config, packages=packages, log=log if is_log else None)


def _verified_package(folder: Path, package: PackageReport) -> PackageReport:
    try:
        return deliveries.verify_received_package(folder, package)
    except HashMismatch:
        (folder / package.artifact.subdir / package.artifact.path.name).unlink()  # so that it is fetched anew
        raise


def store_results_locally(
    feedstock: Feedstock,
    report: MatrixReport,
    fleet: FleetRun,
    *,
    inputs: Mapping[str, ConfigInputHashes],
    ledger: FleetLedger,
) -> MatrixReport:
    """Put the packages into the channel and the run into the ledger; return the report with their paths there.

    ``inputs`` are those with which the configs were sent: where the recipe has changed since, they are built again.
    """
    configs = tuple(_add_packages_to_channel(feedstock, config, inputs) for config in report.configs)
    now = time.time()  # until now the controller is charged for; its packages have waited there
    ended = dataclasses.replace(fleet, lives=False)
    cost = inventory.recorded_run_cost(ended, report.cost, now, is_controlled=True) or report.cost
    report = dataclasses.replace(report, configs=configs, cost=cost)
    known = ledger.fleet_run(fleet.id)  # by a collection that was interrupted, perhaps before it had stored all
    number = ledger.begin_run(report) if known is None else known.number
    if cost is not None:
        ledger.update_cost(number, cost)
    ledger.begin_fleet(dataclasses.replace(fleet, number=number))
    for config in configs:
        ledger.update_config(number, config)
    ledger.end_fleet(fleet.id)
    ledger.end_run(number, at=report.finished)
    return dataclasses.replace(report, run=number)


def _add_packages_to_channel(
    feedstock: Feedstock, config: ConfigRun, inputs: Mapping[str, ConfigInputHashes]
) -> ConfigRun:
    known = inputs.get(config.config)
    if not config.packages or known is None:
        return config
    entry = RemoteConfig(
        config=config.config, group=known.group, inputs=InputHashes(shared=known.shared, key=known.key)
    )
    return dataclasses.replace(config, packages=cache.add_collected_packages(feedstock, entry, config.packages))


def copy_results_into_folder(report: MatrixReport, folder: Path, target: Path) -> None:
    """Copy the packages, logs and state into a folder, the packages as in a channel."""
    for config in report.configs:
        for package in config.packages:
            path = target / package.artifact.subdir / package.artifact.path.name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(package.artifact.path, path)
        if config.log is not None:
            (target / "logs").mkdir(parents=True, exist_ok=True)
            shutil.copy2(config.log, target / "logs" / config.log.name)
    for name in ("state.json", "output.log", "playbooks.log"):
        if (folder / name).is_file():
            shutil.copy2(folder / name, target / name)


PAUSE = 5.0  # seconds before another attempt to connect
# Connections that fail in a row: the address or the key is wrong, or the controller is gone.
REFUSED = 10
NEVER = (None, None)  # the expected times of a config that is finished
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
        """Show a message."""
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
            key = controller.key
            if exists() is False:
                raise WorkersLost(
                    f"the controller of the run {key.run} does not exist any more",
                    why="its provider does not list it; the packages that were not collected are lost with it",
                    hint=f"kiln fleet down {key.run} terminates the workers that it may have left; then start the run"
                    " again",
                )
            if not was_heard or clock() - since >= LONGEST:
                raise MachinesUnknown(
                    f"the controller of the run {key.run} cannot be reached ({key.address}:{key.port})",
                    why=lines[-1],
                    hint="see whether it still exists, and whether the key is its own; the same command tries it again",
                )
        follower.show_line_once(f"no connection to the controller, trying again: {lines[-1][:200]}")
        pause(PAUSE)
