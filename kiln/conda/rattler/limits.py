"""The limits on py-rattler's process: their values, a thread that holds it to them, its failures as errors."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.base import errors, process_table
from kiln.base import files as base_files
from kiln.base.errors import DownloadFailed, KilnError, LimitExceeded, UsageError
from kiln.base.files import human_readable_size
from kiln.base.patterns import lazy_pattern
from kiln.base.system import machine
from kiln.base.system.files import open_descriptors
from kiln.base.system.machine import bytes_written, private_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


_UNITS = {"": 1, "s": 1, "min": 60, "h": 3600, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_AMOUNT = lazy_pattern(r"(\d{1,9})(s|min|h|kB|MB|GB|TB)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on reading channels and installing packages; times in seconds, sizes in bytes.

    ``stall`` is the longest time without progress, ``solve`` the time for fetching indexes and selecting packages,
    ``install`` the time for fetching and linking them. ``memory`` is that of the process which does so, ``index`` the
    unpacked size of one index file, ``package`` the size of a package file whose index has no size for it. ``unpacked``
    and ``files`` limit what one installation may unpack.
    """

    stall: int = 120
    solve: int = 900
    install: int = 6 * 3600
    memory: int = 4 * 10**9
    index: int = 2 * 10**9
    package: int = 20 * 10**9
    unpacked: int = 200 * 10**9
    files: int = 2_000_000

    @classmethod
    def parse(cls, text: str) -> Limits:
        """Return the limits with some of them changed, as in ``solve=1h index=4GB``.

        Raises:
            ValueError: naming the invalid word.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        changes: dict[str, int] = {}
        for word in text.replace(",", " ").split():
            name, _, value = word.partition("=")
            amount = _AMOUNT.fullmatch(value)
            if name not in names or not amount or int(amount[1]) == 0:
                raise ValueError(f"invalid limit {word!r}: write NAME=VALUE with a name of {', '.join(sorted(names))}")
            changes[name] = int(amount[1]) * _UNITS[amount[2] or ""]
        return cls(**changes)


VARIABLE = "KILN_LIMITS"
_limits: contextvars.ContextVar[Limits] = contextvars.ContextVar("limits")


def current_limits() -> Limits:
    """Return the limits in force."""
    return _limits.get(Limits())


def environment_limits(environment: Mapping[str, str]) -> Limits:
    """Return the limits that an environment sets.

    Raises:
        UsageError: when a limit is invalid.
    """
    try:
        return Limits.parse(environment.get(VARIABLE, ""))
    except ValueError as error:
        raise UsageError(f"{VARIABLE}: {error}", hint=f"{VARIABLE}='solve=1h memory=8GB'") from error


@contextlib.contextmanager
def override_limits(new: Limits) -> Iterator[None]:
    """Replace the limits during the block."""
    token = _limits.set(new)
    try:
        yield
    finally:
        _limits.reset(token)


def limit_increase_hint(limit: str) -> str:
    """Return the hint to raise a limit."""
    return f"if you trust the channel, allow more: {VARIABLE}='{limit}'"


def doubled_size_text(size: int) -> str:
    """Return twice a size, in the notation of limits."""
    return f"{2 * size // 10**9}GB" if size >= 10**9 else f"{max(1, 2 * size // 10**6)}MB"


def out_of_memory_error(bounds: Limits) -> LimitExceeded:
    """Return the error of a process that needs more memory than it may have."""
    return LimitExceeded(
        "reading the channel or its packages needs more than "
        f"{base_files.human_readable_size(bounds.memory)} of memory",
        why="an index or a package is larger than any real one, or made to fill the memory",
        hint=limit_increase_hint(f"memory={doubled_size_text(bounds.memory)}"),
    )


def failure_to_json(error: BaseException) -> dict[str, Any]:
    """Return a failure as JSON values."""
    if isinstance(error, KilnError):
        return {"kind": type(error).__name__, "what": error.what, "why": error.why, "hint": error.hint}
    if isinstance(error, OSError) and error.errno is not None:
        return {"kind": "OSError", "errno": error.errno, "text": error.strerror, "file": error.filename}
    return {"kind": "Exception", "what": repr(error)}


def failure_from_json(data: Mapping[str, Any]) -> Exception:
    """Return the failure of JSON values."""
    if data["kind"] == "OSError":
        return OSError(data["errno"], data["text"], data["file"])
    if data["kind"] == "Exception":
        return RuntimeError(data["what"])
    kind: type[KilnError] = getattr(errors, data["kind"])
    return kind(data["what"], why=data["why"], hint=data["hint"])


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
            if os.getppid() != self.parent:
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
        connected = ", ".join(_connected_addresses())
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
            return machine.free_inode_count(self.task.folder) if self.task.folder else 0
        return 0


def _connected_addresses() -> list[str]:
    """Return the addresses that this process is connected to."""
    import socket

    addresses = set()
    for descriptor in open_descriptors():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family in {socket.AF_INET, socket.AF_INET6}:
                address = connection.getpeername()
                addresses.add(f"{address[0]}:{address[1]}")
    return sorted(addresses)
