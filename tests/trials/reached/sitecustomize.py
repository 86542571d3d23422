"""Record which functions of kiln each test enters, in its own process and in those that it starts.

Python imports this file at its start where its folder is in PYTHONPATH. It writes into the folder that KILN_REACHED
names: a file per process, with the test's name and the functions from then on, as ``kiln/base/files.py:12``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import CodeType

ROOT = f"{Path(__file__).resolve().parents[3]}{os.sep}"
PACKAGE = f"{ROOT}kiln{os.sep}"
DESCRIPTOR = 700  # out of the way of programs that expect the numbers after 2


class Recorder:
    """The open file of this process; a fork opens its own."""

    def __init__(self, folder: str, monitoring: Any) -> None:
        self.folder = folder
        self.monitoring = monitoring
        self.file: int | None = None

    def write(self, line: str) -> None:
        """Add a line; what cannot be written is lost, and never the test's matter."""
        with contextlib.suppress(OSError):
            if self.file is None:
                import fcntl

                place = os.open(
                    f"{self.folder}/{os.getpid()}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666
                )
                self.file = fcntl.fcntl(place, fcntl.F_DUPFD_CLOEXEC, DESCRIPTOR)
                os.close(place)
                os.write(self.file, f"test {os.environ.get('PYTEST_CURRENT_TEST', '').rpartition(' ')[0]}\n".encode())
            os.write(self.file, f"{line}\n".encode())

    def enter(self, code: CodeType, _offset: int) -> object:
        """Record a function once; Python then calls this no more for it."""
        if code.co_filename.startswith(PACKAGE):
            self.write(f"{code.co_filename.removeprefix(ROOT)}:{code.co_firstlineno}")
        return self.monitoring.DISABLE

    def begin(self, test: str) -> None:
        """Record all functions anew, for another test."""
        self.write(f"test {test}")
        self.monitoring.restart_events()

    def forked(self) -> None:
        """Record all functions anew, in a new process."""
        self.file = None
        self.monitoring.restart_events()


recorder: Recorder | None = None
monitoring: Any = vars(sys).get("monitoring")
if os.environ.get("KILN_REACHED") and monitoring is not None:
    recorder = Recorder(os.environ["KILN_REACHED"], monitoring)
    tool = monitoring.PROFILER_ID
    monitoring.use_tool_id(tool, "kiln's tests")
    monitoring.register_callback(tool, monitoring.events.PY_START, recorder.enter)
    monitoring.set_events(tool, monitoring.events.PY_START)
    os.register_at_fork(after_in_child=recorder.forked)
