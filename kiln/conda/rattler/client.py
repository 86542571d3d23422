"""The client of the process that runs py-rattler: started by the first request, ended after a failure."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import glob
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kiln.base import files as base_files
from kiln.base import serialization
from kiln.base.errors import BrokenIndex, BrokenPackage, SolveFailed
from kiln.base.system import files
from kiln.base.system.files import temporary_file_with_content
from kiln.base.system.machine import PACKAGE_ROOT
from kiln.base.system.processes import PipeReader
from kiln.conda.rattler.limits import current_limits, failure_from_json, failure_to_json, out_of_memory_error

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from rattler import RepoDataRecord

    from kiln.conda.rattler.limits import Limits


OF_A_PREFIX = frozenset({"files", "paths_data", "link", "extracted_package_dir", "package_tarball_full_path"})
_NOWHERE = {"extracted_package_dir": "", "files": [], "paths_data": {"paths": [], "paths_version": 1}}


def records_from_json(records: Iterable[Mapping[str, Any]]) -> list[RepoDataRecord]:
    """Return JSON values as the library's records; it can only read records of a prefix, from files."""
    from rattler import PrefixRecord

    loaded: list[RepoDataRecord] = []
    for record in records:
        with temporary_file_with_content(json.dumps({**record, **_NOWHERE}).encode()) as path:
            loaded.append(PrefixRecord.from_path(path))
    return loaded


def records_to_json(records: Iterable[RepoDataRecord]) -> list[dict[str, Any]]:
    """Return records as JSON values, without the fields of a prefix."""
    values = (json.loads(record.to_json()) for record in records)
    return [{key: field for key, field in value.items() if key not in OF_A_PREFIX} for value in values]


GRACE = 20.0  # seconds beyond a request's time for the process to end itself, and report why
ENDING = 5.0  # seconds for it to remove its unfinished files when it is terminated
_OUT_OF_MEMORY = ("memory allocation of", "MemoryError", "capacity overflow")


def run_operation(
    operation: str,
    *,
    lock: int | None = None,
    on_received: Callable[[int, int | None], None] = lambda _done, _total: None,
    **arguments: Any,
) -> Any:
    """Run an operation in the process, and return its result.

    The process holds a ``lock``, given by its descriptor, until it has answered, even when this one is killed.
    ``on_received`` gets how many bytes of packages are there, of how many, if the index says it.
    """
    with _RattlerProcess.lock:
        process = _RattlerProcess.running_process()
        healthy = False
        try:
            answer = process.send_request(operation, arguments, current_limits(), lock, on_received)
            healthy = "error" not in answer or answer["error"]["kind"] == SolveFailed.__name__
        finally:
            if not healthy:
                _RattlerProcess.end_running_process()
    if "error" in answer:
        raise failure_from_json(answer["error"])
    return answer["value"]


