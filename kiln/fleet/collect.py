"""The collection of a build's results from a worker, which is not trusted: only what was built there is accepted."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from typing import TYPE_CHECKING

from kiln import files, process_runner
from kiln.errors import BrokenPackage, DiskFull, HashMismatch
from kiln.fleet import unfinished_build_transfer
from kiln.fleet.executor_protocol import CollectFailed, CommandUndelivered, ResultsCollected
from kiln.fleet.playbook_runner import LITTLE, read_json_object
from kiln.ledger import run_record_json_columns
from kiln.model.build_results import PackageReport, StepReport
from kiln.store import delivery_check

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.fleet.executor_protocol import CollectResults, Event, KeepPackages
    from kiln.fleet.executor_shared_state import PlaybookSession

LONGEST = 2000  # characters of the end of a build's output
NO_TRANSFER = re.compile(r"rsync ended with exit code (10|12|30|35|255)\b")  # of rsync, for a lost connection
DISK_FULL = "DISK FULL"  # in the message of the module that fetches packages


def collect_build_results(session: PlaybookSession, request: CollectResults) -> Event:
    """Fetch and check a build's results, and hand its packages to the session's ``keep``.

    Raises:
        DiskFull: when the disk of this computer has no space for them.
    """
    worker, config = request.worker, request.config
    if request.until is not None:
        return unfinished_build_transfer.fetch_handover(session, request)
    session.report_step(config, f"collect from {worker}")
    if reason := _fetch_build_results(session, worker, config):
        if DISK_FULL in reason:
            raise DiskFull(f"no disk space for {config} from {worker}", why=reason)
        if NO_TRANSFER.search(reason):
            return CommandUndelivered(command=request, reason=reason)
        return CollectFailed(worker=worker, config=config, reason=reason, corrupt="HASH MISMATCH" in reason)
    event = check_and_keep_results(session.site.folder / "collected" / worker / config, request, keep=session.keep)
    if isinstance(event, ResultsCollected) and event.packages:
        unfinished_build_transfer.remove_handover(session, config)
    return event


def check_and_keep_results(folder: Path, request: CollectResults, *, keep: KeepPackages) -> Event:
    """Check a build's results, which are in a folder here, and hand its packages to ``keep``.

    Raises:
        DiskFull: when the disk of this computer has no space for them.
    """
    worker, config = request.worker, request.config
    try:
        if reason := input_mismatch_reason(folder, key=request.key):
            files.remove(folder)
            return CollectFailed(worker=worker, config=config, reason=reason, foreign=True)
        event = read_collected_results(folder, worker=worker, config=config)
        return dataclasses.replace(event, packages=keep(config, event.packages))
    except (HashMismatch, BrokenPackage) as error:
        files.remove(folder)  # so that it is fetched anew
        return CollectFailed(worker=worker, config=config, reason=str(error), corrupt=True)


def _fetch_build_results(session: PlaybookSession, worker: str, config: str) -> str:
    """Fetch a build's results by the module of collect.yml alone; return why that failed, if it did."""
    if session.stopped.is_set():
        return "the run is being stopped"
    site = session.site
    arguments = {"machine": worker, "folder": str(site.folder), "config": config}
    module = site.playbooks / "library" / "kiln_collect.py"
    words = (site.python, "-I", module, json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
    result = process_runner.capture(words, env=site.marked_environment, secrets=site.secrets)
    if result.ok:
        return ""
    files.require_disk_space(site.folder, LITTLE, for_what="the packages, which could not be collected,")
    try:
        return str(json.loads(result.stdout)["msg"])
    except (ValueError, KeyError, TypeError):
        return result.tail[-500:] or "the module that fetches did not end"


def read_collected_results(
    folder: Path, *, worker: str, config: str, packages_in: str = "packages"
) -> ResultsCollected:
    """Return the contents of the folder of a collected config; each package has the hash of the worker's report.

    ``packages_in`` is the name of its folder of packages, empty where they are next to the report.

    Raises:
        HashMismatch: when a package is not the one that was built.
        BrokenPackage: when the report is invalid, or names files outside of the folder of packages.
    """
    if (reason := _output_of_unreported_failure(folder)) is not None:
        return ResultsCollected(worker=worker, config=config, log=_latest_log(folder, config), reason=reason)
    try:
        report = delivery_check.read_report(folder / "report.json")
        (entry,) = [item for item in report["configs"] if item["config"] == config]
        reports = [run_record_json_columns.record_from_json(PackageReport, data) for data in entry["packages"]]
        packages = tuple(
            delivery_check.verify_received_package(folder / packages_in, report, sender="worker") for report in reports
        )
        steps = tuple(run_record_json_columns.record_from_json(StepReport, step) for step in entry["steps"])
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


def input_mismatch_reason(folder: Path, *, key: str) -> str:
    """Return why results are of no use: they were made of other inputs than the config's; empty if they were not."""
    other = read_json_object(folder / "state.json").get("key")
    if key and other and other != key:
        return f"its build had other inputs ({str(other)[:12]}, not {key[:12]})"
    return ""


def _output_of_unreported_failure(folder: Path) -> str | None:
    """Return the last output of a build that failed before it could report; None if it did, or should have."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if files.read_regular_file(folder / "report.json", delivery_check.LONGEST_REPORT).strip():
            return None
        state = read_json_object(folder / "state.json")
        if not state or state.get("exit_code") == 0:
            return None
        output = files.end_of_file(folder / "log", 4 * LONGEST).decode(errors="replace")[-LONGEST:].strip()
        return output[output.rfind("error: ") :].removeprefix("error: ") if "error: " in output else output
    return None


def _latest_log(folder: Path, config: str) -> Path | None:
    """Return the config's latest log, else the output of kiln on the worker."""
    logs = [log for log in sorted((folder / "logs").glob(f"*/{config}.log")) if not log.is_symlink()]
    return next((log for log in (*reversed(logs), folder / "log") if log.is_file() and not log.is_symlink()), None)
