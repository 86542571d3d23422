"""What a cell's process takes down while it waits: every line of the build, and the memory that it holds."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from datetime import datetime
from typing import TYPE_CHECKING

from kiln.console import Journal
from kiln.ledger import records
from kiln.pipeline.process import end_below, held_memory
from kiln.pipeline.voice import MARK, heard, say

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TextIO

LOOK = 1.0  # seconds between two looks at the memory that is held


class Log:
    """A cell's log: every line of its build with the time of day, handed on to whoever listens on standard output."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = Journal()

    def __enter__(self) -> Log:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file: TextIO = self.path.open("a", encoding="utf-8", buffering=1)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.file.close()

    def hear(self, line: str) -> None:
        """Take a line of the building process."""
        told = heard(line)
        if told is None:
            self.write(line)
            sys.stdout.write(f"{line.lstrip(MARK)}\n")
            sys.stdout.flush()
            return
        if told["kind"] == "step":
            self.write(f"=== {told.get('title')}")
        elif told["kind"] == "done":
            self.write(f"--- {told.get('title')}: {told.get('seconds')} s")
            for note in told.get("notes", ()):
                self.write(f"    {note}")
        elif told["kind"] == "progress" and (said := self.journal.worth_saying(records.progress(told))):
            self.write(f"    {said}")
        say(**told)

    def write(self, line: str) -> None:
        """Write a line of the log."""
        now = datetime.now().astimezone()
        with contextlib.suppress(OSError):  # a disk that the build has filled must not hide that it has
            self.file.write(f"{now:%Y-%m-%d %H:%M:%S} {line}\n")


class Watched:
    """Looks every second at the memory that the processes below this one hold, and ends them past ``limit`` bytes.

    That is the bound where no container has one; a build may be over it for as long as a second.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.most = 0
        self.limit = limit
        self.exceeded = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(LOOK):
            held = held_memory(os.getpid())
            self.most = max(self.most, held)
            if self.limit is not None and held > self.limit:
                self.exceeded = True
                end_below(os.getpid())

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
