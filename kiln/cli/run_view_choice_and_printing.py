"""The view of a run that fits its output: a terminal, a file, or GitHub Actions."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

from kiln.cli.masked_and_escaped_streams import unescaped_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kiln.console.command_steps import CommandStepsView
    from kiln.console.github import GitHubView
    from kiln.console.live import LiveView
    from kiln.console.plain import PlainView
    from kiln.model.feedstock import Feedstock
    from kiln.model.run import MatrixReport
    from kiln.variants.varying_keys import Variants


def run_view_for_stream(
    stream: IO[str], environment: Mapping[str, str], labels: Mapping[str, str], *, verbosity: str = "normal"
) -> GitHubView | LiveView | PlainView:
    """Return the view for a stream: a context manager that lasts as long as the run; quiet and verbose ones are plain.

    ``verbosity`` is the value of a `kiln.console.Verbosity`.
    """
    from kiln.console.github import GitHubView
    from kiln.console.live import LiveView
    from kiln.console.plain import PlainView, Verbosity

    stream = unescaped_stream(stream)
    if verbosity != "normal":
        return PlainView(stream, labels=labels, verbosity=Verbosity(verbosity))
    if environment.get("GITHUB_ACTIONS") == "true":
        return GitHubView(stream, labels=labels)
    if stream.isatty() and environment.get("TERM", "dumb") != "dumb":
        return LiveView(stream, labels=labels, color=are_colors_allowed(environment))
    return PlainView(stream, labels=labels)


def run_view_of_configs(feedstock: Feedstock, configs: Sequence[str]) -> GitHubView | LiveView | PlainView:
    """Return the view of a run of configs on standard error, with their labels."""
    from kiln import expand
    from kiln.variants.varying_keys import config_labels

    variants = {config.name: config.variant for config in expand.read_configs(feedstock, configs)}
    return run_view_for_stream(sys.stderr, os.environ, config_labels(configs, variants))


def command_steps_view() -> CommandStepsView:
    """Return the view of a command's steps on standard error."""
    from kiln.console.command_steps import CommandStepsView

    return CommandStepsView(
        unescaped_stream(sys.stderr), animated=sys.stderr.isatty(), color=are_colors_allowed(os.environ)
    )


def terminal_width(stream: IO[str]) -> int | None:
    """Return the columns of a stream's terminal; None for a file or a pipe, whose lines are not folded."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None if stream.isatty() else None
    except (OSError, ValueError):  # it is closed, or replaced by one without a file
        return None


def print_line(line: str) -> None:
    """Print a line on standard error, before a run's view starts or next to a command's result."""
    print(line, file=sys.stderr, flush=True)


def print_notes(notes: Iterable[str]) -> None:
    """Print notes on standard error."""
    for note in notes:
        print_line(f"note: {note}")


def print_folded(text: str) -> None:
    """Print text whose lines are folded to the width of the terminal."""
    from kiln.console.text import hanging_indent_lines

    width = terminal_width(sys.stdout)
    print("\n".join(part for line in text.split("\n") for part in hanging_indent_lines(line, width)))


def are_colors_allowed(environment: Mapping[str, str]) -> bool:
    """Return whether colors are allowed: NO_COLOR is unset or empty (https://no-color.org)."""
    return not environment.get("NO_COLOR")


def append_job_summary(report: MatrixReport, variants: Variants, environment: Mapping[str, str]) -> None:
    """Append the run's table to the job summary of GitHub Actions, if there is one."""
    from kiln.report.result_table import run_table_markdown

    if path := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(run_table_markdown(report, variants))
