"""How far a compile is, in words, and which of these are worth a line where lines stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.console.text import duration, one_line

if TYPE_CHECKING:
    from kiln.model.compile import Progress

PARTS = 10  # lines for a compile from its beginning to its end, about


def in_words(progress: Progress) -> str:
    """Return how far a compile is, in one line: ``1,234 of 5,678 actions, about 42 min left: Compiling a.cc``."""
    if progress.stalled:
        return one_line(f"stalled at {_counts(progress)}: {progress.stalled}")
    left = "" if not progress.left else f", about {duration(max(1.0, round(progress.left)))} left"
    current = f": {progress.current}" if progress.current else ""
    return one_line(f"{_counts(progress)}{left}{current}")


def _counts(progress: Progress) -> str:
    return (
        f"{progress.done:,} actions" if progress.total is None else f"{progress.done:,} of {progress.total:,} actions"
    )


class Journal:
    """Picks what is worth a line of a log: each tenth of a compile once, and each stall, with its end."""

    def __init__(self) -> None:
        self._part = 0
        self._stalled = False

    def worth_saying(self, progress: Progress) -> str:
        """Return the line, or nothing when the last one still tells enough."""
        part = PARTS * progress.done // progress.total if progress.total else 0
        begins = bool(progress.stalled) and not self._stalled
        ends = self._stalled and not progress.stalled
        if not (begins or ends or part > self._part):
            return ""
        self._part, self._stalled = max(part, self._part), bool(progress.stalled)
        return f"goes on: {in_words(progress)}" if ends else in_words(progress)
