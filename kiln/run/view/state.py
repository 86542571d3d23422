"""The state of a run so far and its expected times, for its views."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln.base.patterns import lazy_pattern
from kiln.base.text import line_as_terminal_shows, unindented_terminal_line
from kiln.build.job.messages import ProgressLineSelector, progress_text
from kiln.state.results import BAD, GOOD, OPEN, ConfigRun, ConfigState, MatrixReport, RunCost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kiln.state.results import Progress


_WEEK = 6 * 86400.0  # seconds in which the name of a day is unambiguous


def time_of_day_text(moment: float, now: float, *, utc: bool = False) -> str:
    """Return a time of day, with its day unless that is today: ``14:05``, ``Tue 14:05``, ``30 Nov 14:05``."""
    parts = time.gmtime if utc else time.localtime
    at, today = parts(moment), parts(now)
    if at[:3] == today[:3]:
        return time.strftime("%H:%M", at)
    return time.strftime("%a %H:%M" if abs(moment - now) < _WEEK else "%d %b %H:%M", at)


def expected_period_text(start: float | None, end: float | None, now: float, *, utc: bool = False) -> str:
    """Return a period that is expected: ``14:05 to 17:10``; without a start ``until 17:10``, without an end nothing."""
    if end is None:
        return ""
    if start is None:
        return f"until {time_of_day_text(end, now, utc=utc)}"
    # The day of the end is left out if it is that of the start.
    parts = time.gmtime if utc else time.localtime
    is_same_day = parts(start)[:3] == parts(end)[:3]
    until = time.strftime("%H:%M", parts(end)) if is_same_day else time_of_day_text(end, now, utc=utc)
    return f"{time_of_day_text(start, now, utc=utc)} to {until}"


def expected_config_period_text(cost: RunCost | None, config: ConfigRun, now: float, *, utc: bool = False) -> str:
    """Return when a waiting config is expected to start and to end, or a running one to end; empty where unknown."""
    if cost is None or config.state not in OPEN:
        return ""
    start, end = cost.config_starts.get(config.config), cost.config_ends.get(config.config)
    if config.state is not ConfigState.WAITING:
        if start is not None and config.started and config.estimate:
            end = config.started + config.estimate  # the forecast is from before it began
        start = None
    return expected_period_text(start, end, now, utc=utc)


def expected_starts_text(cost: RunCost, now: float) -> str:
    """Return when the waiting configs are expected to start: ``12 wait, to start from 14:05 to Tue 16:30``."""
    if not cost.config_starts:
        return ""
    moments = cost.config_starts.values()
    return f"{len(moments)} wait, to start from {expected_period_text(min(moments), max(moments), now)}"


# Each state has a sign, so that color is never the only distinction.
SIGNS = {
    ConfigState.WAITING: "·",
    ConfigState.RUNNING: "▸",
    ConfigState.DONE: "✓",
    ConfigState.CACHED: "↺",
    ConfigState.FAILED: "✗",
    ConfigState.OUT_OF_MEMORY: "▲",
    ConfigState.DISK_FULL: "■",
    ConfigState.INTERRUPTED: "‖",
    ConfigState.LOCKED: "↗",
}
# The order of display: failed, running, waiting, finished.
ORDER = (
    ConfigState.FAILED,
    ConfigState.OUT_OF_MEMORY,
    ConfigState.DISK_FULL,
    ConfigState.INTERRUPTED,
    ConfigState.RUNNING,
    ConfigState.LOCKED,
    ConfigState.WAITING,
    ConfigState.DONE,
    ConfigState.CACHED,
)


def state_count_text(configs: Iterable[ConfigRun]) -> str:
    """Return the number of configs in each state: ``1 failed, 2 running, 9 done``."""
    counts = Counter(config.state for config in configs)
    return ", ".join(f"{counts[state]} {state.value}" for state in ORDER if counts[state])


TAIL = 20  # stored lines of each step, shown if it fails
# Build scripts run under `set -x`: the trace has each variable of the environment twice, and then the recipe's script.
TRACED_VARIABLE = lazy_pattern(r"\++ (?:export )?[A-Za-z_]\w*=")
_TRACED_SCRIPT = lazy_pattern(r"\+ bash -e /\S+$")


@dataclass(slots=True)
class ConfigOutput:
    """The output of a config: its step, when it ``began``, its last lines, unescaped, and the progress of its compile.

    ``preamble`` are the lines before the trace of the script's environment, None until it begins; it ends with the
    first traced line that sets no variable.
    """

    step: str = ""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))
    preamble: frozenset[str] | None = None
    is_in_preamble: bool = False
    began: float = 0.0
    progress: Progress | None = None
    progress_log: ProgressLineSelector = field(default_factory=ProgressLineSelector)

    def drop_lines_before_script(self) -> None:
        """Drop what came before the recipe's script, except its own lines that overtook the trace."""
        dropped = frozenset(self.lines) if self.preamble is None else self.preamble
        early = [line for line in self.lines if line not in dropped and not line.startswith("+")]
        self.lines.clear()
        self.lines.extend(early)
        self.is_in_preamble = False


