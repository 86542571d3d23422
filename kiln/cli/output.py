"""The view of a run that fits its output, also when the terminal is lost."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from kiln.cli.streams import unescaped_stream

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kiln.base.text import CommandStepsView
    from kiln.recipe.feedstock import Feedstock
    from kiln.recipe.variants.space import Variants
    from kiln.run.view.lines import GitHubView, PlainView
    from kiln.run.view.live import LiveView
    from kiln.state.results import MatrixReport, RunObserver


LOST = frozenset({errno.EIO, errno.EPIPE, errno.ENXIO})  # of a terminal, or of a program that read the output


@contextlib.contextmanager
def survive_hangup() -> Iterator[None]:
    """Have SIGHUP not end the block: from then on, what was meant for the terminal goes to /dev/null.

    A SIGHUP that was ignored when this process was started, as by nohup, stays ignored.
    """
    import threading

    from kiln.base import process_table

    is_main = threading.current_thread() is threading.main_thread()
    terminals = []
    for descriptor in (0, 1, 2):
        with contextlib.suppress(OSError):  # it is closed
            if os.isatty(descriptor):
                terminals.append(descriptor)
    hangups = process_table.hangup_signals() if is_main else ()
    with process_table.temporary_signal_handler(hangups, lambda *_: redirect_to_dev_null(terminals)):
        yield


def redirect_to_dev_null(descriptors: list[int]) -> None:
    """Replace open files of this process by /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


class _TerminalLossTolerantView:
    """An observer that shows a run in a view as long as its output has a reader."""

    def __init__(self, view: RunObserver) -> None:
        self._view = view
        self._is_lost = False

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a method of the view that does nothing once the view is lost."""
        show = getattr(self._view, name)

        def show_unless_lost(*event: object) -> None:
            if self._is_lost:
                return
            try:
                show(*event)
            except OSError as error:
                if error.errno not in LOST:
                    raise
                self._is_lost = True
                redirect_to_dev_null([2])

        return show_unless_lost


def terminal_loss_tolerant_view(view: RunObserver) -> RunObserver:
    """Return an observer that shows a run in a view as long as its output has a reader."""
    return cast("RunObserver", _TerminalLossTolerantView(view))


def run_view_for_stream(
    stream: IO[str], environment: Mapping[str, str], labels: Mapping[str, str], *, verbosity: str = "normal"
) -> GitHubView | LiveView | PlainView:
    """Return the view for a stream: a context manager that lasts as long as the run; quiet and verbose ones are plain.

    ``verbosity`` is the value of a `kiln.run.view.lines.Verbosity`.
    """
    from kiln.run.view.lines import GitHubView, PlainView, Verbosity
    from kiln.run.view.live import LiveView

    stream = unescaped_stream(stream)
    if verbosity != "normal":
        return PlainView(stream, labels=labels, verbosity=Verbosity(verbosity))
    if environment.get("GITHUB_ACTIONS") == "true":
        return GitHubView(stream, labels=labels)
    # In another encoding signs are written as escapes, and lines would be longer than the frame that is redrawn.
    has_signs = (getattr(stream, "encoding", None) or "utf").lower().startswith("utf")
    if stream.isatty() and has_signs and environment.get("TERM", "dumb") != "dumb":
        return LiveView(stream, labels=labels, color=are_colors_allowed(environment))
    return PlainView(stream, labels=labels)


def run_view_of_configs(feedstock: Feedstock, configs: Sequence[str]) -> GitHubView | LiveView | PlainView:
    """Return the view of a run of configs on standard error, with their labels."""
    from kiln.feedstock import config_file
    from kiln.recipe.variants.space import config_labels

    variants = {config.name: config.variant for config in config_file.read_configs(feedstock, configs)}
    return run_view_for_stream(sys.stderr, os.environ, config_labels(configs, variants))


def command_steps_view() -> CommandStepsView:
    """Return the view of a command's steps on standard error."""
    from kiln.base.text import CommandStepsView

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
    """Print a line on standard error, before a run's view starts or next to a command's result; folded to its width."""
    from kiln.base.text import hanging_indent_lines

    print("\n".join(hanging_indent_lines(line, terminal_width(sys.stderr))), file=sys.stderr, flush=True)


def print_unless_quiet(options: argparse.Namespace, *lines: str) -> None:
    """Print lines on standard error, unless failures and the total alone are wanted."""
    if getattr(options, "verbosity", "") != "quiet":
        for line in lines:
            print_line(line)


def print_notes(notes: Iterable[str]) -> None:
    """Print notes on standard error."""
    for note in notes:
        print_line(f"note: {note}")


def print_folded(text: str) -> None:
    """Print text whose lines are folded to the width of the terminal."""
    from kiln.base.text import hanging_indent_lines

    width = terminal_width(sys.stdout)
    print("\n".join(part for line in text.split("\n") for part in hanging_indent_lines(line, width)))


def are_colors_allowed(environment: Mapping[str, str]) -> bool:
    """Return whether colors are allowed: NO_COLOR is unset or empty (https://no-color.org)."""
    return not environment.get("NO_COLOR")


def append_job_summary(report: MatrixReport, variants: Variants, environment: Mapping[str, str]) -> None:
    """Append the run's table to the job summary of GitHub Actions, if there is one."""
    from kiln.run.report.text import run_table_markdown

    if path := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(run_table_markdown(report, variants))
