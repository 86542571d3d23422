"""The live view of a run on a terminal: a row for each config, redrawn in place."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING

from kiln.base.text import elapsed_text, fit_name_to_width, fit_to_width, remaining_text
from kiln.run.report.text import cost_text
from kiln.run.view.lines import failure_blocks
from kiln.run.view.state import ORDER, SIGNS, RunState, expected_config_period_text, state_count_text, time_of_day_text
from kiln.state.results import BAD, GOOD, ConfigRun, ConfigState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kiln.state.results import MatrixReport, Progress, RunCost


Span = tuple[str, str]  # text and its style: the parameters of SGR, such as "32", or nothing
Line = tuple[Span, ...]

DIM = "2"
STYLES = {
    ConfigState.WAITING: DIM,
    ConfigState.RUNNING: "36",
    ConfigState.DONE: "32",
    ConfigState.CACHED: "32",
    ConfigState.FAILED: "1;31",
    ConfigState.OUT_OF_MEMORY: "1;31",
    ConfigState.DISK_FULL: "1;31",
    ConfigState.INTERRUPTED: "33",
    ConfigState.LOCKED: "35",
}
_TIME, _STEP, _LINE = 17, 44, 12  # columns: minimum for the times; maximum for a step; minimum for output
_WIDE = 60  # columns for output beside a step, instead of below it
_TIMES = 3  # the part of the width that the times may take with the expected time of day: a third


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnWidths:
    """The widths of a row's columns; 0 omits a column."""

    label: int
    time: int
    step: int
    line: int


def frame_lines(run: RunState, *, now: float, width: int, height: int | None, load: float | None = None) -> list[Line]:
    """Return the lines of a frame of at most ``width`` columns and, unless None, ``height`` lines.

    If there are too many configs, failed and running ones come first, and the rest is counted. The output of a running
    config is on a line of its own where there is room for it; ``load`` is that of the machine, if known.
    """
    configs, others = list(run.configs.values()), []  # type: list[ConfigRun], list[ConfigRun]
    rows = len(configs) if height is None else max(1, height - 3)
    if len(configs) > rows:
        starts = {} if run.cost is None else run.cost.config_starts
        ordered = sorted(configs, key=lambda config: (ORDER.index(config.state), starts.get(config.config, 0.0)))
        configs, others = ordered[: rows - 1], ordered[rows - 1 :]
    steps = [_step_or_state(run, config, now) for config in configs]
    times = [_config_time_text(config, now, expected_config_period_text(run.cost, config, now)) for config in configs]
    if max(map(len, times), default=0) >= width // _TIMES:  # too narrow for the times of day that are expected
        times = [_config_time_text(config, now) for config in configs]
    widths = _fit_column_widths([run.config_label(config.config) for config in configs], times, steps, width)
    lines = [_progress_heading(run, now, width, load), _state_bar(run, width)]
    details = {config.config: text for config in configs if (text := _latest_output_or_reason(run, config))}
    has_room = height is not None and len(configs) + len(details) <= rows and widths.line < _WIDE
    if has_room:
        widths = replace(widths, line=0, step=widths.step and width - 4 - widths.label - widths.time)
    for config, seconds, step in zip(configs, times, steps, strict=True):
        lines.append(_config_row(run, config, seconds, step, widths))
        if has_room and config.config in details:
            lines.append(((fit_to_width(f"    {details[config.config]}", width).rstrip(), DIM),))
    if others:
        lines.append(((fit_to_width(f"… and {state_count_text(others)}", width).rstrip(), DIM),))
    return lines


