"""Measures a build's memory, and stops a build beyond its limit."""

from __future__ import annotations

import os
import threading

from kiln.process_table import held_memory, kill_descendants

LOOK = 1.0  # seconds between two measurements of memory


class MemoryMonitor:
    """Measures the memory of this process's descendants every second, and kills them beyond ``limit`` bytes.

    It bounds memory where no container does; a build may exceed the limit for up to a second.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.most = 0
        self.limit = limit
        self.exceeded = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(LOOK):
            size = held_memory(os.getpid())
            self.most = max(self.most, size)
            if self.limit is not None and size > self.limit:
                self.exceeded = True
                kill_descendants(os.getpid())

    def __enter__(self) -> MemoryMonitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
