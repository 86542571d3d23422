"""Find and end the processes that a killed run of the fleet left behind, by the mark in their environment."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from kiln import process_table
from kiln.operating_system.processes import KILL

if TYPE_CHECKING:
    from pathlib import Path

MARK = "KILN_FLEET_RUN"  # in the environment of all processes that a run starts on this computer: the run's folder
GRACE = 5.0  # seconds between SIGTERM and SIGKILL


def find_processes_of_run(folder: Path) -> tuple[int, ...]:
    """Return the processes that belong to a run, without this one."""
    mark = f"{MARK}={folder}".encode()
    return tuple(
        pid
        for pid in process_table.all_pids()
        if pid != os.getpid() and mark in process_table.environment_of_process(pid)
    )


def end_processes_of_run(folder: Path) -> tuple[int, ...]:
    """End all processes of a run, by SIGTERM and then SIGKILL; return those that there were.

    Only for the holder of the run's lock: any other process with its mark has lost its parent.
    """
    first = find_processes_of_run(folder)
    process_table.send_signal(signal.SIGTERM, first)
    until = time.monotonic() + GRACE
    while (rest := find_processes_of_run(folder)) and time.monotonic() < until:
        time.sleep(0.05)
    process_table.send_signal(KILL, rest)
    return first