def _fit_column_widths(labels: Sequence[str], times: Sequence[str], steps: Sequence[str], width: int) -> ColumnWidths:
    """Return the widths that fit: the label first, then the times, the step and the output.

    The step is at least as wide as the longest of the present ``steps``, with a blank before the longest of ``times``.
    """
    from rich.cells import cell_len

    time = max([_TIME, *(len(text) + 1 for text in times)])
    label = min(max(map(cell_len, labels), default=0), max(width - 3, 0))
    if label > width - 3 - time > 12:
        label = width - 3 - time
    rest = width - 2 - label
    time = time if rest > time else 0
    rest -= time + 2
    step = min(_STEP, rest, max(_LINE, rest * 2 // 5, *map(cell_len, steps))) if rest >= _LINE else 0
    line = rest - step - 2
    return ColumnWidths(label=label, time=time, step=step, line=line if step and line >= _LINE else 0)


def _progress_heading(run: RunState, now: float, width: int, load: float | None) -> Line:
    """Return the progress of the run, shortened to the width; the rows below show the states too."""
    from rich.cells import cell_len

    configs = run.configs.values()
    others = [config for config in configs if config.state not in GOOD]
    done = f"{len(configs) - len(others)} of {len(configs)} done"
    rest = f", {state_count_text(others)}" if others else ""
    start = run.report.started if run.report else now
    end = run.report.finished if run.report else None
    time = f"  {elapsed_text((end or now) - start)}"
    remaining = run.remaining_seconds(now)
    left = "" if remaining is None else f", {remaining_text(remaining if remaining < 60 else round(remaining, -1))}"
    cost = f", {cost_text(run.cost)}" if run.cost and run.cost.is_charged else ""
    until = f" (until {time_of_day_text(run.cost.end, now)})" if left and run.cost and run.cost.config_ends else ""
    cores = run.report.cores if run.report else 0
    busy = f"  load {load:.1f} on {cores} cores" if load is not None and cores and run.cost is None else ""
    texts = (
        *([done + rest + time + left + until + cost + busy] if busy else []),
        done + rest + time + left + until + cost,
        done + rest + time + left + cost,
        done + time + left + cost,
        done + time + cost,
        done + time + left,
        done + time,
        done,
    )
    return ((fit_to_width(next((text for text in texts if cell_len(text) <= width), done), width).rstrip(), "1"),)


def _state_bar(run: RunState, width: int) -> Line:
    """Return the share of each kind of state as a colored line; the heading has the same as text."""
    states = [config.state for config in run.configs.values()]
    kinds = ((GOOD, "32"), (BAD, "31"), ({ConfigState.RUNNING, ConfigState.LOCKED}, "36"))
    spans: list[Span] = []
    for kind, style in kinds:
        share = sum(state in kind for state in states) * width // max(1, len(states))
        if share:
            spans.append(("━" * share, style))
    rest = width - sum(len(text) for text, _ in spans)
    return (*spans, ("─" * rest, DIM))


def _config_row(run: RunState, config: ConfigRun, times: str, step: str, widths: ColumnWidths) -> Line:
    style = STYLES[config.state]
    spans = [(f"{SIGNS[config.state]} ", style), (fit_name_to_width(run.config_label(config.config), widths.label), "")]
    if widths.time:
        spans.append((times.rjust(widths.time), DIM))
    if widths.step:
        spans.append(("  " + fit_to_width(step, widths.step), style))
    if widths.line:
        spans.append(("  " + fit_to_width(_latest_output_or_reason(run, config), widths.line), DIM))
    return tuple(spans)


def _latest_output_or_reason(run: RunState, config: ConfigRun) -> str:
    if config.state is ConfigState.RUNNING and not config.reason:
        return run.progress_or_last_line(config.config)
    return config.reason.partition("\n")[0] if config.state is not ConfigState.CACHED else ""


def _step_or_state(run: RunState, config: ConfigRun, now: float) -> str:
    """Return the step of a running config with its time, and what is done for a waiting one, else its state."""
    step = run.latest_step(config.config) if config.state in {ConfigState.RUNNING, ConfigState.WAITING} else ""
    return f"{step} {elapsed_text(now - run.outputs[config.config].began)}" if step else config.state.value


def _config_time_text(config: ConfigRun, now: float, period: str = "") -> str:
    """Return a config's elapsed time and, until it is finished, the expected period or its estimate."""
    elapsed = elapsed_text((config.finished or now) - config.started) if config.started else ""
    if period:
        return f"{elapsed}, {period}" if elapsed else period
    expected = f"~{elapsed_text(config.estimate)}" if config.estimate and config.finished is None else ""
    return " / ".join(text for text in (elapsed, expected) if text)


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
        load: Callable[[], float | None] | None = None,
    ) -> None:
        """Show on ``stream``; ``labels`` are display names of configs, ``size`` returns columns and lines.

        Without ``color`` text has no style; each state has its own sign. ``load`` returns the machine's.
        """
        self._stream = stream
        self._color = color
        self._state = RunState(labels, now)
        self._size = size or (lambda: _terminal_size(stream))
        self._now = now
        self._machine_load = load or _machine_load
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

    def progress_changed(self, config: str, progress: Progress) -> None:
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
        for lines in failure_blocks(self._state):
            print(*lines, sep="\n", file=self._stream, flush=True)

    def draw_frame(self, *, whole: bool = False) -> None:
        """Draw a frame over the previous one; ``whole`` shows all configs, even if the terminal is too short."""
        columns, height = self._size()
        width = max(2, columns - 1)  # the last column makes some terminals wrap
        with self._lock:
            shown = None if whole else height
            lines = frame_lines(self._state, now=self._now(), width=width, height=shown, load=self._machine_load())
        if lines != self._frame:
            from rich.cells import cell_len

            # The rows that the lines take now: the terminal may have become narrower since they were drawn.
            lengths = (sum(cell_len(text) for text, _ in line) for line in self._frame)
            rows = sum(max(1, -(-length // max(1, columns))) for length in lengths)
            up = f"\x1b[{rows}A" if rows else ""
            body = "".join(f"{self._styled(line)}\x1b[K\n" for line in lines)
            self._stream.write(f"{_BEGIN}\r{up}{body}\x1b[J{_END}")
            self._stream.flush()
            self._frame = lines

    def _styled(self, line: Line) -> str:
        styled = (f"\x1b[{style}m{text}\x1b[0m" if style and self._color else text for text, style in line)
        return "".join(styled).rstrip()

    def _draw_frames_until_stopped(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone; the run continues
            while not self._end.wait(SECONDS):
                self.draw_frame()

    def _stop_drawing(self) -> None:
        if self._thread.is_alive():
            self._end.set()
            self._thread.join()
            self._stream.write(_SHOW)
            self._stream.flush()


def _machine_load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _terminal_size(stream: IO[str]) -> tuple[int, int]:
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except OSError:
        return 100, 30
    return columns or 100, lines or 30
