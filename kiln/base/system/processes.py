"""Groups of processes that end as a whole, their output, and what Linux and macOS tell of processes differently."""

from __future__ import annotations

import os
import selectors
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import signal
    import subprocess
    from collections.abc import Iterable, Iterator


_CHUNK = 1 << 16
TICKS = os.sysconf("SC_CLK_TCK")  # of /proc/PID/stat, in a second


class PipeReader:
    """Reads several pipes."""

    def __init__(self, pipes: Iterable[IO[bytes]]) -> None:
        self._selector = selectors.DefaultSelector()
        for pipe in pipes:
            self._selector.register(pipe, selectors.EVENT_READ, pipe)

    @property
    def is_open(self) -> bool:
        """True while a pipe has not ended."""
        return bool(self._selector.get_map())

    def read_available(self, timeout: float) -> list[tuple[IO[bytes], bytes]]:
        """Return what came, after ``timeout`` seconds at most; an empty chunk is a pipe's end."""
        chunks = []
        for key, _ in self._selector.select(timeout=timeout):
            chunk = os.read(key.fd, _CHUNK)
            if not chunk:
                self._selector.unregister(key.fileobj)
            chunks.append((key.data, chunk))
        return chunks

    def close(self) -> None:
        """Release the system's selector."""
        self._selector.close()


def signal_group(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """Send a signal to a process that was started in a new session, and to its descendants."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def wait_for_group(process: subprocess.Popen[Any]) -> None:
    """Wait until the last process of a killed group has ended, of those that this process adopted."""
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-process.pid, 0)


def process_exists(pid: int) -> bool:
    """Return whether a process exists; a zombie does."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if sys.platform == "linux":
    _PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h

    def is_process_running(pid: int) -> bool:
        """Return whether a process of this computer runs and is not a zombie, see proc_pid_stat(5)."""
        with suppress(OSError):
            state = Path("/proc", str(pid), "stat").read_bytes().rpartition(b") ")[2][:1]
            return state not in {b"Z", b"X"}
        return False

    def die_with_parent(number: signal.Signals) -> None:
        """Have the kernel send this process a signal when its parent ends, even by SIGKILL."""
        import ctypes  # slow to import, and rarely needed

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)

    @contextmanager
    def adopt_orphans() -> Iterator[None]:
        """Become the parent of children whose parent has ended, so that this process can wait for them."""
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            yield
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def seconds_since_boot() -> float:
        """Return the time since the system was started."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    is_process_running = process_exists

    def die_with_parent(number: signal.Signals) -> None:
        """Send this process a signal soon after its parent has ended."""
        import threading

        parent = os.getppid()

        def watch_parent() -> None:
            while os.getppid() == parent:
                time.sleep(0.5)
            os.kill(os.getpid(), number)

        threading.Thread(target=watch_parent, daemon=True).start()

    @contextmanager
    def adopt_orphans() -> Iterator[None]:
        """Do nothing: macOS has nothing like it."""
        yield

    def seconds_since_boot() -> float:
        """Return the time since the system was started."""
        return time.monotonic()
