"""How the states of a cell are shown: a sign each, so that colour never stands alone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kiln.model.run import CellState

if TYPE_CHECKING:
    from collections.abc import Iterable

SIGNS = {
    CellState.WAITING: "·",
    CellState.RUNNING: "▸",
    CellState.DONE: "✓",
    CellState.FOUND: "↺",
    CellState.FAILED: "✗",
    CellState.OUT_OF_MEMORY: "▲",
    CellState.DISK_FULL: "■",
    CellState.INTERRUPTED: "‖",
    CellState.ELSEWHERE: "↗",
}
GOOD = frozenset({CellState.DONE, CellState.FOUND})
BAD = frozenset({CellState.FAILED, CellState.OUT_OF_MEMORY, CellState.DISK_FULL})
# What a run tells first of its cells: what went wrong, what goes on, what is left, what is over.
ORDER = (
    CellState.FAILED,
    CellState.OUT_OF_MEMORY,
    CellState.DISK_FULL,
    CellState.INTERRUPTED,
    CellState.RUNNING,
    CellState.ELSEWHERE,
    CellState.WAITING,
    CellState.DONE,
    CellState.FOUND,
)


def counted(states: Iterable[CellState]) -> str:
    """Return how many cells are in which state: ``1 failed, 2 running, 9 done``."""
    counts = Counter(states)
    return ", ".join(f"{counts[state]} {state.value}" for state in ORDER if counts[state])