class RunState:
    """The configs of a run in build order, each with its latest state and output."""

    def __init__(self, labels: Mapping[str, str] | None = None, now: Callable[[], float] = time.time) -> None:
        self._labels = labels or {}
        self._now = now
        self.report: MatrixReport | None = None
        self.cost: RunCost | None = None
        self.configs: dict[str, ConfigRun] = {}
        self.outputs: dict[str, ConfigOutput] = {}

    def set_report(self, report: MatrixReport) -> None:
        """Store the configs of a report."""
        self.report = report
        self.cost = report.cost
        self.configs = {config.config: config for config in report.configs}

    def update_config(self, config: ConfigRun) -> None:
        """Store a config's new state; one that waits again has no step any more."""
        before = self.configs.get(config.config)
        if config.state is ConfigState.WAITING and before is not None and before.state is not ConfigState.WAITING:
            self.outputs.pop(config.config, None)
        self.configs[config.config] = config

    def add_output_line(self, config: str, step: str, line: str) -> None:
        """Store a line unescaped; it is escaped when it is shown, which is far less often.

        The trace of a script's environment is left out, and what came before the recipe's script is dropped, except a
        line among the trace: the script's own output comes by another pipe, and may overtake it.
        """
        output = self.outputs.get(config)
        if output is None or output.step != step:
            output = self.outputs[config] = ConfigOutput(step, began=self._now())
        if not line.startswith("+"):  # no line of a trace, as nearly all are
            if line:
                output.lines.append(line)
        elif TRACED_VARIABLE.match(line):
            if output.preamble is None:
                output.preamble, output.is_in_preamble = frozenset(output.lines), True
        else:
            if _TRACED_SCRIPT.match(line) or (output.is_in_preamble and line.startswith("+ ")):
                output.drop_lines_before_script()
            output.lines.append(line)

    def store_progress_and_log_line(self, config: str, progress: Progress) -> str:
        """Store the progress of a step; return a line for a log, usually an empty text.

        What follows a download in its step is shown by its own lines.
        """
        output = self.outputs.setdefault(config, ConfigOutput())
        is_over = progress.in_bytes and progress.done == progress.total
        output.progress = None if is_over else progress
        return output.progress_log.next_log_line(progress)

    def config_label(self, config: str) -> str:
        """Return a config's display name: its varying values if known, else its file name."""
        return self._labels.get(config, config)

    def latest_step(self, config: str) -> str:
        """Return the latest step of a config, with its number where it is known: ``5/15 build app``."""
        if config not in self.outputs:
            return ""
        step, number = unindented_terminal_line(self.outputs[config].step), self.step_number(config)
        return f"{number} {step}" if step and number else step

    def step_number(self, config: str) -> str:
        """Return the number of the present step and of all steps of a config: ``5/15``; empty where unknown."""
        run = self.configs.get(config)
        is_known = run is not None and run.expected_steps > len(run.steps)
        return f"{len(run.steps) + 1}/{run.expected_steps}" if run is not None and is_known else ""

    def progress_or_last_line(self, config: str) -> str:
        """Return the progress of the step, or else the last nonempty line of output, rather than of a trace."""
        output = self.outputs.get(config)
        if output is None:
            return ""
        if output.progress:
            return progress_text(output.progress)
        lines = [text for line in reversed(output.lines) if (text := unindented_terminal_line(line))]
        return next((line for line in lines if not line.startswith("+ ")), lines[0] if lines else "")

    def last_output_lines(self, config: str) -> list[str]:
        """Return the last lines of the config's step, indented as they were."""
        output = self.outputs.get(config)
        return [text for line in output.lines if (text := line_as_terminal_shows(line))] if output else []

    def failed_configs(self) -> Iterator[ConfigRun]:
        """Return the failed configs."""
        return (config for config in self.configs.values() if config.state in BAD)

    def remaining_seconds(self, now: float) -> float | None:
        """Return the estimated seconds until the last config ends, or None without any estimate.

        Configs without an estimate count as the mean of the finished and the estimated ones.
        """
        lengths: list[float] = []
        for config in self.configs.values():
            if config.state in GOOD and config.started and config.finished:
                lengths.append(config.finished - config.started)
            elif config.estimate is not None:
                lengths.append(config.estimate)
        open_configs = [config for config in self.configs.values() if config.state in OPEN]
        if self.cost is not None and open_configs:
            return max(0.0, self.cost.end - now)
        if not lengths or not open_configs:
            return None
        mean = sum(lengths) / len(lengths)
        slots = [0.0] * max(1, self.report.jobs if self.report else 1)
        for config in sorted(open_configs, key=lambda config: config.state is ConfigState.WAITING):
            whole = config.estimate or mean
            first = slots.index(min(slots))
            slots[first] += max(0.0, whole - (now - config.started if config.started else 0.0))
        return max(slots)
