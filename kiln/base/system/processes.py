"""Groups of processes that end as a whole, and their output, where systems differ."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Iterator, Mapping


_CHUNK = 1 << 16


if sys.platform == "win32":
    import queue
    import threading

    class PipeReader:
        """Reads several pipes, each in a thread: Windows cannot wait for pipes."""

        def __init__(self, pipes: Iterable[IO[bytes]]) -> None:
            self._chunks: queue.SimpleQueue[tuple[IO[bytes], bytes]] = queue.SimpleQueue()
            self._open = set(pipes)
            for pipe in self._open:
                threading.Thread(target=self._read_pipe, args=(pipe,), daemon=True).start()

        @property
        def is_open(self) -> bool:
            """True while a pipe has not ended."""
            return bool(self._open)

        def read_available(self, timeout: float) -> list[tuple[IO[bytes], bytes]]:
            """Return what came, after ``timeout`` seconds at most; an empty chunk is a pipe's end."""
            try:
                pipe, chunk = self._chunks.get(timeout=timeout)
            except queue.Empty:
                return []
            if not chunk:
                self._open.discard(pipe)
            return [(pipe, chunk)]

        def close(self) -> None:
            """Leave the threads to the end of the processes that they read."""

        def _read_pipe(self, pipe: IO[bytes]) -> None:
            chunk = b"."
            while chunk:
                try:
                    chunk = os.read(pipe.fileno(), _CHUNK)
                except (OSError, ValueError):  # closed meanwhile
                    chunk = b""
                self._chunks.put((pipe, chunk))

else:
    import selectors

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


