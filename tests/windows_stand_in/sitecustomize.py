"""Make this Python look like Windows to kiln: first on PYTHONPATH, it is imported before anything else.

Unix's modules cannot be imported, functions and constants that Windows lacks are removed, /proc is hidden, and kiln's
modules see ``sys.platform == "win32"`` while they are imported, which is when they choose. Two things of Windows that
kiln calls are stood in for: ``msvcrt.locking``, and kernel32's jobs and processes. The standard library, which was
built for this system, keeps what it needs. This is not Windows: paths, encodings and its file system stay Linux's.
"""

from __future__ import annotations

import asyncio.unix_events
import ctypes
import errno
import fcntl
import importlib
import importlib.machinery
import multiprocessing.util
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import traceback
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# the standard library's modules that choose for this system when they are imported
LOADED = (
    "concurrent.futures ctypes.util getpass http.client logging.handlers platform pty sqlite3 ssl tempfile"
    " urllib.request uuid webbrowser zipfile"
)
BLOCKED = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
MISSING = {
    os: (
        "chown confstr confstr_names fchdir fchmod fchown fork forkpty getegid geteuid getgid getgroups getloadavg"
        " getpgid getpriority getresuid getsid getuid killpg lchown memfd_create mkfifo mknod nice openpty"
        " posix_fallocate posix_spawn pread pwrite sched_getaffinity sched_setaffinity sendfile set_blocking setegid"
        " setgid setpgid setsid setuid statvfs sync sysconf sysconf_names ttyname uname wait wait3 wait4 waitid WNOHANG"
        " O_CLOEXEC O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK"
    ),
    signal: (
        "ITIMER_PROF ITIMER_REAL SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGPROF SIGQUIT SIGSTOP SIGTSTP SIGUSR1"
        " SIGUSR2 SIG_BLOCK SIG_SETMASK SIG_UNBLOCK alarm getitimer pthread_kill pthread_sigmask setitimer sigwait"
    ),
    socket: "MSG_CMSG_CLOEXEC recv_fds send_fds",
    time: "CLOCK_BOOTTIME CLOCK_MONOTONIC CLOCK_REALTIME clock_gettime",
}
HIDDEN = ("/proc", "/dev/fd")
_set_limit, _get_limit, _lock = resource.setrlimit, resource.getrlimit, fcntl.lockf
_usage, _kill, _kill_number = resource.getrusage, os.kill, signal.SIGKILL
_statm = os.open("/proc/self/statm", os.O_RDONLY)
_pread, _page = os.pread, resource.getpagesize()


def main() -> None:
    """Take away what Windows does not have."""
    for name in LOADED.split():
        importlib.import_module(name)
    keep_for_the_library()
    for module, names in MISSING.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for name in BLOCKED:
        sys.modules[name] = None  # type: ignore[assignment]  # documented: an import of it fails
    sys.modules["msvcrt"] = msvcrt()
    for name, value in {"O_NOINHERIT": os.__dict__.get("O_NOINHERIT", 0), "O_BINARY": 0}.items():
        setattr(os, name, value)
    sys.modules["platform"].__dict__.update(system=lambda: "Windows", machine=lambda: "AMD64", node=lambda: "HERE")
    os.symlink = no_privilege  # type: ignore[assignment]
    stat.IO_REPARSE_TAG_MOUNT_POINT = 0xA000_0003  # type: ignore[attr-defined]
    subprocess.CREATE_NEW_PROCESS_GROUP = 0x200  # type: ignore[attr-defined]
    signal.CTRL_BREAK_EVENT = signal.SIGTERM  # type: ignore[attr-defined]
    ctypes.WinDLL = lambda name, **_: Kernel32()  # type: ignore[attr-defined]
    ctypes.WinError = lambda code=None: OSError(errno.EINVAL, f"error {code} of kernel32")  # type: ignore[attr-defined]
    ctypes.get_last_error = lambda: 0  # type: ignore[attr-defined]
    sys.meta_path.insert(0, Finder())
    sys.addaudithook(refuse_hidden)


def keep_for_the_library() -> None:
    """Give the modules that work on this system their own copies of what kiln must not see."""
    for module in (asyncio.unix_events, shutil, subprocess, multiprocessing.util):
        for name, source in (("os", os), ("signal", signal)):
            if getattr(module, name, None) is source:
                copy = types.ModuleType(name)
                copy.__dict__.update(source.__dict__)
                setattr(module, name, copy)
    real = subprocess.Popen.__init__

    def started(self: Any, *arguments: Any, **options: Any) -> None:
        if options.pop("pass_fds", ()):
            raise ValueError("pass_fds not supported on Windows.")
        if options.pop("start_new_session", False) or options.pop("preexec_fn", None):
            raise ValueError("neither is supported on Windows")
        group = options.pop("creationflags", 0) == 0x200
        real(self, *arguments, start_new_session=group, **options)
        self._handle = self.pid

    subprocess.Popen.__init__ = started  # type: ignore[method-assign]

    def no_handler(*_: object) -> None:
        raise NotImplementedError

    asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = no_handler  # type: ignore[method-assign,assignment]


