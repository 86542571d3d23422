"""Views of a run in progress, and plain tables.

A run is shown by a `RunObserver`: `LiveView` on a terminal, `PlainView` elsewhere, `GitHubView` in GitHub Actions.
"""

from kiln.console.github import GitHubView
from kiln.console.live import LiveView
from kiln.console.plain import PlainView, Verbosity
from kiln.console.progress import BAD, GOOD, SIGNS, ProgressLog, count_text, progress_text
from kiln.console.text import clock, cost_text, duration, one_line, table

__all__ = [
    "BAD",
    "GOOD",
    "SIGNS",
    "GitHubView",
    "LiveView",
    "PlainView",
    "ProgressLog",
    "Verbosity",
    "clock",
    "cost_text",
    "count_text",
    "duration",
    "one_line",
    "progress_text",
    "table",
]