if sys.platform == "win32":
    import subprocess  # slow to import, and elsewhere the callers have done so

    from kiln.base.system import windows

    KILL = signal.SIGTERM  # Windows has no signals between processes: any of these ends one
    HANG_UP: tuple[signal.Signals, ...] = ()

    # without these, programs do not start, or do not find their folders
    _NEEDED = (
        "APPDATA COMSPEC LOCALAPPDATA NUMBER_OF_PROCESSORS PATH PATHEXT PROCESSOR_ARCHITECTURE PROGRAMDATA PROGRAMFILES"
        " SYSTEMDRIVE SYSTEMROOT TEMP TMP USERNAME USERPROFILE WINDIR"
    )

    def complete_environment(environment: Mapping[str, str]) -> dict[str, str]:
        """Return a program's environment, with this process's variables that every program of Windows needs."""
        given = {name.upper() for name in environment}
        return {
            **environment,
            **{name: os.environ[name] for name in _NEEDED.split() if name in os.environ and name not in given},
            "PYTHONUTF8": "1",
        }

    def new_group_arguments() -> dict[str, Any]:
        """Return the arguments of Popen that start a group: Ctrl-C reaches this process alone."""
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}

    class ProcessGroup:
        """A process that was started with `new_group_arguments`, and its descendants: a job of Windows."""

        def __init__(self, process: subprocess.Popen[Any]) -> None:
            self._process = process
            self._job = windows.call_kernel32("CreateJobObjectW", None, None)
            # when this process ends, and its handle with it
            windows.set_job_limits(self._job, flags=windows.LIMIT_KILL_ON_JOB_CLOSE)
            with suppress(OSError):  # it has already ended
                windows.call_kernel32("AssignProcessToJobObject", self._job, int(process._handle))  # type: ignore[attr-defined]  # noqa: SLF001

        def terminate(self) -> None:
            """Have the process end itself: Ctrl-Break is all that reaches a group."""
            with suppress(OSError):
                self._process.send_signal(signal.CTRL_BREAK_EVENT)

        def kill(self) -> None:
            """End the process and its descendants at once."""
            with suppress(OSError):
                windows.call_kernel32("TerminateJobObject", self._job, 1)

        def close(self) -> None:
            """Forget the group, which ends those of its processes that still run."""
            job, self._job = self._job, 0
            if job:
                windows.call_kernel32("CloseHandle", job)

    def is_process_running(pid: int) -> bool:
        """Return whether a process runs."""
        try:
            handle = windows.call_kernel32(
                "OpenProcess", windows.PROCESS_QUERY_LIMITED_INFORMATION | windows.SYNCHRONIZE, 0, pid
            )
        except OSError as error:
            return isinstance(error, PermissionError)  # another user's
        try:
            return windows.call_kernel32("WaitForSingleObject", handle, 0) == windows.WAIT_TIMEOUT
        except OSError:  # a result of 0: it has ended
            return False
        finally:
            windows.call_kernel32("CloseHandle", handle)

    def is_parent_process(pid: int) -> bool:
        """Return whether this process's parent still runs: Windows keeps the number of one that has ended."""
        return is_process_running(pid)

    process_exists = is_process_running  # no number belongs to a process that has ended, unless a handle of it is open

    def die_with_parent(number: signal.Signals) -> None:
        """Do nothing: the job of `ProcessGroup` ends with the parent."""

    def replace_process(program: Path, arguments: list[str]) -> NoReturn:
        """Run a program to its end and exit with its code: Windows cannot replace a process by another."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the program decides
        try:
            code = subprocess.call([str(program), *arguments])
        finally:
            signal.signal(signal.SIGINT, before)
        sys.exit(code)

    def make_nonblocking(descriptor: int) -> None:
        """Do nothing: writes of a byte into an empty pipe do not block."""

    def inherited_file_arguments(descriptor: int) -> dict[str, Any]:  # noqa: ARG001
        """Return the arguments of Popen that share an open file: none; its processes end with this one instead."""
        return {}

    def wait_for_group(process: subprocess.Popen[Any]) -> None:
        """Do nothing: a job that was terminated has no process left."""

    TICKS = 100

else:
    KILL = signal.SIGKILL
    HANG_UP = (signal.SIGHUP,)
    TICKS = os.sysconf("SC_CLK_TCK")  # of /proc/PID/stat, in a second

    def complete_environment(environment: Mapping[str, str]) -> dict[str, str]:
        """Return a program's environment."""
        return dict(environment)

    def new_group_arguments() -> dict[str, Any]:
        """Return the arguments of Popen that start a group: Ctrl-C reaches this process alone."""
        return {"start_new_session": True}

    class ProcessGroup:
        """A process that was started with `new_group_arguments`, and its descendants."""

        def __init__(self, process: subprocess.Popen[Any]) -> None:
            self._process = process

        def terminate(self) -> None:
            """Have the processes end themselves."""
            self._send_signal(signal.SIGTERM)

        def kill(self) -> None:
            """End the processes at once."""
            self._send_signal(signal.SIGKILL)

        def close(self) -> None:
            """Forget the group; nothing is held."""

        def _send_signal(self, number: signal.Signals) -> None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def inherited_file_arguments(descriptor: int) -> dict[str, Any]:
        """Return the arguments of Popen that share an open file."""
        return {"pass_fds": (descriptor,)}

    def wait_for_group(process: subprocess.Popen[Any]) -> None:
        """Wait until the last process of a killed group has ended, of those that this process adopted."""
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-process.pid, 0)

    def replace_process(program: Path, arguments: list[str]) -> NoReturn:
        """Replace this process by a program."""
        os.execv(program, [str(program), *arguments])  # noqa: S606 - it needs no shell

    def make_nonblocking(descriptor: int) -> None:
        """Have writes to a full pipe fail instead of waiting."""
        os.set_blocking(descriptor, False)

    def is_parent_process(pid: int) -> bool:
        """Return whether a process is still this process's parent."""
        return os.getppid() == pid

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
        _PR_SET_PDEATHSIG = 1  # linux/prctl.h

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


if sys.platform == "linux":
    _PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

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

    @contextmanager
    def adopt_orphans() -> Iterator[None]:
        """Do nothing: a job of Windows knows all its processes, and macOS has nothing like it."""
        yield

    def seconds_since_boot() -> float:
        """Return the time since the system was started."""
        return time.monotonic()
