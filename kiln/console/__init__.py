"""Views of a run in progress, and plain tables.

A run is shown by a `RunObserver`: `LiveView` on a terminal, `PlainView` elsewhere, `GitHubView` in GitHub Actions.
"""
