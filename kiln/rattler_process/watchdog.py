"""A thread that holds a process to its limits on time, memory, disk space and inactivity."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import process_table
from kiln.errors import DownloadFailed, KilnError, LimitExceeded
from kiln.files import human_readable_size
from kiln.operating_system import machine_resources
from kiln.operating_system.file_operations import open_descriptors
from kiln.operating_system.machine_resources import bytes_written, private_memory
from kiln.operating_system.processes import is_parent_process
from kiln.rattler_process.error_json_conversion import out_of_memory_error
from kiln.rattler_process.limit_settings import VARIABLE, doubled_size_text, limit_increase_hint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kiln.model.channel_reading_and_install_limits import Limits

INTERVAL = 0.1  # seconds
BUSY = 0.001  # seconds of processor time that count as activity


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedTask:
    """A task: ``limit`` names the limit on its time, ``writes`` are the bytes that it may write below ``folder``."""

    what: str
    limit: str
    waits_for: Callable[[], str]
    writes: int | None = None
    folder: Path | None = None


class Watchdog(threading.Thread):
    """A thread that calls ``on_breach`` with the first limit that is exceeded."""

    def __init__(self, limits: Limits, task: WatchedTask, parent: int, on_breach: Callable[[KilnError], None]) -> None:
        super().__init__(daemon=True)
        self.limits, self.task, self.parent, self.on_breach = limits, task, parent, on_breach
        self.stopped = threading.Event()
        self.started = self.active = time.monotonic()
        self.busy = 0.0
        self.written, self.inodes = bytes_written(), self._free_inodes()

    def run(self) -> None:
        """Check the limits until stopped."""
        while not self.stopped.wait(INTERVAL):
            if not is_parent_process(self.parent):
                os._exit(1)
            breach = self._stall_error() or self._timeout_error() or self.exceeded_space_error()
            if breach is not None:
                self.on_breach(breach)
                return

    def _stall_error(self) -> KilnError | None:
        """Return the error of a task without activity: processor time of other threads; waiting uses none."""
        now, busy = time.monotonic(), time.process_time() - time.thread_time()
        if busy - self.busy > BUSY:
            self.active, self.busy = now, busy
        if now - self.active < self.limits.stall:
            return None
        if process_table.waits_for_lock(os.getpid()):  # another program uses the same cache
            self.active = now
            return None
        connected = ", ".join(connected_addresses())
        return DownloadFailed(
            f"{self.task.waits_for()} has sent nothing for {self.limits.stall} s",
            why=f"{self.task.what} {f'is connected to {connected}' if connected else 'has no connection'}",
            hint=f"check that the server answers, or wait longer: {VARIABLE}='stall={2 * self.limits.stall}'",
        )

    def _timeout_error(self) -> KilnError | None:
        seconds = getattr(self.limits, self.task.limit)
        if time.monotonic() - self.started < seconds:
            return None
        return LimitExceeded(
            f"{self.task.what} takes longer than {seconds} s",
            why=f"it is still working with {self.task.waits_for()}",
            hint=f"request fewer packages, exact versions, or allow more: {VARIABLE}='{self.task.limit}={2 * seconds}'",
        )

    def exceeded_space_error(self) -> KilnError | None:
        """Return the error of a task that has used too much memory or disk space, as far as it has come."""
        if private_memory() > self.limits.memory:
            return out_of_memory_error(self.limits)
        if self.task.writes is not None and bytes_written() - self.written > self.task.writes:
            return LimitExceeded(
                f"{self.task.what} writes more than {human_readable_size(self.task.writes)}",
                why=f"the packages of {self.task.waits_for()} are far larger than the index says",
                hint=limit_increase_hint(f"unpacked={doubled_size_text(self.task.writes)}"),
            )
        if self.inodes - self._free_inodes() > self.limits.files:
            return LimitExceeded(
                f"{self.task.what} creates more than {self.limits.files:,} files",
                why=f"a package of {self.task.waits_for()} has more files than any real one",
                hint=limit_increase_hint(f"files={2 * self.limits.files}"),
            )
        return None

    def _free_inodes(self) -> int:
        """Return the number of files that the disk can still hold; 0 where it has no such limit."""
        with contextlib.suppress(OSError):
            return machine_resources.free_inode_count(self.task.folder) if self.task.folder else 0
        return 0


def connected_addresses() -> list[str]:
    """Return the addresses that this process is connected to."""
    addresses = set()
    for descriptor in open_descriptors():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family in {socket.AF_INET, socket.AF_INET6}:
                address = connection.getpeername()
                addresses.add(f"{address[0]}:{address[1]}")
    return sorted(addresses)
