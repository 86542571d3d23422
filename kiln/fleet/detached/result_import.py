"""The results of a detached run, fetched from its controller: checked, and stored as if the run had been here."""

from __future__ import annotations

import dataclasses
import shutil
import time
from typing import TYPE_CHECKING, Any

from kiln.errors import BrokenPackage
from kiln.fleet import costs
from kiln.ledger.run_record_json_columns import record_from_json
from kiln.model.fleet_run import FleetRun
from kiln.model.run import ConfigRun, MatrixReport
from kiln.serialization import from_json_values
from kiln.store import configs_built_on_workers, delivery_check
from kiln.store.build_cache import InputHashes
from kiln.store.configs_built_on_workers import RemoteConfig

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.fleet.detached.attach_key import ConfigInputHashes
    from kiln.ledger.fleet import FleetLedger
    from kiln.model.feedstock import Feedstock


def read_fetched_results(folder: Path) -> tuple[MatrixReport, FleetRun]:
    """Return the report and the workers of a run whose results are in a folder; paths are those here.

    Raises:
        BrokenPackage: when the state is invalid, or the run has stored nothing.
        HashMismatch: when a package is not the one that was built.
    """
    try:
        state: dict[str, Any] = delivery_check.read_report(folder / "state.json")
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
    packages = tuple(
        delivery_check.verify_received_package(folder / "packages", package, sender="controller")
        for package in config.packages
    )
    is_log = log.is_file() and log.parent.resolve() == (folder / "logs").resolve()
    return dataclasses.replace(config, packages=packages, log=log if is_log else None)


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
    cost = costs.recorded_run_cost(ended, report.cost, now, is_controlled=True) or report.cost
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
    return dataclasses.replace(
        config, packages=configs_built_on_workers.add_collected_packages(feedstock, entry, config.packages)
    )


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
