"""The results of an unfinished build, carried from a worker that its provider takes back to the next worker.

`kiln build --handover` packs and restores it; here its folder travels by the run's own ssh. Nothing here fails a build:
without a handover a config is built anew.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from typing import TYPE_CHECKING

from kiln import files, process_runner
from kiln.errors import BrokenHandover, KilnError
from kiln.fleet.executor_protocol import CollectFailed, CollectResults, Event, ResultsCollected, StartBuild
from kiln.store import unfinished_build_handover

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.fleet.executor_shared_state import PlaybookSession

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


def send_handover_to_worker(session: PlaybookSession, request: StartBuild) -> process_runner.ProcessResult:
    """Remove an earlier handover from a worker, and send what is here: the record last."""
    worker, config, folder = request.worker, request.config, handover_folder(session, request.config)
    result = session.ssh(worker, f"sudo kiln-job clear {shlex.quote(config)}")
    record = None
    with contextlib.suppress(KilnError, OSError):
        record = unfinished_build_handover.read_handover_record(folder)
    if not result.ok or record is None or record.archive is None:
        return result
    session.report_step(config, f"send what was built before to {worker}")
    target = f"{JOBS}/{config}/{FOLDER}"
    for name in (record.archive.name, unfinished_build_handover.RECORD):
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
        record = unfinished_build_handover.read_handover_record(folder)
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
