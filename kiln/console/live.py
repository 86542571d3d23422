"""The live view of a run on a terminal: a row for each config, redrawn in place.

docs/explanation/live-view.md says why this is not rich.Live.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING

from kiln.console.live_frame_layout import Line, frame_lines
from kiln.console.plain import failure_lines
from kiln.console.run_state import RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kiln.model.bazel_progress_and_report import Progress
    from kiln.model.run import ConfigRun, MatrixReport, RunCost

SECONDS = 0.5  # between two frames
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # synchronized output, on terminals that support it


class LiveView(AbstractContextManager["LiveView"]):
    """Shows a run on a terminal; a context manager that restores the terminal.

    Lines of output are only stored. A thread draws a frame twice a second, so verbose builds cost nothing.
    """

    def __init__(
        self,
        stream: IO[str],
        *,
        labels: Mapping[str, str] | None = None,
        size: Callable[[], tuple[int, int]] | None = None,
        now: Callable[[], float] = time.time,
        color: bool = True,
    ) -> None:
        """Show on ``stream``; ``labels`` are display names of configs, ``size`` returns columns and lines.

        Without ``color`` text has no style; each state has its own sign.
        """
        self._stream = stream
        self._color = color
        self._state = RunState(labels)
        self._size = size or (lambda: _terminal_size(stream))
        self._now = now
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._draw_frames_until_stopped, name="live view", daemon=True)
        self._frame: list[Line] = []

    def __exit__(self, *_: object) -> None:
        self._stop_drawing()

    def run_began(self, report: MatrixReport) -> None:
        """Draw the configs, and start the drawing thread."""
        with self._lock:
            self._state.set_report(report)
        self._stream.write(_HIDE)
        self.draw_frame()
        self._thread.start()

    def config_changed(self, config: ConfigRun) -> None:
        """Store a config's new state."""
        with self._lock:
            self._state.update_config(config)

    def output_line_received(self, config: str, step: str, line: str) -> None:
        """Store a line of output."""
        with self._lock:
            self._state.add_output_line(config, step, line)

    def compile_progress_changed(self, config: str, progress: Progress) -> None:
        """Store the progress of a compile, which is shown instead of the last line."""
        with self._lock:
            self._state.store_progress_and_log_line(config, progress)

    def run_cost_changed(self, cost: RunCost) -> None:
        """Store the cost of a run on workers."""
        with self._lock:
            self._state.cost = cost

    def run_ended(self, report: MatrixReport) -> None:
        """Draw all configs once more, and print the reasons of failures."""
        self._stop_drawing()
        self._state.set_report(report)
        self.draw_frame(whole=True)
        self._frame = []
        for config in self._state.failed_configs():
            print("", *failure_lines(self._state, config), sep="\n", file=self._stream, flush=True)

    def draw_frame(self, *, whole: bool = False) -> None:
        """Draw a frame over the previous one; ``whole`` shows all configs, even if the terminal is too short."""
        columns, height = self._size()
        width = max(2, columns - 1)  # the last column makes some terminals wrap
        with self._lock:
            lines = frame_lines(self._state, now=self._now(), width=width, height=None if whole else height)
        if lines != self._frame:
            rows = sum(_wrapped_row_count(line, columns) for line in self._frame)
            up = f"\x1b[{rows}A" if rows else ""
            body = "".join(f"{_ansi_styled(line, color=self._color)}\x1b[K\n" for line in lines)
            self._stream.write(f"{_BEGIN}\r{up}{body}\x1b[J{_END}")
            self._stream.flush()
            self._frame = lines

    def _draw_frames_until_stopped(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone; the run continues
            while not self._end.wait(SECONDS):
                self.draw_frame()

    def _stop_drawing(self) -> None:
        """Stop the drawing thread and show the cursor."""
        if self._thread.is_alive():
            self._end.set()
            self._thread.join()
            self._stream.write(_SHOW)
            self._stream.flush()


def _terminal_size(stream: IO[str]) -> tuple[int, int]:
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except OSError:
        return 100, 30
    return columns or 100, lines or 30


def _wrapped_row_count(line: Line, columns: int) -> int:
    """Return the rows that a line takes now; the terminal may have become narrower since it was drawn."""
    from rich.cells import cell_len

    return max(1, -(-sum(cell_len(text) for text, _ in line) // max(1, columns)))


def _ansi_styled(line: Sequence[tuple[str, str]], *, color: bool) -> str:
    return "".join(f"\x1b[{style}m{text}\x1b[0m" if style and color else text for text, style in line).rstrip()
