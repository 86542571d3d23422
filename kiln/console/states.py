"""The display of config states: each has a sign, so that color is never the only distinction."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kiln.model.run import ConfigState

if TYPE_CHECKING:
    from collections.abc import Iterable

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
GOOD = frozenset({ConfigState.DONE, ConfigState.CACHED})
BAD = frozenset({ConfigState.FAILED, ConfigState.OUT_OF_MEMORY, ConfigState.DISK_FULL})
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


def count_text(states: Iterable[ConfigState]) -> str:
    """Return the number of configs in each state: ``1 failed, 2 running, 9 done``."""
    counts = Counter(states)
    return ", ".join(f"{counts[state]} {state.value}" for state in ORDER if counts[state])