class _RattlerProcess:
    """The process, with its pipes.

    ``unfinished`` are the folders in the cache of packages being unpacked, and whether they are new there.
    """

    lock = threading.RLock()
    _current: _RattlerProcess | None = None

    def __init__(self) -> None:
        import tempfile

        from kiln.base.process import Program, start_helper_process
        from kiln.base.system.lock_handover import LockSender

        self.messages: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self.locks = LockSender()
        argv = Program.RATTLER.script_command(str(os.getpid()), str(self.locks.number))
        try:
            self.process: subprocess.Popen[bytes] = start_helper_process(
                argv, cwd=PACKAGE_ROOT, stderr=self.messages, inherited=self.locks.inherited
            )
        finally:
            self.locks.close_child_end()
        self.output = PipeReader([_require_pipe(self.process.stdout)])
        self.unfinished: dict[Path, bool] = {}
        self._rest = b""

    @classmethod
    def running_process(cls) -> _RattlerProcess:
        """Return the running process, started at the first call."""
        if cls._current is not None and cls._current.process.poll() is not None:
            cls.end_running_process()
        if cls._current is None:
            cls._current = cls()
        return cls._current

    @classmethod
    def end_running_process(cls) -> None:
        """End the process, and remove what it has unpacked in part."""
        process, cls._current = cls._current, None
        if process is not None:
            process.stop_and_clean_up()

    def send_request(
        self,
        operation: str,
        arguments: Mapping[str, Any],
        bounds: Limits,
        lock: int | None,
        on_received: Callable[[int, int | None], None],
    ) -> dict[str, Any]:
        """Send a request and return the answer, or the failure of a process that ended."""
        from kiln.base import http

        request = {
            "operation": operation,
            "arguments": arguments,
            "limits": dataclasses.asdict(bounds),
            "credentials": http.registered_urls_with_credentials(),
            "lock": lock is not None,
        }
        seconds = float(bounds.install if operation == "install" else bounds.solve)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if lock is not None:
                self.locks.send_lock(lock)
            _require_pipe(self.process.stdin).write(serialization.encode(request).encode() + b"\n")
            _require_pipe(self.process.stdin).flush()
        for message in self._received_messages(time.monotonic() + seconds + GRACE):
            if "received" in message:
                on_received(message["received"], message["total"])
            elif not self._note_unpack_progress(message):
                return message
        return {"error": self._crash_failure(operation, bounds)}

    def _note_unpack_progress(self, message: Mapping[str, Any]) -> bool:
        """Return whether a message reports a package that begins or ends to be unpacked, and note it."""
        if "unpacking" in message:
            self.unfinished[Path(message["unpacking"])] = message["new"]
        elif "unpacked" in message:
            self.unfinished.pop(Path(message["unpacked"]), None)
        else:
            return False
        return True

    def _received_messages(self, until: float) -> Iterator[dict[str, Any]]:
        """Yield messages until the process ends or the time is over."""
        while (remaining := until - time.monotonic()) > 0:
            for _, chunk in self.output.read_available(min(remaining, 1.0)):
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                yield from filter(None, map(serialization.decode, lines))
            if not self.output.is_open:
                return

    def _crash_failure(self, operation: str, bounds: Limits) -> dict[str, Any]:
        with contextlib.suppress(Exception):
            self.process.wait(timeout=ENDING)
        code = self.process.poll()
        self.messages.seek(0)
        last = self.messages.read()[-4000:].decode("utf-8", "replace").strip().splitlines()[-3:]
        if code == -signal.SIGKILL or any(words in "\n".join(last) for words in _OUT_OF_MEMORY):
            return failure_to_json(out_of_memory_error(bounds))
        kind = BrokenIndex if operation == "solve" else BrokenPackage
        ended = "gave no answer" if code is None else f"ended with exit code {code}"
        what = {"solve": "choosing packages", "install": "installing packages"}.get(operation, "reading packages")
        hint = "a damaged or hostile channel or package may cause this: leave them out one by one to find it"
        return failure_to_json(kind(f"{what} failed: py-rattler {ended}", why="; ".join(last), hint=hint))

    def stop_and_clean_up(self) -> None:
        """Terminate the process, kill it, and remove the packages that it has unpacked in part."""
        try:
            self.process.terminate()
            with contextlib.suppress(Exception):
                self.process.wait(timeout=ENDING)
        finally:
            self.process.kill()
            self.process.wait()
            for message in self._received_messages(time.monotonic() + 1):  # threads may go on after the answer
                self._note_unpack_progress(message)
            self.output.close()
            self.locks.close()
            for pipe in (self.process.stdin, self.process.stdout, self.messages):
                with contextlib.suppress(OSError):
                    _require_pipe(pipe).close()
            for folder, new in self.unfinished.items():
                _remove_unfinished_package(folder, whole=new)


def _remove_unfinished_package(folder: Path, *, whole: bool) -> None:
    """Remove an unfinished package from a cache, unless another process uses that cache by now.

    The library unpacks into a folder of the package's name with a dot before it and six characters after it. A
    ``whole`` package goes, too: the process may have ended between its last file and the check of its limits.
    """
    with contextlib.suppress(OSError), (folder.parent / ".cache.lock").open("ab") as lock:
        files.acquire_lock(lock.fileno(), wait=False)
        for part in folder.parent.glob(f".{glob.escape(folder.name)}??????"):
            base_files.remove(part)
        if whole:
            base_files.remove(folder)


def _require_pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


atexit.register(_RattlerProcess.end_running_process)
