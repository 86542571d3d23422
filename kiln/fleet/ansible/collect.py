"""The results of a build or of an unfinished one, collected from a worker, which is not trusted."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shlex
import time
from typing import TYPE_CHECKING

from kiln.base import files
from kiln.base.errors import BrokenHandover, BrokenPackage, DiskFull, HashMismatch, KilnError, MachinesUnknown
from kiln.base.serialization import read_json_object
from kiln.build.job.collected import ResultsCollected, read_collected_results
from kiln.fleet.ansible.fetch import BuildResults
from kiln.fleet.ansible.playbooks import LITTLE
from kiln.fleet.protocol import CollectFailed, CollectResults, CommandUndelivered, Event, StartBuild
from kiln.state.store import handover

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.base import process
    from kiln.fleet.ansible.sessions import PlaybookSession
    from kiln.fleet.protocol import KeepPackages


JOBS = "/var/lib/kiln/jobs"  # on a worker
FOLDER, NOTICE = "handover", "notice"  # of a config, in its folder there


def handover_folder(session: PlaybookSession, config: str) -> Path:
    """Return the folder here that holds what a config's build has handed over."""
    return session.site.folder / FOLDER / config


def handover_options(session: PlaybookSession, request: StartBuild) -> str:
    """Return the further options of a build that may be stopped, or that continues an earlier one; empty for others."""
    here = f"{JOBS}/{request.config}"
    words = []
    if request.reclaimable or handover_folder(session, request.config).exists():
        words += ["--handover", f"{here}/{FOLDER}"]
    if request.reclaimable:
        words += ["--notice", f"{here}/{NOTICE}"]
    return " ".join(words)


def send_handover_to_worker(session: PlaybookSession, request: StartBuild) -> process.ProcessResult:
    """Remove an earlier handover from a worker, and send what is here: the record last."""
    worker, config, folder = request.worker, request.config, handover_folder(session, request.config)
    result = session.ssh(worker, f"sudo kiln-job clear {shlex.quote(config)}")
    record = None
    with contextlib.suppress(KilnError, OSError):
        record = handover.read_handover_record(folder)
    if not result.ok or record is None or record.archive is None:
        return result
    session.report_step(config, f"send what was built before to {worker}")
    target = f"{JOBS}/{config}/{FOLDER}"
    for name in (record.archive.name, handover.RECORD):
        result = session.send_files_to_worker(worker, [f"{folder}/./{name}"], target)
        if not result.ok:
            return result
    return result


def fetch_handover(session: PlaybookSession, request: CollectResults) -> Event:
    """Fetch and check what a build has handed over, before its worker ends; an earlier handover stays if that fails."""
    worker, config = request.worker, request.config
    session.report_step(config, f"save what {worker} has built")
    folder = handover_folder(session, config)
    part = folder.with_name(f".{config}.part")
    files.remove(part)
    part.mkdir(parents=True, mode=0o700)
    try:
        if reason := _fetch_handover_files(session, request, part):
            return CollectFailed(worker=worker, config=config, reason=reason)
        files.remove(folder)
        part.rename(folder)
    finally:
        files.remove(part)
    return ResultsCollected(worker=worker, config=config)


def _fetch_handover_files(session: PlaybookSession, request: CollectResults, part: Path) -> str:
    """Fetch the files of a handover into a folder; return why that failed, if it did."""
    left = (request.until or 0.0) - time.time()
    if left <= 0:
        return "its worker has ended before"
    source = f"{request.worker}:{JOBS}/{request.config}/{FOLDER}/"
    result = session.rsync(request.worker, "--recursive", "--timeout=30", "--", source, f"{part}/", seconds=left)
    if not result.ok:
        return result.tail[-300:] or "it could not be fetched in time"
    return _unusable_handover_reason(part)


def _unusable_handover_reason(folder: Path) -> str:
    """Return why the folder of a handover is of no use; empty if it is of use."""
    try:
        record = handover.read_handover_record(folder)
    except BrokenHandover as error:
        return str(error)
    if record is None or record.archive is None:
        return "the worker has handed nothing over"
    path = folder / record.archive.name
    if path.is_symlink() or not path.is_file() or files.sha256(path) != record.archive.sha256:
        return "what the worker has handed over is damaged"
    return ""


def remove_handover(session: PlaybookSession, config: str) -> None:
    """Remove what a config's build has handed over: it is finished, or its workers cannot use it."""
    files.remove(handover_folder(session, config))


def collect_build_results(session: PlaybookSession, request: CollectResults) -> Event:
    """Fetch and check a build's results, and hand its packages to the session's ``keep``."""
    worker, config, site = request.worker, request.config, session.site
    if request.until is not None:
        return fetch_handover(session, request)
    session.report_step(config, f"collect from {worker}")
    failed = functools.partial(CollectFailed, worker=worker, config=config)
    if session.stopped.is_set():
        return failed(reason="the run is being stopped")
    results = BuildResults(
        run_folder=site.folder, worker=worker, config=config, environment=site.marked_environment, secrets=site.secrets
    )
    try:
        results.fetch()
    except DiskFull:
        raise
    except MachinesUnknown as error:
        return CommandUndelivered(command=request, reason=str(error))
    except (KilnError, OSError) as error:
        files.require_disk_space(site.folder, LITTLE, for_what="the packages, which could not be collected,")
        return failed(reason=str(error), corrupt=isinstance(error, HashMismatch))
    event = check_and_keep_results(results.folder, request, keep=session.keep)
    if isinstance(event, ResultsCollected) and event.packages:
        remove_handover(session, config)
    return event


def check_and_keep_results(folder: Path, request: CollectResults, *, keep: KeepPackages) -> Event:
    """Check a build's results, which are in a folder here, and hand its packages to ``keep``."""
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


def input_mismatch_reason(folder: Path, *, key: str) -> str:
    """Return why results are of no use: they were made of other inputs than the config's; empty if they were not."""
    other = read_json_object(folder / "state.json").get("key")
    if key and other and other != key:
        return f"its build had other inputs ({str(other)[:12]}, not {key[:12]})"
    return ""
