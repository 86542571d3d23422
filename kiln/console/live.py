"""The live view of a run on a terminal: a row per cell, redrawn in place."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING

from kiln.console.board import Board
from kiln.console.frame import frame
from kiln.console.plain import told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from kiln.console.frame import Line
    from kiln.model.compile import Progress
    from kiln.model.run import CellRun, MatrixReport

SECONDS = 0.5  # between two pictures
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # one picture at once, where the terminal knows how


class LiveView(AbstractContextManager["LiveView"]):
    """Shows a run on a terminal; a context manager, at whose end the terminal is as it was.

    Lines of output are only kept as they come. What is drawn is drawn by a thread of its own, twice a second, so a
    busy build costs the view nothing.
    """

    def __init__(
        self,
        stream: IO[str],
        *,
        labels: Mapping[str, str] | None = None,
        size: Callable[[], tuple[int, int]] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Show on ``stream``; ``labels`` are names for the cells, ``size`` tells columns and lines of the terminal."""
        self._stream = stream
        self._board = Board(labels)
        self._size = size or (lambda: _size_of(stream))
        self._now = now
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_drawing, name="live view", daemon=True)
        self._drawn: list[Line] = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def run_began(self, report: MatrixReport) -> None:
        """Draw the cells, and go on drawing."""
        with self._lock:
            self._board.take(report)
        self._stream.write(_HIDE)
        self.draw()
        self._thread.start()

    def cell_changed(self, cell: CellRun) -> None:
        """Take over a cell's state."""
        with self._lock:
            self._board.change(cell)

    def cell_line(self, config: str, step: str, line: str) -> None:
        """Keep a line."""
        with self._lock:
            self._board.hear(config, step, line)

    def cell_progress(self, config: str, progress: Progress) -> None:
        """Keep how far a compile is; it takes the place of the last line."""
        with self._lock:
            self._board.advance(config, progress)

    def run_ended(self, report: MatrixReport) -> None:
        """Draw all cells a last time, and why those failed that did."""
        self._stop()
        self._board.take(report)
        self.draw(whole=True)
        self._drawn = []
        for cell in self._board.failures():
            print("", *told(self._board, cell), sep="\n", file=self._stream, flush=True)

    def draw(self, *, whole: bool = False) -> None:
        """Draw a picture in the place of the last one; ``whole`` shows every cell, however many."""
        columns, lines = self._size()
        width = max(2, columns - 1)  # the last column makes some terminals wrap
        with self._lock:
            picture = frame(self._board, now=self._now(), width=width, height=None if whole else lines)
        if picture != self._drawn:
            above = sum(_height(line, columns) for line in self._drawn)
            up = f"\x1b[{above}A" if above else ""
            body = "".join(f"{_painted(line)}\x1b[K\n" for line in picture)
            self._stream.write(f"{_BEGIN}\r{up}{body}\x1b[J{_END}")
            self._stream.flush()
            self._drawn = picture

    def _keep_drawing(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone; the run goes on
            while not self._over.wait(SECONDS):
                self.draw()

    def _stop(self) -> None:
        """End the drawing and show the cursor again."""
        if self._thread.is_alive():
            self._over.set()
            self._thread.join()
            self._stream.write(_SHOW)
            self._stream.flush()


def _size_of(stream: IO[str]) -> tuple[int, int]:
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except OSError:
        return 100, 30
    return columns or 100, lines or 30


def _height(line: Line, columns: int) -> int:
    """How many lines of the terminal a line takes, now that it may be narrower than when the line was drawn."""
    from rich.cells import cell_len

    return max(1, -(-sum(cell_len(text) for text, _ in line) // max(1, columns)))


def _painted(line: Sequence[tuple[str, str]]) -> str:
    return "".join(f"\x1b[{style}m{text}\x1b[0m" if style else text for text, style in line).rstrip()
