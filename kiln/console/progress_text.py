"""The progress of a run as text: the states of configs, and the actions of a compile."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kiln.console.text import duration, unindented_terminal_line
from kiln.model.run import ConfigRun, ConfigState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.model.bazel_progress_and_report import Progress

PARTS = 10  # approximate number of lines for a compile
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


def progress_text(progress: Progress) -> str:
    """Return the progress of a compile in one line: ``1,234 of 5,678 actions, about 42 min left: Compiling a.cc``."""
    if progress.stalled:
        return unindented_terminal_line(f"stalled at {_action_counts(progress)}: {progress.stalled}")
    remaining = "" if not progress.left else f", about {duration(max(1.0, round(progress.left)))} left"
    current = f": {progress.current}" if progress.current else ""
    return unindented_terminal_line(f"{_action_counts(progress)}{remaining}{current}")


def _action_counts(progress: Progress) -> str:
    return (
        f"{progress.done:,} actions" if progress.total is None else f"{progress.done:,} of {progress.total:,} actions"
    )


class ProgressLineSelector:
    """Selects the lines for a log: one for each tenth of a compile, and for the start and end of a stall."""

    def __init__(self) -> None:
        self._part = 0
        self._stalled = False

    def next_log_line(self, progress: Progress) -> str:
        """Return a line, or an empty text if the last one is recent enough."""
        part = PARTS * progress.done // progress.total if progress.total else 0
        begins = bool(progress.stalled) and not self._stalled
        ends = self._stalled and not progress.stalled
        if not (begins or ends or part > self._part):
            return ""
        self._part, self._stalled = max(part, self._part), bool(progress.stalled)
        return f"continues: {progress_text(progress)}" if ends else progress_text(progress)
