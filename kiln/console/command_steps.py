"""The view of a command's steps: a line for each step with its time."""

from __future__ import annotations

import contextlib
import time
from typing import IO, TYPE_CHECKING

from kiln.console.text import fit_to_width, unindented_terminal_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.status import Status

TITLE_WIDTH = 64
LIVE_WIDTH = 90


class CommandStep:
    """A running step, with its latest line of output and notes to print afterwards."""

    def __init__(self, title: str, status: Status | None = None) -> None:
        self.title = title
        self.notes: list[str] = []
        self._status = status

    def note(self, text: str) -> None:
        """Store a line to print below the step."""
        self.notes.append(text)

    def show_output_line(self, text: str) -> None:
        """Show a line of the step's output, on a terminal only."""
        if self._status is not None and (line := unindented_terminal_line(text)):
            from rich.markup import escape

            self._status.update(f"{escape(self.title)} [dim]{escape(fit_to_width(line, LIVE_WIDTH).rstrip())}[/dim]")


class CommandStepsView:
    """Shows steps on a stream, usually standard error."""

    def __init__(self, stream: IO[str], *, animated: bool, color: bool = True) -> None:
        self._stream = stream
        self._animated = animated
        self._color = color

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[CommandStep]:
        """Show a step and its time during the block; one that raises is shown as failed."""
        start = time.monotonic()
        with self._spinner_or_title(title) as status:
            step = CommandStep(title, status)
            try:
                yield step
            except BaseException:
                self._print_step_result(step, "failed", time.monotonic() - start)
                raise
        self._print_step_result(step, "done", time.monotonic() - start)

    def _print_step_result(self, step: CommandStep, word: str, seconds: float) -> None:
        if self._animated:
            sign, style = {"done": ("✓", 32), "failed": ("✗", 31)}[word]
            mark = f"\x1b[{style}m{sign}\x1b[0m" if self._color else sign
            self._print_line(f"{mark} {step.title:<{TITLE_WIDTH}} {seconds:6.1f} s")
        else:
            self._print_line(f"  {word:>6} {seconds:6.1f} s")
        for note in step.notes:
            self._print_line(f"         {note}")

    def _print_line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    @contextlib.contextmanager
    def _spinner_or_title(self, title: str) -> Iterator[Status | None]:
        """Show a spinner on a terminal; elsewhere print the title."""
        if not self._animated:
            self._print_line(f"- {title}")
            yield None
            return
        from rich.console import Console as Terminal
        from rich.markup import escape

        with Terminal(file=self._stream, highlight=False, no_color=not self._color).status(escape(title)) as status:
            yield status
