"""Processes that a killed run of the fleet left: found by the mark in their environment, and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "KILN_FLEET_RUN"  # in the environment of all that a run starts on this machine: the run's folder
GRACE = 5.0  # seconds between asking to end, and ending


def find(folder: Path) -> tuple[int, ...]:
    """Return the processes that belong to a run, but for this one."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return tuple(found)


def end(folder: Path) -> tuple[int, ...]:
    """End all processes of a run, politely first; returns those that there were.

    Only for who holds the run: whatever else carries its mark has nobody to report to.
    """
    first = find(folder)
    _signal(first, signal.SIGTERM)
    until = time.monotonic() + GRACE
    while (left := find(folder)) and time.monotonic() < until:
        time.sleep(0.05)
    _signal(left, signal.SIGKILL)
    return first


def _signal(processes: tuple[int, ...], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
