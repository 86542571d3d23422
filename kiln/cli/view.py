"""How a run over the matrix is shown where the command runs: on a terminal, in a file, in GitHub Actions."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.console import GitHubView, LiveView, PlainView
    from kiln.model.run import MatrixReport
    from kiln.variants.axes import Variants


def view(
    stream: IO[str], environment: Mapping[str, str], labels: Mapping[str, str]
) -> GitHubView | LiveView | PlainView:
    """The watcher that fits what ``stream`` is; a context manager, to be left when the run is over."""
    from kiln import console

    if environment.get("GITHUB_ACTIONS") == "true":
        return console.GitHubView(stream, labels=labels)
    if stream.isatty() and environment.get("TERM", "dumb") != "dumb":
        return console.LiveView(stream, labels=labels)
    return console.PlainView(stream, labels=labels)


def add_to_summary(report: MatrixReport, variants: Variants, environment: Mapping[str, str]) -> None:
    """Add the run's table to the summary of the job, where GitHub Actions has asked for one."""
    from kiln.report import as_markdown

    if place := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(as_markdown(report, variants))