def no_privilege(source: object, target: object, *_: object, **__: object) -> None:
    """Refuse a link, as Windows does outside its developer mode."""
    raise OSError(errno.EINVAL, "A required privilege is not held by the client", source, None, target)


def msvcrt() -> types.ModuleType:
    """Return a module with ``locking``: a byte of a file, at its position."""
    module = types.ModuleType("msvcrt")
    names = {"LK_UNLCK": fcntl.LOCK_UN, "LK_NBLCK": fcntl.LOCK_EX | fcntl.LOCK_NB}
    module.__dict__.update({name: number for number, name in enumerate(names)})

    def locking(descriptor: int, mode: int, size: int) -> None:
        try:
            _lock(descriptor, list(names.values())[mode], size, 0, os.SEEK_CUR)
        except BlockingIOError as error:
            raise PermissionError(errno.EACCES, "Permission denied") from error

    module.locking = locking  # type: ignore[attr-defined]
    return module


class Kernel32:
    """The functions of kernel32 that kiln calls, by this system's own means."""

    def __getattr__(self, name: str) -> Function:
        return Function(KERNEL32[name])


class Function:
    def __init__(self, call: Callable[..., int]) -> None:
        self._call, self.restype = call, None

    def __call__(self, *words: Any) -> int:
        return self._call(*(word.value if isinstance(word, ctypes.c_void_p) else word for word in words))


JOB, SELF = 0x4A4F42, 2**64 - 1


def create_job_object(*_: object) -> int:
    return JOB


def assign_process_to_job_object(job: int, process: int) -> int:
    return 1


def get_current_process() -> int:
    return SELF


def close_handle(handle: int) -> int:
    return 1


def terminate_job_object(job: int, code: int) -> int:
    return 1  # Popen.wait() follows; a group is ended by its leader's end here


def set_information_job_object(job: int, kind: int, reference: Any, size: int) -> int:
    """Limit the memory as the job says; its layout is that of the 64-bit structure, read by its bytes."""
    data = bytes(reference._obj)
    assert (kind, size, len(data)) == (9, 144, 144), "JOBOBJECT_EXTENDED_LIMIT_INFORMATION"
    flags, memory = int.from_bytes(data[16:20], "little"), int.from_bytes(data[112:120], "little")
    if flags & 0x2000 == 0:
        _set_limit(resource.RLIMIT_DATA, (memory if flags & 0x100 else -1, _get_limit(resource.RLIMIT_DATA)[1]))
    return 1


def get_process_memory_info(process: int, reference: Any, size: int) -> int:
    counters = reference._obj
    assert (process, size, counters.size) == (SELF, 80, 80), "PROCESS_MEMORY_COUNTERS_EX"
    counters.private = int(_pread(_statm, 200, 0).split()[5]) * _page
    return 1


def get_process_io_counters(process: int, reference: Any) -> int:
    reference._obj[4] = 512 * _usage(resource.RUSAGE_SELF).ru_oublock
    return 1


def global_memory_status_ex(reference: Any) -> int:
    assert reference._obj.size == ctypes.sizeof(reference._obj) == 64, "MEMORYSTATUSEX"
    reference._obj.total = 8 << 30
    return 1


def open_process(rights: int, inherit: int, pid: int) -> int:
    try:
        _kill(pid, 0)
    except OSError:
        return 0
    return pid


def wait_for_single_object(handle: int, milliseconds: int) -> int:
    return 258  # it was just opened, so it runs


KERNEL32: dict[str, Callable[..., int]] = {
    "CreateJobObjectW": create_job_object,
    "AssignProcessToJobObject": assign_process_to_job_object,
    "GetCurrentProcess": get_current_process,
    "CloseHandle": close_handle,
    "TerminateJobObject": terminate_job_object,
    "SetInformationJobObject": set_information_job_object,
    "K32GetProcessMemoryInfo": get_process_memory_info,
    "GetProcessIoCounters": get_process_io_counters,
    "GlobalMemoryStatusEx": global_memory_status_ex,
    "OpenProcess": open_process,
    "WaitForSingleObject": wait_for_single_object,
}


class Finder:
    """Loads kiln's modules as on Windows."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name != "kiln" and not name.startswith("kiln."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.__class__ = Loader
        return spec


class Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        before, sys.platform = sys.platform, "win32"
        try:
            super().exec_module(module)
        finally:
            sys.platform = before


def refuse_hidden(event: str, arguments: tuple[Any, ...]) -> None:
    """Hide /proc from Python's own code."""
    if event in {"open", "os.listdir", "os.scandir"} and isinstance(arguments[0], (str, os.PathLike)):
        path = os.fspath(arguments[0])
        if isinstance(path, str) and path.startswith(HIDDEN):
            raise FileNotFoundError(errno.ENOENT, "Windows has no such folder", path)
    if event in {"os.fork", "os.forkpty"}:
        raise OSError(errno.ENOSYS, "Windows has no forks")


try:
    main()
except BaseException:  # noqa: BLE001 - Python would go on without this file
    traceback.print_exc()
    os._exit(99)
