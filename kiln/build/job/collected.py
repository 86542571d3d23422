"""The results of a build that another machine sends: only what was built there is accepted."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.base import files
from kiln.base.errors import BrokenPackage
from kiln.base.serialization import read_json_object
from kiln.state.ledger import json_columns
from kiln.state.results import PackageReport, StepReport
from kiln.state.store import deliveries

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMessage:
    """A command to a worker, or an event of it."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildMessage(WorkerMessage):
    """A command about a config's build on a worker, or an event of it."""

    config: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsCollected(BuildMessage):
    """A build's results are collected and checked; ``log`` is its log, ``reason`` says why a failed config failed."""

    packages: tuple[PackageReport, ...] = ()
    steps: tuple[StepReport, ...] = ()
    peak_memory: int | None = None
    log: Path | None = None
    reason: str = ""


LONGEST_OUTPUT = 2000  # characters of the end of a build's output


def read_collected_results(
    folder: Path, *, worker: str, config: str, packages_in: str = "packages"
) -> ResultsCollected:
    """Return the contents of the folder of a collected config; each package has the hash of the worker's report.

    ``packages_in`` is the name of its folder of packages, empty where they are next to the report.

    Raises:
        HashMismatch: when a package is not the one that was built.
        BrokenPackage: when the report is invalid, or names files that are missing or outside of the folder of packages.
    """
    if (reason := _output_of_unreported_failure(folder)) is not None:
        return ResultsCollected(worker=worker, config=config, log=_latest_log(folder, config), reason=reason)
    try:
        report = deliveries.read_report(folder / "report.json")
        (entry,) = [item for item in report["configs"] if item["config"] == config]
        reports = [json_columns.record_from_json(PackageReport, data) for data in entry["packages"]]
        packages = tuple(deliveries.verify_received_package(folder / packages_in, report) for report in reports)
        steps = tuple(json_columns.record_from_json(StepReport, step) for step in entry["steps"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise BrokenPackage(f"{worker} sent an invalid report of {config}", why=why) from error
    return ResultsCollected(
        worker=worker,
        config=config,
        packages=packages,
        steps=steps,
        peak_memory=entry.get("peak_memory"),
        log=_latest_log(folder, config),
        reason=str(entry.get("reason", "")),
    )


def _output_of_unreported_failure(folder: Path) -> str | None:
    """Return the last output of a build that failed before it could report; None if it did, or should have."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if files.read_regular_file(folder / "report.json", deliveries.LONGEST_REPORT).strip():
            return None
        state = read_json_object(folder / "state.json")
        if not state or state.get("exit_code") == 0:
            return None
        output = (
            files.end_of_file(folder / "log", 4 * LONGEST_OUTPUT).decode(errors="replace")[-LONGEST_OUTPUT:].strip()
        )
        return output[output.rfind("error: ") :].removeprefix("error: ") if "error: " in output else output
    return None


def _latest_log(folder: Path, config: str) -> Path | None:
    """Return the config's latest log, else the output of kiln on the worker."""
    logs = [log for log in sorted((folder / "logs").glob(f"*/{config}.log")) if not log.is_symlink()]
    return next((log for log in (*reversed(logs), folder / "log") if log.is_file() and not log.is_symlink()), None)
