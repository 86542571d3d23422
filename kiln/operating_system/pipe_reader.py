"""Output of child processes, read as it comes from several pipes at once."""

from __future__ import annotations

import os
import sys
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

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
