"""What a person sees while work goes on: a run over the matrix, plain tables.

A run is shown by a `Watcher`: `LiveView` on a terminal, `PlainView` elsewhere, `GitHubView` in GitHub Actions.
"""

from kiln.console.github import GitHubView
from kiln.console.live import LiveView
from kiln.console.plain import PlainView
from kiln.console.progress import Journal, in_words
from kiln.console.states import BAD, GOOD, SIGNS, counted
from kiln.console.text import clock, duration, one_line, table

__all__ = [
    "BAD",
    "GOOD",
    "SIGNS",
    "GitHubView",
    "Journal",
    "LiveView",
    "PlainView",
    "clock",
    "counted",
    "duration",
    "in_words",
    "one_line",
    "table",
]
